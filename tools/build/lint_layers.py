#!/usr/bin/env python3
"""lint_layers.py - check that files include and call only files in the rooms that their own room may use.

usage: lint_layers.py [--root FOLDER] [--objects FOLDER] [--list ROOM ROOM]

  --root     the source tree; default: the tree of this script
  --objects  its object files, which are read with nm; default: ROOT/build/release/obj
  --list     print the includes and calls from one room to another

The rules are in tools/build/layers.txt below the root. A file belongs to the room with the longest matching folder or
file name. It may include and call its own room and the rooms that its room uses. A room that uses `public` may call the
symbols that client/libgpool.map and client/lora/libgpool_lora.map export. For each pair of rooms, the rules have the
number of known includes and calls that break a rule (the debt). A number may only decrease; the rules must then be
updated. Where the rules have a number, the same applies to the files in the largest cycle of calls in a folder, and to
the symbols of one room that another room uses.

Exit status: 0; 1 with a line for each finding; 2 if the rules or the objects cannot be read.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
Edges = dict[str, set[str]]
Names = dict[tuple[str, str], set[str]]


class Rules:
    """The rules in a file.

    rooms: name -> the rooms that it uses, None: all. debts, symbols: (from, to) -> count. cycles: folder -> files."""

    def __init__(self, path: Path) -> None:
        self.rooms: dict[str, set[str] | None] = {}
        self.debts: dict[tuple[str, str], int] = {}
        self.symbols: dict[tuple[str, str], int] = {}
        self.cycles: dict[str, int] = {}
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = line.split("#")[0].split()
            try:
                if not words:
                    continue
                if words[0] == "room":
                    self.rooms[words[1]] = None if words[2:] == ["*"] else set(words[2:])
                elif words[0] == "debt":
                    self.debts[words[1], words[2]] = int(words[3])
                elif words[0] == "symbols":
                    self.symbols[words[1], words[2]] = int(words[3])
                elif words[0] == "cycle":
                    self.cycles[words[1]] = int(words[2])
                else:
                    raise ValueError
            except (ValueError, IndexError):
                sys.exit(f"{path}:{number}: not a rule: {line}")
        for room, uses in self.rooms.items():
            for used in uses or ():
                if used not in self.rooms and used != "public":
                    sys.exit(f"{path}: room {room} uses {used}, which is not a room")

    def room_of(self, file: str) -> str | None:
        found = [room for room in self.rooms if file == room or file.startswith(room + "/")]
        return max(found, key=len) if found else None

    def may(self, source: str, target: str) -> bool:
        uses = self.rooms[source]
        return source == target or uses is None or target in uses


def includes(root: Path, files: list[str]) -> Edges:
    edges: Edges = defaultdict(set)
    for file in files:
        for target in INCLUDE.findall((root / file).read_text(errors="replace")):
            beside = (
                str((root / file).parent.joinpath(target).resolve().relative_to(root))
                if (root / file).parent.joinpath(target).is_file()
                else ""
            )
            if (root / target).is_file():
                edges[file].add(target)
            elif beside:
                edges[file].add(beside)
    return edges


def calls(objects: Path, files: list[str], is_public: Callable[[str, str], bool]) -> tuple[Edges, Names]:
    """Return the calls, by the symbols of the existing object files, except those for which is_public(file, symbol) is
    true. The second result is (file, called file) -> symbols.
    """
    defined: dict[str, list[str]] = defaultdict(list)
    wanted: dict[str, list[str]] = defaultdict(list)
    sources = {str(objects / file[:-2]) + ".o": file for file in files if file.endswith(".c")}
    present = [path for path in sources if Path(path).is_file()]
    if not present:
        sys.exit(f"lint_layers: there are no objects below {objects}; build first: make")
    output = subprocess.run(["nm", "-A", *present], capture_output=True, text=True, check=True).stdout
    for line in output.splitlines():
        path, _, rest = line.partition(":")
        words = rest.split()
        if words[-2] == "U":
            wanted[sources[path]].append(words[-1])
        elif words[-2] in "TDBRVWC":
            defined[words[-1]].append(sources[path])

    def definition(file: str, name: str) -> str | None:
        """Return the file that defines a symbol. Programs in several folders may define the same name; each uses its
        own."""
        found = defined.get(name, [])
        beside = [other for other in found if Path(other).parent == Path(file).parent]
        return (beside or found or [None])[0]

    edges: Edges = defaultdict(set)
    uses: Names = defaultdict(set)
    for file, names in wanted.items():
        edges[file] = set()
        for name in names:
            target = None if is_public(file, name) else definition(file, name)
            if target and target != file:
                edges[file].add(target)
                uses[file, target].add(name)
    return edges, uses


def largest_cycle(edges: Edges, folder: str) -> list[str]:
    """Return the largest strongly connected component of the files below a folder (Tarjan's algorithm, without
    recursion)."""
    nodes = sorted({file for file in edges if file.startswith(folder + "/")})
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    held: set[str] = set()
    best: list[str] = []
    for start in nodes:
        if start in number:
            continue
        work = [(start, iter(sorted(t for t in edges[start] if t.startswith(folder + "/"))))]
        number[start] = low[start] = len(number)
        stack.append(start)
        held.add(start)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in number:
                    number[target] = low[target] = len(number)
                    stack.append(target)
                    held.add(target)
                    work.append(
                        (target, iter(sorted(t for t in edges.get(target, set()) if t.startswith(folder + "/"))))
                    )
                    break
                if target in held:
                    low[node] = min(low[node], number[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    component = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        held.discard(component[-1])
                    best = max(best, component, key=len)
    return sorted(best)


def main() -> int:
    parser = argparse.ArgumentParser(description="Check that files include and call only what their room may use.")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--objects", type=Path)
    parser.add_argument("--list", nargs=2, metavar="ROOM")
    options = parser.parse_args()
    root = options.root.resolve()
    rules = Rules(root / "tools/build/layers.txt")
    files = sorted(
        str(path.relative_to(root))
        for top in ("agent", "client", "shm", "proto", "cuda", "tools")
        for path in (root / top).rglob("*")
        if path.suffix in (".c", ".h", ".def", ".cu")
    )
    status = 0
    roomless = [file for file in files if rules.room_of(file) is None]
    for file in roomless:
        print(f"FAIL {file}: belongs to no room of tools/build/layers.txt")
        status = 1
    maps = "".join((root / "client" / name).read_text() for name in ("libgpool.map", "lora/libgpool_lora.map"))
    exported = set(re.findall(r"\b(gpool_\w+);", maps))

    def is_public(file: str, symbol: str) -> bool:
        room = rules.room_of(file)
        return symbol in exported and room is not None and "public" in (rules.rooms[room] or ())

    call_edges, uses = calls((options.objects or root / "build/release/obj").resolve(), files, is_public)
    broken: dict[tuple[str, str], list[str]] = defaultdict(list)
    for verb, edges in (("includes", includes(root, files)), ("calls", call_edges)):
        for file, targets in sorted(edges.items()):
            for target in sorted(targets):
                source_room, target_room = rules.room_of(file), rules.room_of(target)
                if source_room and target_room and not rules.may(source_room, target_room):
                    broken[source_room, target_room].append(f"{file} {verb} {target}")
    if options.list:
        print("\n".join(broken[tuple(options.list)]))
        return 0
    for pair in sorted(set(broken) | set(rules.debts)):
        found, allowed = len(broken[pair]), rules.debts.get(pair, 0)
        if found > allowed:
            print(f"FAIL {pair[0]} may not use {pair[1]}: {found} includes and calls, {allowed} are known")
            print("\n".join(f"    {line}" for line in broken[pair]))
            status = 1
        elif found < allowed:
            print(
                f"FAIL {pair[0]} uses {pair[1]} only {found} times now: "
                f"write 'debt {pair[0]} {pair[1]} {found}', or nothing for 0"
            )
            status = 1
    used: Names = defaultdict(set)
    for (file, target), names in uses.items():
        used[rules.room_of(file) or "", rules.room_of(target) or ""] |= names
    for pair, allowed in rules.symbols.items():
        if len(used[pair]) != allowed:
            print(
                f"FAIL {pair[0]} uses {len(used[pair])} symbols of {pair[1]}, the rules say {allowed}:\n"
                f"    {' '.join(sorted(used[pair]))}"
            )
            status = 1
    for folder, allowed in rules.cycles.items():
        cycle = largest_cycle(call_edges, folder)
        if len(cycle) != allowed:
            print(
                f"FAIL the largest cycle of {folder} has {len(cycle)} files, the rules say {allowed}:\n"
                f"    {' '.join(cycle)}"
            )
            status = 1
    if not status:
        print(
            f"ok {len(files)} files in {len(rules.rooms)} rooms, {sum(rules.debts.values())} known exceptions, "
            "largest cycles: " + ", ".join(f"{folder} {count}" for folder, count in rules.cycles.items())
        )
    return status


if __name__ == "__main__":
    sys.exit(main())
