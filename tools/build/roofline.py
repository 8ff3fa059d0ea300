#!/usr/bin/env python3
"""roofline.py - estimate the time of each kernel on some GPUs, from what nvcc generated. `make
roofline` runs it.

usage: roofline.py            print the assumptions and all tables
       roofline.py --write    write the table of the LoRA kernels to docs/benchmarks.md

Status 2: wrong arguments. Status 77: the kernels or cuobjdump do not exist."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import sass

ASSUMPTIONS = """\
Nothing here is measured. Workload: 64 tokens with 64 adapters of rank R, in a layer of 4096 x 11008, fp16; copies of 64
MB in blocks of 64 KB; 32 M elements from and to int8, in groups of 128. Attention of 32 heads, with 8 heads of keys and
values: decode of 64 sequences of 4,096 tokens, and of one of 131,072; prefill of one sequence of 4,096 tokens. LoRA:
each adapter has one token, batches have at most 64 adapters of at most rank R, and no matrix crosses the end of a page.

bound      bytes / bandwidth of the data sheet. Each byte is moved once; content of the caches is not reused. The sums
           that the kernels store for each other remain in the second-level cache and are not counted.
in flight  bytes that all resident threads have requested at once: the loads of 16 bytes that a thread issues before it
           uses one (sass.py), on as many thread blocks as registers and shared memory permit.
memory     bytes / the smaller of the bandwidth and in flight / 700 ns, the latency under load; the last thread blocks,
           which do not fill the GPU, have less in flight.
issue      instructions of a warp, with the loop that loads once per iteration; one instruction per cycle and scheduler,
           four schedulers per multiprocessor. Branches that are not executed, such as those for partial tiles, are
           counted too, and so are instructions that only some warps execute, so this is an upper limit. For LoRA, the
           lower limit is the shortest path through all loads, tensor operations and stores (sass.py).
sequence   loads that a warp executes one after another before its main loads, read from the instructions for LoRA
           (sass.py) and assumed for the others; and loads, atomic operations and stores afterwards.
estimate   least: memory, one latency under load, and 350 ns for each load in sequence; most: the same with the larger
           of memory and issue. The start of the first launch, and thread blocks without work, are not included. The
           last two columns are the estimates divided by the bound.
both       shrink, then expand. The second launch begins 1.3 us after the end of shrink: the time that a launch of a
           graph takes on an H100 (Hazy Research, "Look Ma, No Bubbles!", 2025-05-27), assumed for each GPU. If expand
           starts early (below), a thread block of expand begins where one of shrink has ended; its wait for shrink ends
           350 ns after the sums were stored, and loading the sums takes 350 ns more. Shrink also loads a part of B to
           the second-level cache, which then supplies it at twice the bandwidth of the memory (an assumption; NVIDIA
           states 5,120 bytes per cycle for an A100, 3.5 times). least: the memory delivers A and x first, because the
           loads for B are issued last, and a warp executes the shortest path; most: it delivers this part of B first,
           and a warp executes all instructions.
latencies  350 and 700 ns are assumptions without a source; they have not been measured on any of these GPUs. The last
           columns of `ways` are the estimate of the present form / bound, least to most, if both are 30 % smaller or
           larger. For `both`, the time of a launch stays the same.
ways       estimate / bound, for both kernels in several forms, with the shortest path.
           limit         one load for the entry of the adapter, one latency under load, and all bytes, in one launch: no
                         kernel with a table of adapters can be faster
           separate      expand waits for shrink, and its loads begin then
           ahead         shrink also loads a part of B to the cache: the present form on an A100
           early         expand starts before the end of shrink and loads B before it waits (programmatic dependent
                         launch, from the H100 on)
           ahead, early  the present form from the H100 on
           B first       the present form, if the memory delivers this part of B before A
           one launch    thread blocks of expand are in the launch of shrink, and wait for counters: one more atomic
                         operation for the order of the thread blocks, one for the counter, and one load of the sums
           three         the present form, with three equal layers in each launch
