#!/usr/bin/env python3
"""roofline.py - estimate the time of each kernel on some GPUs, from what nvcc generated. `make
roofline` runs it.

usage: roofline.py

Status 77: the kernels or cuobjdump do not exist."""

from __future__ import annotations

import math
import sys
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
           counted too, and so are instructions that only some warps execute, so this is an upper limit.
sequence   loads that a warp executes one after another before its main loads, read from the instructions for LoRA
           (sass.py) and assumed for the others; and loads, atomic operations and stores afterwards.
estimate   least: memory, one latency under load, and 350 ns for each load in sequence; most: the same with the larger
           of memory and issue. The launches, and thread blocks without work, are not included. The last two columns are
           the estimates divided by the bound.
prefill    bound: tensor operations at the dense rate of the data sheet, without the tokens that a query does not use.
           estimate: the largest of the tensor operations, at this rate, and the loads from shared memory, 128 bytes per
           cycle, and the instructions of the loop over tokens. Waits at barriers are not included, and hardware from
           the H100 on does not reach its rate with the instruction used (mma.sync), so the real time is longer."""

LOADED, IDLE = 700e-9, 350e-9


@dataclass
class Gpu:
    name: str
    arch: str
    processors: int
    bandwidth: float  # bytes per second
    clock: float
    shared: int  # bytes per multiprocessor for thread blocks, each of which takes 1 KiB more
    tensor: float  # operations per second, fp16, dense


GPUS = (
    Gpu("A100 80 GB SXM", "sm_80", 108, 2.039e12, 1.41e9, 164 << 10, 312e12),
    Gpu("H100 SXM", "sm_90", 132, 3.35e12, 1.98e9, 228 << 10, 989e12),
    Gpu("B200", "sm_100", 148, 8.0e12, 1.96e9, 228 << 10, 2250e12),
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
    fixed: float  # latencies
    sequence: int
    resident: int  # thread blocks per multiprocessor
    loads: int
    instructions: float
    in_flight: float


def has_tensor(body: list[sass.Instruction]) -> bool:
    return any(each.name.startswith("HMMA") for each in body)


def instructions(code: sass.Code, iterations: float) -> float:
    """Return the number of instructions that a warp executes at most."""
    bodies = [body for body in sass.loops(code.instructions) if any(each.wide_load or each.wide_copy for each in body)]
    body = min([each for each in bodies if has_tensor(each)] or bodies, key=len, default=[])
    return len(code.instructions) + (iterations - 1) * len(body)


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
    count = instructions(code, launch.iterations)
    before = sass.loads_in_sequence(code.instructions) if launch.before is None else launch.before
    issue = count * warps * launch.blocks / (gpu.processors * 4 * gpu.clock)
    return Estimate(
        launch.size / gpu.bandwidth,
        memory,
        issue,
        LOADED + (before + launch.after) * IDLE,
        before + launch.after,
        resident,
        loads,
        count,
        min(launch.blocks, at_once) * launch.threads * loads * 16.0,
    )


def line(label: str, total: list[Estimate]) -> str:
    bound = sum(e.bound for e in total)
    least = sum(e.memory + e.fixed for e in total)
    most = sum(max(e.memory, e.issue) + e.fixed for e in total)
    first, shape = total[0], " " * 54
    if len(total) == 1:
        shape = f"{first.resident:>12}{first.loads:>7}{first.sequence:>10}"
        shape += f"{first.instructions:>14.0f}{first.in_flight / 1e6:>11.1f}"
    times = (bound, sum(e.memory for e in total), sum(e.issue for e in total), least, most)
    return (
        f"{label:<22}{shape}"
        + "".join(f"{time * 1e6:>8.1f}" for time in times)
        + f"{least / bound:>8.2f}{most / bound:>8.2f}"
    )


HEADING = (
    f"{'':22}  blocks per  loads  sequence  instructions  in flight"
    "   bound  memory   issue   estimate, us  estimate/bound\n"
    f"{'':22}   processor                                       MB"
    "      us      us      us   least    most   least    most"
)


def table(gpu: Gpu, codes: dict[tuple[str, str], sass.Code], usages: dict[tuple[str, str], sass.Usage]) -> list[str]:
    """Return the lines for one GPU."""

    def one(launch: Launch) -> Estimate:
        return estimate(gpu, launch, codes[gpu.arch, launch.code], usages[gpu.arch, launch.kernel].registers)

    lines = [f"{gpu.name}: {gpu.processors} multiprocessors, {gpu.bandwidth / 1e12:.2f} TB/s, {gpu.clock / 1e9} GHz"]
    lines.append(HEADING)
    for rank in (8, 16, 32, 64, 128):
        both = [one(launch) for launch in launches(rank)]
        lines += [line(f"lora_shrink, rank {rank}", both[:1]), line(f"lora_expand, rank {rank}", both[1:])]
        lines.append(line(f"both, rank {rank}", both))
    lines += [line(launch.kernel, [one(launch)]) for launch in COPIES]
    return lines + attention(gpu, codes, usages)


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


def attention(
    gpu: Gpu, codes: dict[tuple[str, str], sass.Code], usages: dict[tuple[str, str], sass.Usage]
) -> list[str]:
    """Return the lines of the attention kernels for one GPU."""
    lines = ["decode: head size and element, sequences x tokens"]
    for sequences, tokens in ((64, 4096), (1, 131072)):
        for size in HEAD_SIZES:
            for int8 in (False, True):
                launch = decoding(size, int8, sequences, tokens)
                registers = usages[gpu.arch, launch.kernel].registers
                label = f"{launch.code[7:].replace('_', ' ')}, {sequences} x {tokens}"
                lines.append(line(label, [estimate(gpu, launch, codes[gpu.arch, launch.code], registers)]))
    lines.append(f"{'':16}     bound    tensor    shared     issue  estimate  estimate/bound; us")
    return lines + [prefill(gpu, size, codes[gpu.arch, f"prefill_{size}_f16"]) for size in HEAD_SIZES]


def main() -> int:
    tool = sass.cuobjdump()
    image = sass.ROOT / "build" / "roofline" / "roofline.fatbin"
    if not tool or not image.exists():
        print("the kernels or cuobjdump were not found; install nvcc, and run `make lint`, which installs cuobjdump")
        return 77
    codes = {(code.arch, code.name): code for code in sass.codes(tool, image)}
    usages = {}
    for path in sass.IMAGES.glob("*.usage"):
        usages.update(sass.usages(path))
    print(ASSUMPTIONS)
    for gpu in GPUS:
        known = any(arch == gpu.arch for arch, _ in codes)
        print("", *(table(gpu, codes, usages) if known else [f"{gpu.name}: nvcc does not generate its code"]), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
