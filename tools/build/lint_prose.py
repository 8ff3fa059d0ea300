#!/usr/bin/env python3
"""lint_prose.py - count words that plain technical English does not use, per folder; the counts may only decrease.

usage: lint_prose.py [--list FOLDER]

tools/build/prose.txt has the words, as regular expressions, and the remaining number of each folder. All lines of all
tracked text files are read, except files with data."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "tools/build/prose.txt"
SUFFIXES = (".c", ".h", ".def", ".cu", ".md", ".py", ".1", ".3", ".5", ".7", ".8", ".in", ".mk", ".pml", ".html")


def main() -> int:
    words, known = [], {}
    for number, line in enumerate(RULES.read_text().splitlines(), 1):
        kind, _, rest = line.partition(" ")
        if kind == "word":
            words.append(rest.split("  #")[0].strip())
        elif kind == "count":
            folder, count = rest.split()
            known[folder] = int(count)
        elif line.strip() and not line.startswith("#"):
            sys.exit(f"{RULES}:{number}: not a rule: {line}")
    pattern = re.compile(r"\b(?:" + "|".join(words) + r")\b", re.I)
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    found: dict[str, list[str]] = defaultdict(list)
    for name in filter(None, files):
        path = ROOT / name
        if path.suffix not in SUFFIXES or path == RULES or not path.is_file():
            continue
        folder = name.split("/")[0] if "/" in name else "."
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            found[folder] += [f"{name}:{number}: {match}" for match in pattern.findall(line)]
    if sys.argv[1:2] == ["--list"]:
        print("\n".join(found[sys.argv[2]]))
        return 0
    status = 0
    for folder in sorted(set(found) | set(known)):
        count, limit = len(found[folder]), known.get(folder, 0)
        if count > limit:
            print(
                f"FAIL {folder} has {count} words of {RULES.name}, {limit} are known: "
                f"tools/build/lint_prose.py --list {folder}"
            )
            status = 1
        elif count < limit:
            print(f"FAIL {folder} has only {count} words of {RULES.name}: write 'count {folder} {count}'")
            status = 1
    if not status:
        print(f"ok {sum(map(len, found.values()))} words are known")
    return status


if __name__ == "__main__":
    sys.exit(main())
