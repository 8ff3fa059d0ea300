#!/usr/bin/env python3
"""steps.py - print the cost of the calls of an engine's step in Python and in C, medians of a run; `make bench-python`.

usage: steps.py LIBRARY [ROUNDS]      LIBRARY: steps.c, compiled; ROUNDS: default 1000

A round makes 16 calls of each step in C and then the same in Python, with the same pool, range, stream and KV
cache, on the host back end. The figures of Python include the step of the loop.
"""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import sys
import time
from typing import Any, Callable, List

from harness import Agent, gpool

CALLS = range(16)
STEPS = (
    "alloc pin unpin free commit offer reclaim decommit record signal done wait "
    "kv_allocate kv_append_block kv_append kv_table kv_fork kv_free"
).split()
TOKENS = 128
MOST_NS = 300  # that a call may cost on top of C's


def python_round(
    pool: gpool.Pool, elastic: gpool.Range, stream: gpool.Stream, cache: gpool.KvCache, say: Callable[[float], None]
) -> None:
    """Report the nanoseconds of a call of each step."""
    now = time.perf_counter_ns
    start = now()
    blocks = [pool.alloc(1) for _ in CALLS]
    say(now() - start)
    block = blocks[0]
    start = now()
    for _ in CALLS:
        block.pin()
    say(now() - start)
    start = now()
    for _ in CALLS:
        block.unpin()
    say(now() - start)
    start = now()
    for each in blocks:
        each.free()
    say(now() - start)
    start = now()
    for page in CALLS:
        elastic.commit(page, 1)
    say(now() - start)
    start = now()
    for page in CALLS:
        elastic.offer(page, 1)
    say(now() - start)
    start = now()
    for page in CALLS:
        elastic.reclaim(page, 1)
    say(now() - start)
    start = now()
    for page in CALLS:
        elastic.decommit(page, 1)
    say(now() - start)
    start = now()
    fences = [stream.record() for _ in CALLS]
    say(now() - start)
    start = now()
    for fence in fences:
        fence.signal()
    say(now() - start)
    start = now()
    for fence in fences:
        fence.done  # noqa: B018
    say(now() - start)
    start = now()
    for fence in fences:
        fence.wait()
    say(now() - start)
    start = now()
    sequences = [cache.allocate(TOKENS) for _ in CALLS]
    say(now() - start)
    for tokens in (8, 1):
        start = now()
        for sequence in sequences:
            cache.append(sequence, tokens)
        say(now() - start)
    start = now()
    for sequence in sequences:
        cache.table(sequence)
    say(now() - start)
    start = now()
    children = [cache.fork(sequence) for sequence in sequences]
    say(now() - start)
    start = now()
    for child in children:
        cache.free(child)
    say(now() - start)
    for sequence in sequences:
        cache.free(sequence)


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print(__doc__, end="", file=sys.stderr)
        return 2
    rounds = int(sys.argv[2]) if len(sys.argv) == 3 else 1000
    agent = Agent()
    c: List[List[float]] = []
    python: List[List[float]] = []
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(agent.pool())
        elastic = stack.enter_context(pool.reserve_range(len(CALLS)))
        stream = stack.enter_context(pool.stream(host_signaled=True))
        cache = pool.create_kv_cache(1, 1, 64, stack.enter_context(pool.stream()), block_tokens=16, max_blocks=256)
        stack.enter_context(cache)
        steps: Any = ctypes.CDLL(sys.argv[1]).steps
        pointer_type = ctypes.c_void_p
        steps.argtypes = [pointer_type, pointer_type, ctypes.c_uint32, pointer_type, ctypes.POINTER(ctypes.c_double)]
        for _ in range(rounds):
            filled = (ctypes.c_double * len(STEPS))()
            with pool.handle as pointer, elastic.handle as range_pointer, cache.handle as cache_pointer:
                if steps(pointer, range_pointer, stream.number, cache_pointer, filled):
                    raise AssertionError("a call in C has failed")
            c.append(list(filled))
            taken: List[float] = []
            python_round(pool, elastic, stream, cache, taken.append)
            python.append([ns / len(CALLS) for ns in taken])
    agent.stop()
    print(f"{'call':15} {'C':>8} {'Python':>8} {'on top':>8}   ns, medians of {rounds} rounds")
    most = 0.0
    for name, *columns in zip(STEPS, zip(*c), zip(*python)):
        low, high = (statistics.median(column) for column in columns)
        most = max(most, high - low)
        print(f"{name:15} {low:8.0f} {high:8.0f} {high - low:8.0f}")
    print(f"the most on top of C: {most:.0f} ns; the goal: at most {MOST_NS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
