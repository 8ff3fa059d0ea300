"""sass.py - read the code that nvcc generated: registers and local memory, as ptxas prints them, and instructions, as
cuobjdump prints them. lint_kernels.py and roofline.py use it."""

from __future__ import annotations

import heapq
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "build" / "kernels"


def short_name(mangled: str) -> str:
    """Return the name of a function with its template arguments, such as shrink<0,4,4>."""
    found = re.search(r"\d+([a-z_]+)I((?:L[a-z]\d+E)+)E", mangled)
    if not found:
        return mangled
    arguments = ",".join(re.findall(r"L[a-z](\d+)E", found[2]))
    return f"{found[1]}<{arguments}>"


@dataclass
class Usage:
    """The registers of a kernel, and the local memory of a kernel or function, in bytes."""

    registers: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0


def usages(path: Path) -> dict[tuple[str, str], Usage]:
    """Return the usage by architecture and function, from the output of ptxas -v."""
    found: dict[tuple[str, str], Usage] = {}
    arch = entry = name = ""
    for line in path.read_text().splitlines():
        if match := re.search(r"Compiling entry function '(\w+)' for '(\w+)'", line):
            entry, arch = match.groups()
        elif match := re.search(r"Function properties for (\w+)", line):
            name = match[1]
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            usage = found.setdefault((arch, short_name(name)), Usage())
            usage.stack, usage.spill_stores, usage.spill_loads = map(int, match.groups())
        elif match := re.search(r"Used (\d+) registers", line):
            found.setdefault((arch, entry), Usage()).registers = int(match[1])
    return found