prefill    bound: tensor operations at the dense rate of the data sheet, without the tokens that a query does not use.
           estimate: the largest of the tensor operations, at this rate, and the loads from shared memory, 128 bytes per
           cycle, and the instructions of the loop over tokens. Waits at barriers are not included, and hardware from
           the H100 on does not reach its rate with the instruction used (mma.sync), so the real time is longer."""

LOADED, IDLE, LAUNCH = 700e-9, 350e-9, 1300e-9
LATENCIES = (0.7, 1.3)  # factors of the first two, which are assumptions, for the ranges
CACHE = 2  # bandwidth of the second-level cache / bandwidth of the memory
AHEAD = 64 << 10  # LORA_AHEAD_BYTES in cuda/kernels/lora.h, per multiprocessor
GOAL = 1.3
RANKS = (8, 16, 32, 64, 128)
PAGE = sass.ROOT / "docs" / "benchmarks.md"


@dataclass
class Gpu:
    name: str
    arch: str
    processors: int
    bandwidth: float  # bytes per second
    clock: float
    shared: int  # bytes per multiprocessor for thread blocks, each of which takes 1 KiB more
    tensor: float  # operations per second, fp16, dense
    early: bool  # a launch can start before the end of the one before it


GPUS = (
    Gpu("A100 80 GB SXM", "sm_80", 108, 2.039e12, 1.41e9, 164 << 10, 312e12, False),
    Gpu("H100 SXM", "sm_90", 132, 3.35e12, 1.98e9, 228 << 10, 989e12, True),
    Gpu("B200", "sm_100", 148, 8.0e12, 1.96e9, 228 << 10, 2250e12, True),
)


@dataclass
class Launch:
    """A launch: `code` is the function of roofline.cu, `kernel` the real one, which determines the registers."""

    code: str
    kernel: str
    size: float  # bytes that are moved
    blocks: int
    threads: int
    shared: int  # bytes per thread block
    iterations: float  # of the loop that loads
    after: int  # loads, atomic operations and stores that wait for another one, after that loop
    before: int | None = None  # the same before that loop; None: read from the instructions
    # asynchronous copies, tensor operations and stores of a warp, for the shortest path; None: it is not used
    path: tuple[int, int, int] | None = None
    weights: float = 0  # of size, bytes of the matrix


def launches(rank: int) -> tuple[Launch, Launch]:
    """Return the two launches of a decoding step; the shapes are those of cuda/kernels/lora.c."""
    columns, outputs, adapters = 4096, 11008, 64
    tiles, eights = columns // 128, 1 if rank <= 8 else 2 if rank <= 16 else 4
    ranks = next(r for r in (8, 16, 32, 64, 128) if rank <= r)
    late = rank <= 32  # expand adds the splits
    shrink = Launch(
        f"shrink_8_{eights * 8}",
        "lora_shrink",
        adapters * 2 * (rank * columns + columns),
        adapters * 8 * math.ceil(rank / 32),
        128,
        max(4 * (eights + 2) * 128 * 16, 16 + 4 * eights * 8 * 18 * 4),
        tiles // 8,
        1 if late else 3,  # [counter, partial sums of the other splits,] sums
        None,
        (4 * (eights + 1), max(2, eights), 1),
        adapters * 2 * rank * columns,
    )
    expand = Launch(
        f"expand_{ranks}",
        "lora_expand",
        adapters * 2 * (rank * outputs + 2 * outputs),
        adapters * math.ceil(outputs / (512 if rank <= 16 else 256)),
        128,
        16 * (4 + 4 * ranks),
        max(1, ranks / 32),
        0,
        None,
        (0, 8 if ranks == 8 else 16, 2 if ranks <= 16 else 1),
        adapters * 2 * rank * outputs,
    )
    return shrink, expand


COPIES = (
    Launch("block_copy", "block_copy", 2 * (64 << 20), 1024 * 5, 256, 0, 1, 0, 1),
    Launch("quantise_f16", "quantise", 32e6 * (3 + 2 / 128), 2112, 256, 0, 32e6 / 128 / 8 / (2112 * 8), 0, 0),
    # 4,096 tokens with 8 heads of 128
    Launch("kv_write_f16", "kv_write", 2 * 32768 * (128 * 3 + 2), 64 * 8 * 2, 256, 0, 1, 0, 1),
    Launch("dequantise_f16", "dequantise", 32e6 * (3 + 2 / 128), 2112, 256, 0, 32e6 / 64 / (2112 * 256), 0, 0),
)


HEADS, KV_HEADS = 32, 8
HEAD_SIZES = (64, 128, 256)


def decoding(size: int, int8: bool, sequences: int, tokens: int) -> Launch:
    """Return the launch of one token for each sequence; the shape is that of cuda/kernels/attention.c."""
    warps = 4 if size <= 128 else 2
    splits = min(32, math.ceil(1024 / (sequences * KV_HEADS)))
    vector = size * (1 if int8 else 2)
    values = 2 * vector if int8 and size == 64 else vector
    slots = 16 * size * 2 + warps * 16 * (vector + values)
    return Launch(
        f"decode_{size}_{'int8' if int8 else 'f16'}",
        f"attention_decode_{size}",
        sequences * (tokens * KV_HEADS * 2 * (vector + 2 * int8) + 2 * HEADS * size * 2),
        sequences * KV_HEADS * splits,
        warps * 32,
        max(slots, 16 + warps * 16 * (size + 6) * 4),
        tokens / splits / (16 * warps) + 1,
        2,  # counter, results of the other splits
        3,  # sequence, number of the block, queries
    )


@dataclass
class Estimate:
    bound: float
    memory: float
    issue: float
    issue_least: float
    before: int
    after: int
    resident: int  # thread blocks per multiprocessor
    loads: int
    instructions: float
    in_flight: float

    @property
    def sequence(self) -> int:
        return self.before + self.after

    @property
    def least(self) -> float:
        return max(self.memory, self.issue_least) + LOADED + self.sequence * IDLE

    @property
    def most(self) -> float:
        return max(self.memory, self.issue) + LOADED + self.sequence * IDLE


def has_tensor(body: list[sass.Instruction]) -> bool:
    return any(each.name.startswith("HMMA") for each in body)


def instructions(code: sass.Code, iterations: float, once: int) -> float:
    """Return the number of instructions of a warp that executes `once` of them if the loop has one iteration."""
    bodies = [body for body in sass.loops(code.instructions) if any(each.wide_load or each.wide_copy for each in body)]
    body = min([each for each in bodies if has_tensor(each)] or bodies, key=len, default=[])
    return once + (iterations - 1) * len(body)


def estimate(gpu: Gpu, launch: Launch, code: sass.Code, registers: int) -> Estimate:
    warps = launch.threads // 32
    resident = min(
        65536 // (math.ceil(registers / 8) * 8 * launch.threads),
        gpu.shared // (launch.shared + 1024),
        2048 // launch.threads,
        32,
    )
    loads = sass.wide_loads_in_flight(code.instructions)
    at_once, left, memory = resident * gpu.processors, launch.blocks, 0.0
    while left > 0:
        blocks = min(left, at_once)
        wanted = launch.size * blocks / launch.blocks
        in_flight = min(blocks * launch.threads * loads * 16.0, wanted)
        memory += wanted / min(gpu.bandwidth, in_flight / LOADED)
        left -= blocks
    count = instructions(code, launch.iterations, len(code.instructions))
    least = 0.0
    if launch.path:
        least = instructions(code, launch.iterations, sass.shortest_path(code.instructions, launch.path))
    before = sass.loads_in_sequence(code.instructions) if launch.before is None else launch.before
    rate = gpu.processors * 4 * gpu.clock / (warps * launch.blocks)
    return Estimate(
        launch.size / gpu.bandwidth,
        memory,
        count / rate,
        least / rate,
        before,
        launch.after,
        resident,
        loads,
        count,
        min(launch.blocks, at_once) * launch.threads * loads * 16.0,
    )


def pair(
    shrink: Estimate, expand: Estimate, ahead: float, early: bool, first: bool = False, most: bool = False
) -> float:
    """Return the time of both kernels. ahead: bytes of B that shrink loads, as a part of the bytes of expand. first:
    they arrive before A. most: warps execute all instructions."""
    cached = ahead * expand.memory
    begin = shrink.before * IDLE + LOADED
    arrived = begin + shrink.memory + (cached if first else 0)
    ended = max(arrived, begin + (shrink.issue if most else shrink.issue_least))
    stored = ended + shrink.after * IDLE
    started = ended if early else stored + LAUNCH
    requested = started + expand.before * IDLE
    return max(
        max(begin + shrink.memory + cached, requested + LOADED) + expand.memory - cached,
        requested + IDLE + cached / CACHE,
        requested + IDLE + (expand.issue if most else expand.issue_least),
        stored + 2 * IDLE if early else 0,
    )


def times_text(times: tuple[float, ...], bound: float) -> str:
    """Return the columns of times, of which the last two are estimates."""
    return "".join(f"{time * 1e6:>8.1f}" for time in times) + "".join(f"{time / bound:>8.2f}" for time in times[-2:])


def line(label: str, one: Estimate) -> str:
    shape = f"{one.resident:>12}{one.loads:>7}{one.sequence:>10}{one.instructions:>14.0f}{one.in_flight / 1e6:>11.1f}"
    return f"{label:<22}{shape}" + times_text((one.bound, one.memory, one.issue, one.least, one.most), one.bound)


def both_line(gpu: Gpu, rank: int, both: list[Estimate], ahead: float) -> str:
    bound = sum(e.bound for e in both)
    times = (bound, sum(e.memory for e in both), sum(e.issue for e in both))
    times += tuple(pair(*both, ahead, gpu.early, worst, worst) for worst in (False, True))
    return f"{f'both, rank {rank}':<22}{'':54}" + times_text(times, bound)


LATENCY_NAMES = tuple(f"latency {100 * factor - 100:+.0f} %" for factor in LATENCIES)
WAYS = ("limit", "separate", "ahead", "early", "ahead, early", "B first", "one launch", "three")


def ways(gpu: Gpu, both: list[Estimate], ahead: float) -> list[float | None]:
    """Return the limit and the estimates of WAYS, divided by the bound; None: the GPU does not support it."""
    bound = sum(e.bound for e in both)
    unsaved = dataclasses.replace(both[0], after=0)
    three = [
        dataclasses.replace(e, bound=3 * e.bound, memory=3 * e.memory, issue_least=3 * e.issue_least) for e in both
    ]
    times = [
        IDLE + LOADED + bound,
        pair(*both, 0, False),
        pair(*both, ahead, False),
        pair(*both, 0, True) if gpu.early else None,
        pair(*both, ahead, True) if gpu.early else None,
        pair(*both, ahead, gpu.early, True),
        IDLE + max(pair(unsaved, both[1], ahead, True), both[0].least + 3 * IDLE),
        pair(*three, ahead / 3, gpu.early) / 3,
    ]
    return [time and time / bound for time in times]


def ways_line(rank: int, found: list[float | None], ranges: list[str]) -> str:
    texts = "".join(f"{'-' if way is None else f'{way:.2f}':>14}" for way in found)
    texts += "".join(f"{each:>14}" for each in ranges)
    return f"{f'rank {rank}':<10}{texts}{'  the limit is above the goal, 1.3' if found[0] > GOAL else ''}"


HEADING = (
    f"{'':22}  blocks per  loads  sequence  instructions  in flight"
    "   bound  memory   issue   estimate, us  estimate/bound\n"
    f"{'':22}   processor                                       MB"
    "      us      us      us   least    most   least    most"
)


Codes = dict[tuple[str, str], sass.Code]
Usages = dict[tuple[str, str], sass.Usage]


@contextlib.contextmanager
def latencies(factor: float) -> Iterator[None]:
    """Multiply the latencies during a block."""
    global LOADED, IDLE
    before = LOADED, IDLE
    LOADED, IDLE = LOADED * factor, IDLE * factor
    yield
    LOADED, IDLE = before


def lora(gpu: Gpu, rank: int, codes: Codes, usages: Usages) -> tuple[list[Estimate], float]:
    """Return the estimates of shrink and expand, and the part of the bytes of expand that shrink loads."""
    shapes = launches(rank)
    both = [
        estimate(gpu, launch, codes[gpu.arch, launch.code], usages[gpu.arch, launch.kernel].registers)
        for launch in shapes
    ]
    return both, min(AHEAD * gpu.processors, shapes[1].weights) / shapes[1].size


def range_text(gpu: Gpu, rank: int, codes: Codes, usages: Usages, factor: float = 1) -> str:
    """Return the estimate of the present form / bound, with the latencies times a factor: "1.17 to 1.75"."""
    with latencies(factor):
        both, ahead = lora(gpu, rank, codes, usages)
        bound = sum(e.bound for e in both)
        return " to ".join(f"{pair(*both, ahead, gpu.early, worst, worst) / bound:.2f}" for worst in (False, True))


def table(gpu: Gpu, codes: Codes, usages: Usages) -> list[str]:
    """Return the lines for one GPU."""

    def one(launch: Launch) -> Estimate:
        return estimate(gpu, launch, codes[gpu.arch, launch.code], usages[gpu.arch, launch.kernel].registers)

    lines = [f"{gpu.name}: {gpu.processors} multiprocessors, {gpu.bandwidth / 1e12:.2f} TB/s, {gpu.clock / 1e9} GHz"]
    lines.append(HEADING)
    others = []
    for rank in RANKS:
        both, ahead = lora(gpu, rank, codes, usages)
        lines += [line(f"lora_shrink, rank {rank}", both[0]), line(f"lora_expand, rank {rank}", both[1])]
        lines.append(both_line(gpu, rank, both, ahead))
        ranges = [range_text(gpu, rank, codes, usages, factor) for factor in LATENCIES]
        others.append(ways_line(rank, ways(gpu, both, ahead), ranges))
    lines += [line(launch.kernel, one(launch)) for launch in COPIES]
    names = f"{'ways':<10}" + "".join(f"{name:>14}" for name in (*WAYS, *LATENCY_NAMES))
    return [*lines, names, *others, *attention(gpu, codes, usages)]


def prefill(gpu: Gpu, size: int, code: sass.Code) -> str:
    """Return the line for the prefill of one sequence."""
    tokens, step = 4096, 32 if size <= 128 else 16
    body = min(filter(has_tensor, sass.loops(code.instructions)), key=len, default=[])
    rows = tokens * HEADS // 16  # groups of 16 rows, one per warp
    loops = rows * tokens / 2 / step  # half of the tokens on average
    operations = sum(each.name.startswith("HMMA.16816") for each in body) * 2 * 16 * 8 * 16
    parts = sum(each.name.startswith("LDS") and ".128" in each.name for each in body)
    bound = 4 * size * HEADS * tokens * tokens / 2 / gpu.tensor
    tensor = loops * operations / gpu.tensor
    shared = loops * parts * 512 / (gpu.processors * 128 * gpu.clock)
    issue = loops * len(body) / (gpu.processors * 4 * gpu.clock)
    times = (bound, tensor, shared, issue, max(tensor, shared, issue))
    return f"{f'prefill {size}':<16}" + "".join(f"{t * 1e6:>10.1f}" for t in times) + f"{times[-1] / bound:>10.2f}"


def attention(gpu: Gpu, codes: Codes, usages: Usages) -> list[str]:
    """Return the lines of the attention kernels for one GPU."""
    lines = ["decode: head size and element, sequences x tokens"]
    for sequences, tokens in ((64, 4096), (1, 131072)):
        for size in HEAD_SIZES:
            for int8 in (False, True):
                launch = decoding(size, int8, sequences, tokens)
                registers = usages[gpu.arch, launch.kernel].registers
                label = f"{launch.code[7:].replace('_', ' ')}, {sequences} x {tokens}"
                lines.append(line(label, estimate(gpu, launch, codes[gpu.arch, launch.code], registers)))
    lines.append(f"{'':16}     bound    tensor    shared     issue  estimate  estimate/bound; us")
    return lines + [prefill(gpu, size, codes[gpu.arch, f"prefill_{size}_f16"]) for size in HEAD_SIZES]


def page_table(codes: Codes, usages: Usages) -> str:
    """Return the table of the LoRA kernels for docs/benchmarks.md."""
    names = ("GPU", "rank", "bound, us", "estimate / bound", *LATENCY_NAMES, *WAYS)
    lines = [f"| {' | '.join(names)} |", "|" + " --- |" * len(names)]
    for gpu in GPUS:
        for rank in RANKS:
            both, ahead = lora(gpu, rank, codes, usages)
            bound = sum(e.bound for e in both)
            ranges = [range_text(gpu, rank, codes, usages, factor) for factor in (1, *LATENCIES)]
            texts = ["-" if way is None else f"{way:.2f}" for way in ways(gpu, both, ahead)]
            cells = (gpu.name, str(rank), f"{bound * 1e6:.1f}", *ranges, *texts)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    if sys.argv[1:] not in ([], ["--write"]):
        print("usage: roofline.py [--write]", file=sys.stderr)
        return 2
    tool = sass.cuobjdump()
    image = sass.ROOT / "build" / "roofline" / "roofline.fatbin"
    if not tool or not image.exists():
        print("the kernels or cuobjdump were not found; install nvcc, and run `make lint`, which installs cuobjdump")
        return 77
    codes = {(code.arch, code.name): code for code in sass.codes(tool, image)}
    usages = {}
    for path in sass.IMAGES.glob("*.usage"):
        usages.update(sass.usages(path))
    if sys.argv[1:]:
        text = PAGE.read_text()
        begin, end = (re.escape(f"<!-- {name} -->\n") for name in ("roofline", "end"))
        new = page_table(codes, usages)
        PAGE.write_text(re.sub(f"({begin}).*?({end})", lambda found: found[1] + new + found[2], text, flags=re.DOTALL))
        return 0
    print(ASSUMPTIONS)
    for gpu in GPUS:
        known = any(arch == gpu.arch for arch, _ in codes)
        print("", *(table(gpu, codes, usages) if known else [f"{gpu.name}: nvcc does not generate its code"]), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
