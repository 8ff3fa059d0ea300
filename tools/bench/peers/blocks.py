#!/usr/bin/env python3
"""Play one workload on one manager of KV blocks, and print the results as one JSON object. peers.py starts it.

usage: blocks.py SUBJECT WORKLOAD

subjects: vllm-pool (vLLM's BlockPool), vllm-manager (its KVCacheManager), kvcached, gpool (a KV cache of the pool in
GPOOL_DIR). Blocks have 16 tokens and 128 KiB, and a page of 2 MiB has 16 blocks. No subject caches prefixes.

works:
  kv-long   allocate 8,192 blocks (131,072 tokens) and free them; ns per block
  kv-page   allocate the 16 blocks of a page and free them; ns per page
  kv-serve  serve a trace of requests, 64 at a time: allocate the prompt, append the answer token by token, free; ns per
            token of the answers
"""

from __future__ import annotations

import csv
import ctypes
import json
import os
import statistics
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

TRACE = Path(__file__).resolve().parents[3] / "tools/demo/traces/azure_conv.csv"
TOKENS, BLOCK_BYTES, PAGE_BLOCKS, BLOCKS = 16, 128 << 10, 16, 9000
LONG, REQUESTS, BATCH = 8192, 100, 64
PAGE_MIB = 2


def spent_ns() -> int:
    """Return the time that this thread has spent in calls of the double of the driver."""
    if "GPU_DOUBLE" not in os.environ:
        return 0
    calls, ns = ctypes.c_uint64(), ctypes.c_uint64()
    ctypes.CDLL("libcuda.so.1").gpuDoubleSpent(ctypes.byref(calls), ctypes.byref(ns))
    return ns.value


class VllmPool:
    """vLLM's BlockPool; a sequence is a list of blocks, extended by the caller, as KVCacheManager does."""

    def __init__(self) -> None:
        from vllm import __version__
        from vllm.v1.core.block_pool import BlockPool

        self.version = f"vLLM {__version__.split('+')[0]}"
        self.pool = BlockPool(BLOCKS, enable_caching=False, hash_block_size=TOKENS)

    def allocate(self, tokens: int) -> Any:
        return self.pool.get_new_blocks((tokens + TOKENS - 1) // TOKENS)

    def free(self, blocks: Any) -> None:
        self.pool.free_blocks(blocks)


class VllmManager:
    """vLLM's KVCacheManager, called as its scheduler does."""

    def __init__(self) -> None:
        import torch
        from vllm import SamplingParams, __version__
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.request import Request

        self.version = f"vLLM {__version__.split('+')[0]}"
        spec = FullAttentionSpec(block_size=TOKENS, num_kv_heads=1, head_size=2048, dtype=torch.bfloat16)
        config = KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)])
        self.manager = KVCacheManager(
            config,
            max_model_len=LONG * TOKENS + 1,
            scheduler_block_size=TOKENS,
            hash_block_size=TOKENS,
            enable_caching=False,
        )
        self.parameters = SamplingParams(max_tokens=1)
        self.request, self.count = Request, 0

    def allocate(self, tokens: int) -> Any:
        self.count += 1
        request = self.request(str(self.count), [0] * tokens, self.parameters, None)
        assert self.manager.allocate_slots(request, tokens) is not None
        request.num_computed_tokens = tokens
        return request

    def append(self, request: Any) -> None:
        assert self.manager.allocate_slots(request, 1) is not None
        request.num_computed_tokens += 1

    def free(self, request: Any) -> None:
        self.manager.free(request)


class Kvcached:
    """kvcached's KVCacheManager with its C++ extension, with one layer and one buffer."""

    def __init__(self) -> None:
        from importlib.metadata import version

        from kvcached import vmm_ops
        from kvcached.kv_cache_manager import KVCacheManager
        from kvcached.utils import CONTIGUOUS_LAYOUT

        self.version = f"kvcached {version('kvcached')}"
        vmm_ops.init_kvcached("cuda:0", 2 << 20, CONTIGUOUS_LAYOUT)
        self.tensors = vmm_ops.create_kv_tensors(BLOCKS // PAGE_BLOCKS * (2 << 20), 2, "cuda:0", 1, num_kv_buffers=1)
        self.manager = KVCacheManager(
            BLOCKS // PAGE_BLOCKS * PAGE_BLOCKS, TOKENS, BLOCK_BYTES // TOKENS, 1, num_kv_buffers=1
        )

    def allocate(self, tokens: int) -> Any:
        blocks = self.manager.alloc((tokens + TOKENS - 1) // TOKENS)
        assert blocks is not None
        return blocks

    def free(self, blocks: Any) -> None:
        self.manager.free(blocks)

    def close(self) -> None:
        self.manager.shutdown()


class Gpool:
    """A KV cache of the Python package of gpool."""

    def __init__(self) -> None:
        import gpool

        self.version = f"gpool {gpool.version()}"
        self.pool = gpool.Pool()
        self.stream = self.pool.stream()
        self.cache = self.pool.create_kv_cache(
            1, 16, BLOCK_BYTES // TOKENS // 64, self.stream, block_tokens=TOKENS, max_blocks=BLOCKS, watermark_blocks=0
        )
        self.allocate, self.append, self.free = self.cache.allocate, self.cache.append, self.cache.free


SUBJECTS = {"vllm-pool": VllmPool, "vllm-manager": VllmManager, "kvcached": Kvcached, "gpool": Gpool}


def rounds(subject: Any, tokens: int, count: int) -> float:
    """Return the time of an allocation and its free in nanoseconds, without the time in the double: the median of
    `count` rounds, after `count` rounds to warm up.
    """
    times = []
    for _ in range(2 * count):
        spent = spent_ns()
        begin = time.perf_counter_ns()
        sequence = subject.allocate(tokens)
        subject.free(sequence)
        end = time.perf_counter_ns()
        times.append(end - begin - (spent_ns() - spent))
    return statistics.median(times[count:])


def serve(subject: Any) -> float:
    """Return the nanoseconds for each token of the answers."""
    with TRACE.open(newline="") as file:
        waiting = deque(
            (int(row["ContextTokens"]), int(row["GeneratedTokens"]))
            for row, _ in zip(csv.DictReader(file), range(REQUESTS))
        )
    total = sum(answer for _, answer in waiting)
    running: list[list[Any]] = []
    begin = time.perf_counter_ns()
    while waiting or running:
        while waiting and len(running) < BATCH:
            prompt, answer = waiting.popleft()
            running.append([subject.allocate(prompt), answer])
        for entry in running:
            subject.append(entry[0])
            entry[1] -= 1
            if not entry[1]:
                subject.free(entry[0])
        running = [entry for entry in running if entry[1]]
    return (time.perf_counter_ns() - begin) / total


def main() -> None:
    if len(sys.argv) != 3 or sys.argv[1] not in SUBJECTS:
        sys.exit(__doc__)
    subject = SUBJECTS[sys.argv[1]]()
    work = sys.argv[2]
    if work == "kv-long":
        ns = rounds(subject, LONG * TOKENS, 20) / LONG
    elif work == "kv-page":
        ns = rounds(subject, PAGE_BLOCKS * TOKENS, 500)
    elif work == "kv-serve":
        ns = serve(subject)
    else:
        sys.exit(__doc__)
    result = {"version": subject.version, "ns": round(ns, 1)}
    if sys.argv[1] == "gpool":
        result["peak_mib"] = {"kv-long": LONG // PAGE_BLOCKS * PAGE_MIB, "kv-page": PAGE_MIB}.get(work, 0)
    print(json.dumps(result), flush=True)
    if hasattr(subject, "close"):
        subject.close()


main()
