#!/usr/bin/env python3
"""lint_readmes.py - check that each folder with sources or documents has a README.md, and that none is too long.

usage: lint_readmes.py [FOLDER]     status 1 if one is missing or too long; FOLDER is a git checkout (default: this one)
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

FILES, LINES = 4, 60  # a folder with fewer files is described by the README of its parent
# Limits of the README of the project, and of that of the Python package, which a package index shows.
LONG = {"README.md": 200, "client/python/README.md": 200}
# Folders that client/python/README.md describes.
DESCRIBED = {"client/python/gpool", "client/python/gpool/vllm"}


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[2])
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    files = [Path(name) for name in listed if (root / name).is_file()]
    folders = Counter(
        str(file.parent)
        for file in files
        if re.fullmatch(r"\.(c|h|cu|def|py|pml|md|[1-8]|yaml)", file.suffix) and file.name != "README.md"
    )
    wrong = [
        f"{folder}: {count} files, but no README.md"
        for folder, count in sorted(folders.items())
        if count >= FILES and folder not in DESCRIBED and not (root / folder / "README.md").is_file()
    ]
    for file in files:
        if file.name == "README.md":
            lines, limit = len((root / file).read_text(encoding="utf-8").splitlines()), LONG.get(str(file), LINES)
            if lines > limit:
                wrong.append(f"{file}: {lines} lines, the limit is {limit}")
    print("\n".join(wrong) if wrong else f"ok {len(folders)} folders")
    return bool(wrong) or not folders


if __name__ == "__main__":
    sys.exit(main())
