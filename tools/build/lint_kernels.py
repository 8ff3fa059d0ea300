#!/usr/bin/env python3
"""lint_kernels.py - check what nvcc generated for the kernels: no function uses local memory, and each kernel
has enough loads of 16 bytes in flight.

usage: lint_kernels.py local|loads [FOLDER]     FOLDER has the images, build/kernels by default

local: a function keeps its variables in registers. Local memory is memory of the device, so a spilled variable costs
       bandwidth. ptxas reports it when the kernels are built.
loads: bandwidth requires loads in flight. cuobjdump lists the instructions, see wide_loads_in_flight() in sass.py.

tools/build/kernels.txt lists the exceptions. Status 1: a function is worse than the list permits, or better than the
list says. Status 77: the kernels or cuobjdump do not exist."""

from __future__ import annotations

import sys
from pathlib import Path

import sass

TABLE = "tools/build/kernels.txt"
# shrink: two tiles of the largest class; expand: the weights of two steps and four parts of y.
WANTED = {"block_copy": 4, "quantise": 4, "dequantise": 4, "lora_shrink": 24, "lora_expand": 12}
Counts = dict[tuple[str, str, str], int]


def known(kind: str) -> Counts:
    """Return the exceptions of a kind, by image, function and architecture."""
    found = {}
    for line in (sass.ROOT / TABLE).read_text().splitlines():
        words = line.split("#")[0].split()
        if words and words[0] == kind:
            found[words[1], words[2], words[3]] = int(words[4])
    return found


def compare(counts: Counts, limits: Counts, wanted: dict[str, int], worse: int, unit: str) -> list[str]:
    """Return the errors. worse: 1 if a larger count is worse, -1 if a smaller one is."""
    errors = []
    for place, count in counts.items():
        limit = limits.get(place, wanted.get(place[1], 0))
        if (count - limit) * worse > 0:
            errors.append(f"{' '.join(place)}: {count} {unit}, the limit is {limit}")
        elif place in limits and count != limit:
            errors.append(f"{' '.join(place)}: {count} {unit}; write this into {TABLE} instead of {limit}")
    archs = {arch for _, _, arch in counts}
    gone = [place for place in limits if place not in counts and place[2] in archs]
    return errors + [f"{' '.join(place)}: not found; remove it from {TABLE}" for place in gone]


def local(images: list[Path]) -> list[str]:
    counts = {}
    for image in images:
        usage = image.with_suffix(".usage")
        if not usage.exists():
            return [f"{usage}: not found; remove {image} and build it again"]
        for (arch, name), used in sass.usages(usage).items():
            counts[image.stem, name, arch] = used.stack + used.spill_stores + used.spill_loads
    print(f"{len(counts)} functions, {sum(count == 0 for count in counts.values())} without local memory")
    return compare(counts, known("local"), {}, 1, "bytes of local memory")


def loads(images: list[Path]) -> list[str]:
    tool = sass.cuobjdump()
    if not tool:
        print("cuobjdump was not found; tools/build/format installs it, or name it in CUOBJDUMP")
        sys.exit(77)
    counts = {}
    for image in images:
        for code in sass.codes(tool, image):
            if code.name in WANTED:
                counts[image.stem, code.name, code.arch] = sass.wide_loads_in_flight(code.instructions)
    print(", ".join(f"{name} {arch}: {count}" for (_, name, arch), count in counts.items()))
    return compare(counts, known("loads"), WANTED, -1, "loads of 16 bytes in flight")


def main() -> int:
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else sass.IMAGES
    images = sorted(folder.glob("*.fatbin"))
    if not images:
        print("the kernels were built without nvcc, the compiler for a GPU")
        return 77
    errors = {"local": local, "loads": loads}[sys.argv[1]](images)
    print("\n".join(errors))
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
