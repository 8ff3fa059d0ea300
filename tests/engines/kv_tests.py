"""A cache of gpool, memory for the arguments of its attention kernel, and the attention in PyTorch."""

from __future__ import annotations

import ctypes
from typing import Any, List, Tuple

import torch

from harness import AgentTest

from gpool._library import library

LAYERS, HEADS, KV_HEADS, SIZE, BLOCK, ELEMENT = 2, 8, 2, 64, 16, 2
LENGTHS = (1, 16, 37, 100)


class CacheTest(AgentTest):
    def setUp(self) -> None:
        super().setUp()
        torch.manual_seed(1)
        self.stream = self.pool.stream()
        self.cache = self.pool.create_kv_cache(
            LAYERS, KV_HEADS, SIZE, self.stream, block_tokens=BLOCK, max_blocks=64, watermark_blocks=0
        )
        layout = self.cache.layout
        self.assertEqual(layout.chunk_bytes, layout.chunk_blocks * layout.block_bytes)  # blocks are side by side
        self.raw = torch.from_dlpack(self.cache.view("int8"))
        self.scratch = self.pool.alloc(2)
        self.memory = torch.from_dlpack(self.scratch.view("uint8"))

    def use_int8(self) -> None:
        """Replace the cache by one whose blocks are int8."""
        del self.raw
        self.cache.close()
        self.cache = self.pool.create_kv_cache(
            LAYERS, KV_HEADS, SIZE, self.stream, block_tokens=BLOCK, max_blocks=30, watermark_blocks=0, int8=True
        )
        self.raw = torch.from_dlpack(self.cache.view())

    def tearDown(self) -> None:
        del self.raw, self.memory
        self.scratch.free()
        self.cache.close()
        super().tearDown()

    def place(self, offset: int, tensor: torch.Tensor) -> Tuple[int, int]:
        """Copy a tensor to the scratch memory; return its address and the next free offset."""
        data = tensor.contiguous().view(torch.uint8).flatten()
        self.memory[offset : offset + data.numel()] = data
        return self.scratch.address + offset, (offset + data.numel() + 15) // 16 * 16

    def attend(self, queries: torch.Tensor, counts: List[int], sequences: List[int], described: Any) -> torch.Tensor:
        """Return the attention of the last counts[i] tokens of each sequence."""
        rows, begin = [], 0
        for sequence, count in zip(sequences, counts):
            info = self.cache.sequence_info(sequence)
            rows.append([info.row, info.tokens, begin, count])
            begin += count
        self.memory.zero_()
        described.queries, end = self.place(0, queries)
        described.sequences, end = self.place(end, torch.tensor(rows, dtype=torch.int32))
        described.output, end = self.scratch.address + end, end + queries.numel() * ELEMENT
        described.sequence_count, described.query_tokens, described.max_query_count = len(rows), begin, max(counts)
        needed = ctypes.c_uint64()
        output = described.output - self.scratch.address
        with self.cache.handle as pointer:
            self.assertEqual(
                library().gpool_kv_attention_workspace(pointer, ctypes.byref(described), ctypes.byref(needed)), 0
            )
            described.workspace = self.scratch.address + (end + 15) // 16 * 16 if needed.value else 0
            self.assertLessEqual(end + 15 + needed.value, self.memory.numel())
            self.assertEqual(library().gpool_kv_attention(pointer, ctypes.byref(described)), 0)
        self.stream.synchronize()
        found = self.memory[output : output + queries.numel() * ELEMENT].view(torch.float16)
        return found.reshape(queries.shape).clone()

    def expected(self, view: torch.Tensor, queries: torch.Tensor, counts: List[int], sequences: List[int]) -> Any:
        """Compute the attention in float32 from what vLLM's view of the layer has."""
        results, begin = [], 0
        for sequence, length, count in zip(sequences, LENGTHS, counts):
            tokens = view[self.cache.table(sequence)].permute(0, 2, 1, 3).flatten(0, 1)[:length]
            keys, values = (part.permute(1, 0, 2).float() for part in tokens.split(SIZE, dim=-1))
            mask = torch.ones(count, length, dtype=torch.bool).tril(length - count)
            query = queries[begin : begin + count].permute(1, 0, 2).float()
            result = torch.nn.functional.scaled_dot_product_attention(
                query, keys, values, attn_mask=mask, enable_gqa=True
            )
            results.append(result.permute(1, 0, 2))
            begin += count
        return torch.cat(results)
