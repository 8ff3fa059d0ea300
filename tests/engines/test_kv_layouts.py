"""gpool_kv_attention() reads blocks as vLLM lays them out: the layouts of FlashInfer, NHD and HND, and others; and
blocks that gpool_kv_write() has filled with int8 codes and scales, in the layout that gpool describes.

Requirements: K13, K18.
"""

from __future__ import annotations

import ctypes
from typing import List, Tuple

import torch
from kv_tests import BLOCK, ELEMENT, HEADS, KV_HEADS, LAYERS, LENGTHS, SIZE, CacheTest
from vllm.v1.attention.backends.utils import get_flashinfer_layout_string
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheTensor,
    compute_layout_strides,
    create_kv_cache_views,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

from gpool import _abi

OUTERMOST = tuple(layout for layout in KVCacheLayout if layout.is_block_outermost)
"""the layouts in which a block has all layers, as in a cache of gpool"""


class Layouts(CacheTest):
    def views(self, layout: KVCacheLayout) -> List[torch.Tensor]:
        """Return vLLM's view of each layer, [blocks, heads, tokens, keys and values]."""
        blocks = self.cache.layout.max_blocks
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=KV_HEADS, head_size=SIZE, dtype=torch.float16)
        strides = compute_layout_strides(spec, blocks, LAYERS, layout)
        self.assertEqual(strides[1], self.cache.layout.block_bytes)
        tensor = KVCacheTensor(self.raw.numel(), [str(layer) for layer in range(LAYERS)], strides[0], strides[1])
        return create_kv_cache_views(self.raw, spec, blocks, layout, tensor)

    def check(self, layout: KVCacheLayout, name: str) -> None:
        """Fill the blocks of some sequences through vLLM's views, and compare the results."""
        self.assertEqual(get_flashinfer_layout_string(layout), name)
        views = self.views(layout)
        sequences = [self.cache.allocate(length) for length in LENGTHS]
        for sequence in sequences:
            for view in views:
                blocks = self.cache.table(sequence)
                view[blocks] = torch.randn(len(blocks), *view.shape[1:], dtype=torch.float16)
        self.cache.sync()
        for layer, view in enumerate(views):
            for counts in ([1] * len(LENGTHS), [min(length, 20) for length in LENGTHS]):
                queries = torch.randn(sum(counts), HEADS, SIZE, dtype=torch.float16)
                described = _abi.gpool_kv_attention(
                    size=ctypes.sizeof(_abi.gpool_kv_attention),
                    heads=HEADS,
                    query_stride=HEADS * SIZE,
                    output_stride=HEADS * SIZE,
                    keys=(view.storage_offset() - views[0].storage_offset()) * ELEMENT,
                    values=(view.storage_offset() - views[0].storage_offset() + SIZE) * ELEMENT,
                    head_stride=view.stride(1) * ELEMENT,
                    token_stride=view.stride(2) * ELEMENT,
                )
                with self.subTest(layout=layout.name, layer=layer, counts=counts):
                    found = self.attend(queries, counts, sequences, described)
                    expected = self.expected(view, queries, counts, sequences)
                    self.assertLess((found.float() - expected).abs().max().item(), 4e-3)
                    self.assertGreater(expected.abs().max().item(), 0.1)
        del views, view
        for sequence in sequences:
            self.cache.free(sequence)

    def test_heads_within_tokens(self) -> None:
        self.check(KVCacheLayout.BLNHC, "NHD")

    def test_tokens_within_heads(self) -> None:
        self.check(KVCacheLayout.BLHNC, "HND")

    def test_layers_within_heads(self) -> None:
        self.check(KVCacheLayout.BHLNC, "HND")

    def int8_views(self, layer: int) -> Tuple[torch.Tensor, torch.Tensor]:
        """Return PyTorch's views of a layer of int8 blocks: codes, [2, blocks, tokens, heads, size], and scales."""
        layout = self.cache.layout
        codes = self.raw.as_strided(
            (2, layout.max_blocks, BLOCK, KV_HEADS, SIZE),
            (layout.values - layout.keys, layout.block_bytes, layout.token_stride, layout.head_stride, 1),
            layer * layout.layer_bytes + layout.keys,
        )
        scales = self.raw.view(torch.bfloat16).as_strided(
            (2, layout.max_blocks, BLOCK, KV_HEADS),
            tuple(
                stride // 2
                for stride in (
                    layout.value_scales - layout.key_scales,
                    layout.block_bytes,
                    layout.scale_token_stride,
                    layout.scale_head_stride,
                )
            ),
            (layer * layout.layer_bytes + layout.key_scales) // 2,
        )
        return codes, scales

    def test_int8(self) -> None:
        self.use_int8()
        layout = self.cache.layout
        sequences = [self.cache.allocate(length) for length in LENGTHS]
        slots = torch.cat(
            [
                torch.tensor(self.cache.table(sequence))[torch.arange(length) // BLOCK] * BLOCK
                + torch.arange(length) % BLOCK
                for sequence, length in zip(sequences, LENGTHS)
            ]
        )
        counts = [min(length, 20) for length in LENGTHS]
        self.cache.sync()
        for layer in range(LAYERS):
            written = torch.randn(2, len(slots), KV_HEADS, SIZE, dtype=torch.float16)
            keys, end = self.place(0, written[0])
            values, end = self.place(end, written[1])
            places, end = self.place(end, slots)
            self.cache.write(layer, keys, values, places, len(slots))
            self.stream.synchronize()
            codes, scales = self.int8_views(layer)
            blocks, within = slots // BLOCK, slots % BLOCK
            stored = codes[:, blocks, within].float() * scales[:, blocks, within].float().unsqueeze(-1)
            lost = (stored - written.float()).abs().amax(-1) / written.float().abs().amax(-1)
            self.assertLess(lost.max().item(), 1.001 / 252)
            # The views of vLLM have keys and values of a head side by side.
            view = torch.zeros(layout.max_blocks, KV_HEADS, BLOCK, 2 * SIZE)
            view[blocks, :, within] = written.float().permute(1, 2, 0, 3).flatten(2)
            queries = torch.randn(sum(counts), HEADS, SIZE, dtype=torch.float16)
            first = layer * layout.layer_bytes
            described = _abi.gpool_kv_attention(
                size=ctypes.sizeof(_abi.gpool_kv_attention),
                flags=_abi.GPOOL_KV_ATTENTION_INT8,
                heads=HEADS,
                query_stride=HEADS * SIZE,
                output_stride=HEADS * SIZE,
                keys=first + layout.keys,
                values=first + layout.values,
                key_scales=first + layout.key_scales,
                value_scales=first + layout.value_scales,
                token_stride=layout.token_stride,
                head_stride=layout.head_stride,
                scale_token_stride=layout.scale_token_stride,
                scale_head_stride=layout.scale_head_stride,
            )
            found = self.attend(queries, counts, sequences, described)
            expected = self.expected(view, queries, counts, sequences)
            self.assertLess((found.float() - expected).abs().max().item(), 0.05)
            self.assertGreater(expected.abs().max().item(), 0.1)
        del codes, scales

    def test_these_are_all(self) -> None:
        self.assertEqual({layout.name for layout in OUTERMOST}, {"BLNHC", "BLHNC", "BHLNC"})
