#!/bin/bash
# bundle.sh - collect programs, libraries and GPU tests in one folder, for a machine that has a GPU but not our
# libraries.
#
# usage: bundle.sh BUILD-FOLDER BUNDLE-FOLDER [GPU-TEST...]
#
# Files have the same paths as below the build folder, so that tests find the programs. All libraries are included,
# except those of glibc, which must match the machine. Exit status: 1 if the bundle exceeds 60 MB.
set -euo pipefail
build=$1 bundle=$2
shift 2
limit_mb=60

rm -rf "$bundle"
mkdir -p "$bundle/lib" "$bundle/tests"

programs=()
for program in gpoold gpoold-agent.so poolctl gpool-bench gpool-demo gpool-replay; do
    programs+=("$build/$program")
done
for test in "$@"; do
    programs+=("$build/tests/$test")
done
for program in "${programs[@]}"; do
    place=$bundle/${program#"$build"/}
    cp "$program" "$place"
    strip --strip-debug "$place"
done
soversion=$(readelf -d "$build/libgpool.so" | sed -n "s/.*soname: \[libgpool.so.\(.*\)\]/\1/p")
for name in libgpool libgpool_lora; do
    cp "$build/$name.so" "$bundle/lib/$name.so.$soversion"
    strip --strip-debug "$bundle/lib/$name.so.$soversion"
    ln -s "$name.so.$soversion" "$bundle/lib/$name.so"
done

# "NAME => PATH (address)"
for program in "${programs[@]}" "$build/libgpool.so" "$build/libgpool_lora.so"; do
    ldd "$program"
done | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u | while read -r name path; do
    case $name in
    libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | libutil.so.* | libanl.so.*) ;;
    libgpool.so.* | libgpool_lora.so.*) ;;
    *) cp -L "$path" "$bundle/lib/$name" ;;
    esac
done

cp tests/run "$bundle/run-tests"
cp tests/gpu/lora_bmm.py "$bundle/"
cat >"$bundle/run" <<'END'
#!/bin/bash
# run - run the GPU tests of this bundle. Arguments: names of tests; default: all. Their output is kept in log/.
cd "$(dirname -- "${BASH_SOURCE[0]}")" || exit 1
export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LOGS=${LOGS:-$PWD/log} TIMEOUT=${TIMEOUT:-600}
programs=()
if [ $# -gt 0 ]; then
    programs=("${@/#/./tests/}")
else
    for program in ./tests/*; do
        [ -x "$program" ] && programs+=("$program")
    done
fi
exec ./run-tests --programs "${programs[@]}"
END
chmod +x "$bundle/run" "$bundle/run-tests"

bytes=$(du -sb "$bundle" | cut -f 1)
printf 'bundle: %s has %d files, %d MB\n' "$bundle" "$(find "$bundle" -type f | wc -l)" $(((bytes + 999999) / 1000000))
if [ "$bytes" -gt $((limit_mb * 1000000)) ]; then
    echo "bundle: more than $limit_mb MB; the largest:" >&2
    find "$bundle" -type f -printf '%s %p\n' | sort -rn | sed -n 1,8p >&2
    exit 1
fi
