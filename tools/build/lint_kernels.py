#!/usr/bin/env python3
"""lint_kernels.py - check what nvcc generated for the kernels: no function uses local memory, and each kernel
has enough loads of 16 bytes in flight, and few loads in sequence before them.

usage: lint_kernels.py local|loads [FOLDER]     FOLDER has the images, build/kernels by default

local: a function keeps its variables in registers. Local memory is memory of the device, so a spilled variable costs
       bandwidth. ptxas reports it when the kernels are built.
loads: bandwidth requires loads in flight. cuobjdump lists the instructions, see wide_loads_in_flight() in sass.py. The
       loads of the LoRA kernels that depend on one another are limited, too; see loads_in_sequence(). Expand loads
       weights before it waits for shrink; see loads_before_waits().

Status 1: a function fails the check. Status 2: wrong arguments. Status 77: the kernels or cuobjdump do not exist."""

from __future__ import annotations

import sys
from pathlib import Path

import sass

# shrink: tiles of the largest class; expand: the weights of two steps or parts and four parts of y; attention: keys and
# values of 16 tokens, or of a warp's part of 32.
WANTED = {"block_copy": 4, "quantise": 4, "dequantise": 4, "kv_write": 4, "lora_shrink": 24, "lora_expand": 12}
WANTED |= {"attention_decode_64": 8, "attention_decode_128": 16, "attention_decode_256": 32}
WANTED |= {"attention_prefill_64": 4, "attention_prefill_128": 8, "attention_prefill_256": 16}
# The piece and the adapter are loaded at once.
SEQUENCE_MAX = {"lora_shrink": 1, "lora_expand": 1}
# From sm_90 on, expand loads weights and y before it waits for shrink: the number of these places, and loads of each.
BEFORE_WAITS = {"lora_expand": (10, 8)}


def local(images: list[Path]) -> list[str]:
    count, errors = 0, []
    for image in images:
        usage = image.with_suffix(".usage")
        if not usage.exists():
            return [f"{usage}: not found; remove {image} and build it again"]
        for (arch, name), used in sass.usages(usage).items():
            count += 1
            if local_bytes := used.stack + used.spill_stores + used.spill_loads:
                errors.append(f"{image.stem} {name} {arch}: {local_bytes} bytes of local memory")
    print(f"{count} functions, {len(errors)} with local memory")
    return errors


def loads(images: list[Path]) -> list[str]:
    tool = sass.cuobjdump()
    if not tool:
        print("cuobjdump was not found; tools/build/format installs it, or name it in CUOBJDUMP")
        sys.exit(77)
    errors, archs = [], set()
    counts = {}
    for image in images:
        for code in sass.codes(tool, image):
            archs.add(code.arch)
            if code.name in WANTED:
                counts[code.name, code.arch] = sass.wide_loads_in_flight(code.instructions)
            if code.name in SEQUENCE_MAX:
                count = sass.loads_in_sequence(code.instructions)
                if count > SEQUENCE_MAX[code.name]:
                    errors.append(f"{code.name} {code.arch}: {count} loads in sequence before the weights")
            if code.name in BEFORE_WAITS and code.arch != "sm_80":
                places, least = BEFORE_WAITS[code.name]
                before = sass.loads_before_waits(code.instructions)
                if len(before) != places or min(before) < least:
                    errors.append(
                        f"{code.name} {code.arch}: {before} loads before waits for the kernel before, expected {least}"
                        f" at {places} places"
                    )
    print(", ".join(f"{name} {arch}: {count}" for (name, arch), count in counts.items()))
    for name, limit in WANTED.items():
        for arch in archs:
            if counts.get((name, arch), 0) < limit:
                errors.append(
                    f"{name} {arch}: {counts.get((name, arch))} loads of 16 bytes in flight, expected {limit}"
                )
    return errors


def main() -> int:
    checks = {"local": local, "loads": loads}
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in checks:
        print("usage: lint_kernels.py local|loads [FOLDER]", file=sys.stderr)
        return 2
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else sass.IMAGES
    images = sorted(folder.glob("*.fatbin"))
    if not images:
        print("the kernels were built without nvcc, the compiler for a GPU")
        return 77
    errors = checks[sys.argv[1]](images)
    print(*errors, sep="\n")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