def cuobjdump() -> str | None:
    """Return the path of cuobjdump, or None. tools/build/format installs one, with tools/build/lint.txt."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    installed = (ROOT / "build" / "lint").glob("lib/python3*/site-packages/nvidia/*/bin/cuobjdump")
    places = [os.environ.get("CUOBJDUMP", "cuobjdump"), f"{home}/bin/cuobjdump", *map(str, installed)]
    return next(filter(None, map(shutil.which, places)), None)


@dataclass
class Instruction:
    address: int
    name: str
    operands: str
    guarded: bool  # it is executed only if a predicate is true

    @cached_property
    def wide_load(self) -> bool:
        """True for a load of 128 bits from device memory to registers."""
        return self.name.startswith(("LDG.", "LD.")) and ".128" in self.name

    @cached_property
    def wide_copy(self) -> bool:
        """True for an asynchronous copy of 128 bits from device memory to shared memory."""
        return self.name.startswith("LDGSTS.") and ".128" in self.name

    @cached_property
    def jumps_to(self) -> int | None:
        """The address to which it jumps, if it is a jump to a constant address."""
        if not self.name.startswith("BRA"):
            return None
        found = re.fullmatch(r"(?:[!~]?\w+, )*(?:`?\(?)0x([0-9a-f]+)\)?\s*", self.operands)
        return int(found[1], 16) if found else None


@dataclass
class Code:
    """The instructions of one kernel, with the functions that it calls."""

    arch: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)


def codes(tool: str, image: Path) -> list[Code]:
    """Return the code of each kernel of a fat binary, for each architecture."""
    listing = subprocess.run([tool, "-sass", str(image)], capture_output=True, text=True, check=True).stdout
    found: list[Code] = []
    arch = ""
    for line in listing.splitlines():
        if ";" in line:
            if match := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+ )?\s*([A-Z][\w.]*)\s*([^;]*);", line):
                found[-1].instructions.append(Instruction(int(match[1], 16), match[3], match[4], bool(match[2])))
        elif match := re.search(r"code for (sm_\w+)", line):
            arch = match[1]
        elif match := re.search(r"Function : (\w+)", line):
            found.append(Code(arch, match[1]))
    return found


def loops(instructions: list[Instruction]) -> list[list[Instruction]]:
    """Return the bodies of the loops: the instructions from the target of each jump back to the jump."""
    backward = [(each.jumps_to, each.address) for each in instructions if each.jumps_to is not None]
    return [[each for each in instructions if begin <= each.address <= end] for begin, end in backward if begin < end]


def loads_in_sequence(instructions: list[Instruction]) -> int:
    """Return the least number of loads that a kernel with tensor operations executes one after another before its main
    loads, which are its first asynchronous copy, or the loads for its first tensor operation.

    A warp issues instructions in order, so the first use of a loaded register delays all instructions that follow. Of
    the paths to the main loads, the one with the fewest loads in sequence counts. Loads of less than 16 bytes under a
    condition are not counted."""
    copies = any(each.wide_copy for each in instructions)
    place = {each.address: i for i, each in enumerate(instructions)}
    # Number of loads that have ended, position, and the loads in flight: the numbers of their registers, and the
    # number of loads that have ended when they end.
    paths: list[tuple[int, int, list[tuple[int, int, int]]]] = [(0, 0, [])]
    seen: set[tuple[int, tuple[tuple[int, int, int], ...]]] = set()
    while paths:
        ended, at, flying = heapq.heappop(paths)
        if (at, tuple(flying)) in seen or at >= len(instructions):
            continue
        seen.add((at, tuple(flying)))
        each = instructions[at]
        used = [int(number) for number in re.findall(r"\bR(\d+)", each.operands)]
        ended = max([ended, *(end for first, last, end in flying if any(first <= r <= last for r in used))])
        if each.wide_copy:
            return ended
        if each.name.startswith("HMMA") and not copies:
            return ended - 1
        flying = [load for load in flying if load[2] > ended]
        if each.name.startswith(("LDG.", "LD.")) and used and (each.wide_load or not each.guarded):
            width = 4 if each.wide_load else 2 if ".64" in each.name else 1
            flying.append((used[0], used[0] + width - 1, ended + 1))
        if each.jumps_to in place:
            heapq.heappush(paths, (ended, place[each.jumps_to], flying))
        if each.guarded or not each.name.startswith(("BRA", "EXIT", "RET")) or "," in each.operands:
            heapq.heappush(paths, (ended, at + 1, flying))
    return 0


def shortest_path(instructions: list[Instruction], wanted: tuple[int, int, int]) -> int:
    """Return the least number of instructions that a warp issues from the first one to an end of a kernel, on a path
    with a number of asynchronous copies, and then of tensor operations on fp16, and of stores of 16 bytes (or of 4, if
    the kernel has no others)."""
    place = {each.address: i for i, each in enumerate(instructions)}
    store = "STG.E.128" if any(each.name.startswith("STG.E.128") for each in instructions) else "STG.E"
    paths: list[tuple[int, int, tuple[int, int, int]]] = [(0, 0, wanted)]  # length, position, what is still wanted
    seen = set()
    while paths:
        length, at, left = heapq.heappop(paths)
        if at >= len(instructions) or (at, left) in seen:
            continue
        seen.add((at, left))
        each = instructions[at]
        if left[0]:
            left = (left[0] - each.wide_copy, left[1], left[2])
        elif each.name.startswith("HMMA") and "BF16" not in each.name:
            left = (0, max(0, left[1] - 1), left[2])
        elif each.name == store:
            left = (0, left[1], max(0, left[2] - 1))
        if each.name.startswith("EXIT") and not any(left):
            return length + 1
        target = int(each.operands.split("0x")[1], 16) if each.name.startswith("CALL.REL") else each.jumps_to
        if target in place:
            heapq.heappush(paths, (length + 1, place[target], left))
        if each.guarded or not each.name.startswith(("BRA", "EXIT", "RET")) or "," in each.operands:
            heapq.heappush(paths, (length + 1, at + 1, left))
    raise ValueError("no such path")


def loads_before_waits(instructions: list[Instruction]) -> list[int]:
    """Return, for each wait for the kernel before this one (griddepcontrol.wait) that is not followed by the end, the
    number of loads of 16 bytes since the previous wait or tensor operation."""
    found, count = [], 0
    for each, after in zip(instructions, instructions[1:]):
        count += each.wide_load
        if each.name.startswith("ACQBULK") and not after.name.startswith("EXIT"):
            found.append(count)
        if each.name.startswith(("ACQBULK", "HMMA")):
            count = 0
    return found


def wide_loads_in_flight(instructions: list[Instruction]) -> int:
    """Return the largest number of loads of 128 bits that a thread has issued before it uses the result of one.

    The instructions are read in the order of their addresses. Loads before a jump back, a call or the end are not in
    flight after it. Asynchronous copies are in flight until a wait for their group, which may be in a later iteration
    of the loop; several iterations are read."""
    bodies = [body for body in loops(instructions) if any(each.wide_copy for each in body)]
    return max(in_flight(instructions), *(in_flight(body * 4) for body in bodies), 0)


def in_flight(instructions: list[Instruction]) -> int:
    """Return the same for instructions that are executed once, in this order."""
    registers: list[range] = []
    groups: list[int] = []
    group = most = 0
    for each in instructions:
        if each.wide_copy:
            group += 1
        elif each.name.startswith("LDGDEPBAR"):
            groups, group = [*groups, group], 0
        elif each.name.startswith("DEPBAR.LE"):
            left = int(each.operands.split(",")[1], 16)
            groups = groups[-left:] if left else []
        else:
            if registers or each.wide_load:
                used = [int(number) for number in re.findall(r"\bR(\d+)", each.operands)]
                last = max((i for i, held in enumerate(registers) if any(r in held for r in used)), default=-1)
                registers = registers[last + 1 :]
                if each.wide_load and used:
                    registers.append(range(used[0], used[0] + 4))
            back = each.jumps_to is not None and each.jumps_to <= each.address
            if back or each.name.startswith(("EXIT", "RET", "CALL")):
                registers = []
            if each.name.startswith("EXIT"):
                groups, group = [], 0
        most = max(most, len(registers) + sum(groups) + group)
    return most
