"""FlashInfer's paged cache finds the same elements as gpool, in both of its layouts, NHD and HND. Its kernels that
append tokens, called on the CPU (flashinfer_pages.cu), fill blocks that gpool_kv_attention() reads.

Requirements: K13.
"""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, List, NamedTuple, Optional

import torch
from kv_tests import BLOCK, ELEMENT, HEADS, KV_HEADS, LAYERS, LENGTHS, SIZE, CacheTest

from gpool import KvCache, _abi

HERE = Path(__file__).resolve().parent
HEADERS = Path(sys.prefix) / "flashinfer" / "flashinfer" / "data"
NAMES = ("NHD", "HND")
ELEMENTS = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
"""in the order of struct pages"""
SHAPES = ((1, 64), (2, 128), (3, 80), (8, 256))
"""heads and their size"""


class Layer(NamedTuple):
    """The description of one layer in a block, in bytes, as in gpool_kv_layout and gpool_kv_attention."""

    keys: int
    values: int
    token_stride: int
    head_stride: int

    @classmethod
    def of(cls, name: str, layer: int, tokens: int, heads: int, size: int, element: int) -> Layer:
        vector, plane = size * element, tokens * heads * size * element
        strides = (heads * vector, vector) if name == "NHD" else (vector, tokens * vector)
        return cls(2 * layer * plane, (2 * layer + 1) * plane, *strides)


class Pages(ctypes.Structure):
    """struct pages of flashinfer_pages.cu."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("heads", "page_tokens", "size", "batch", "heads_first", "element")),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("strides", ctypes.c_int64 * 3),
        ("indices", ctypes.c_void_p),
        ("indptr", ctypes.c_void_p),
        ("last_tokens", ctypes.c_void_p),
    ]


def include_of_cuda() -> Path:
    """Return the folder with the headers that tools/build/cuda.mk finds."""
    homes = [Path(home) for home in (os.environ.get("CUDA_HOME", "/usr/local/cuda"), HERE.parents[1] / "build/cuda")]
    places = [path for home in homes for path in (home / "include", *home.glob("targets/*/include"))]
    return next(path for path in places if (path / "cuda_runtime.h").exists())


def compiled() -> Any:
    includes = [HEADERS / "include", *(HEADERS / "cccl" / name for name in ("libcudacxx/include", "cub", "thrust"))]
    with tempfile.TemporaryDirectory() as folder:
        command = ["g++", "-x", "c++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
        command += [f"-isystem{path}" for path in (*includes, include_of_cuda())]
        subprocess.run([*command, "-o", f"{folder}/pages.so", HERE / "flashinfer_pages.cu"], check=True)
        pages = ctypes.CDLL(f"{folder}/pages.so")
    pages.pages_offset.restype = pages.pages_protected_offset.restype = ctypes.c_size_t
    pages.pages_append.restype = ctypes.c_bool
    return pages


class FlashInfer(CacheTest):
    pages: Any

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.pages = compiled()

    def described(
        self, cache: KvCache, name: str, layer: Layer, shape: Any, element: torch.dtype, sequences: List[int]
    ) -> Pages:
        """Return FlashInfer's cache with the blocks of the sequences as its pages."""
        tables = [cache.table(sequence) for sequence in sequences]
        ends = torch.tensor([0, *(len(table) for table in tables)]).cumsum(0)
        lasts = [(cache.sequence_info(sequence).tokens - 1) % cache.layout.block_tokens + 1 for sequence in sequences]
        self.kept = [torch.tensor(numbers, dtype=torch.int32) for numbers in (sum(tables, []), ends.tolist(), lasts)]
        strides = (layer.token_stride, layer.head_stride) if name == "NHD" else (layer.head_stride, layer.token_stride)
        bytes_of = element.itemsize
        return Pages(
            shape[0],
            cache.layout.block_tokens,
            shape[1],
            len(sequences),
            NAMES.index(name),
            ELEMENTS.index(element),
            cache.layout.address + layer.keys,
            cache.layout.address + layer.values,
            (ctypes.c_int64 * 3)(*(stride // bytes_of for stride in (cache.layout.block_bytes, *strides))),
            *(tensor.data_ptr() for tensor in self.kept),
        )

    def offset(self, pages: Pages, value: bool, *place: int) -> int:
        return int(self.pages.pages_offset(ctypes.byref(pages), value, *place))

    def places_agree(self, cache: KvCache, pages: Pages, layer: Layer, element: int, sequences: List[int]) -> None:
        """Compare the addresses of some elements, by the number of a block and by its place in the tables."""
        table = sum((cache.table(sequence) for sequence in sequences), [])
        for _ in range(100):
            number = random.randrange(len(table))
            head, token = random.randrange(pages.heads), random.randrange(pages.page_tokens)
            within, value = random.randrange(pages.size), random.random() < 0.5
            first = layer.values if value else layer.keys
            address = cache.address(table[number]) + first + token * layer.token_stride + head * layer.head_stride
            base = pages.values if value else pages.keys
            place = (head, token, within)
            found = self.offset(pages, value, table[number], *place)
            self.assertEqual(base + found * element, address + within * element)
            protected = self.pages.pages_protected_offset
            arguments = (ctypes.byref(pages), value, number, *place)
            self.assertEqual(protected(*arguments, len(table)), found)
            self.assertEqual(protected(*arguments, number), 0)
        for i, sequence in enumerate(sequences):
            self.assertEqual(self.pages.pages_length(ctypes.byref(pages), i), cache.sequence_info(sequence).tokens)

    def strides_agree(self, pages: Pages) -> None:
        """Compare with the strides that FlashInfer computes from the name of the layout, within a block."""
        own = Pages.from_buffer_copy(pages)
        own.strides = (ctypes.c_int64 * 3)()
        for value in (False, True):
            for place in ((0, 0, 0), (0, 1, 0), (1, 0, 0), (pages.heads - 1, pages.page_tokens - 1, pages.size - 1)):
                self.assertEqual(self.offset(own, value, 0, *place), self.offset(pages, value, 0, *place))

    def test_places(self) -> None:
        for heads, size in SHAPES:
            for tokens in (1, BLOCK, 64):
                for element in ELEMENTS:
                    cache = self.pool.create_kv_cache(
                        LAYERS,
                        heads,
                        size,
                        self.stream,
                        "int8" if element.itemsize == 1 else "float16",
                        block_tokens=tokens,
                        max_blocks=256,
                        watermark_blocks=0,
                    )
                    sequences = [cache.allocate(length) for length in LENGTHS]
                    for name in NAMES:
                        for number in range(LAYERS):
                            layer = Layer.of(name, number, tokens, heads, size, element.itemsize)
                            pages = self.described(cache, name, layer, (heads, size), element, sequences)
                            with self.subTest(heads=heads, size=size, tokens=tokens, element=element, name=name):
                                self.places_agree(cache, pages, layer, element.itemsize, sequences)
                                self.strides_agree(pages)
                    cache.close()

    def append(self, pages: Pages, keys: torch.Tensor, values: torch.Tensor, positions: Optional[torch.Tensor]) -> None:
        """Append tokens at [sequence, position], or the last token of each sequence."""
        places = [None, None] if positions is None else [column.contiguous() for column in positions.int().T]
        arguments = [keys, values, *places]
        pointers = [ctypes.c_void_p(None if each is None else each.data_ptr()) for each in arguments]
        self.assertTrue(self.pages.pages_append(ctypes.byref(pages), *pointers, keys.shape[0]))

    def check_appended(self, name: str) -> None:
        """Let FlashInfer append all tokens of some sequences, and then their last ones again."""
        sequences = [self.cache.allocate(length) for length in LENGTHS]
        positions = torch.tensor([(i, j) for i, length in enumerate(LENGTHS) for j in range(length)])
        lasts = torch.tensor(LENGTHS).cumsum(0) - 1
        counts = [min(length, 20) for length in LENGTHS]
        self.cache.sync()
        for number in range(LAYERS):
            layer = Layer.of(name, number, BLOCK, KV_HEADS, SIZE, ELEMENT)
            pages = self.described(self.cache, name, layer, (KV_HEADS, SIZE), torch.float16, sequences)
            written = torch.randn(2, len(positions), KV_HEADS, SIZE, dtype=torch.float16)
            self.append(pages, written[0], written[1], positions)
            written[:, lasts] = torch.randn(2, len(LENGTHS), KV_HEADS, SIZE, dtype=torch.float16)
            self.append(pages, written[0, lasts], written[1, lasts], None)
            # CacheTest.expected() reads a view of [blocks, heads, tokens, keys and values].
            view = torch.zeros(self.cache.layout.max_blocks, KV_HEADS, BLOCK, 2 * SIZE)
            blocks = torch.tensor([self.cache.table(sequences[i])[j // BLOCK] for i, j in positions.tolist()])
            view[blocks, :, positions[:, 1] % BLOCK] = written.float().permute(1, 2, 0, 3).flatten(2)
            queries = torch.randn(sum(counts), HEADS, SIZE, dtype=torch.float16)
            found = self.attend(
                queries,
                counts,
                sequences,
                _abi.gpool_kv_attention(
                    size=ctypes.sizeof(_abi.gpool_kv_attention),
                    heads=HEADS,
                    query_stride=HEADS * SIZE,
                    output_stride=HEADS * SIZE,
                    **layer._asdict(),
                ),
            )
            expected = self.expected(view, queries, counts, sequences)
            self.assertLess((found.float() - expected).abs().max().item(), 4e-3)
            self.assertGreater(expected.abs().max().item(), 0.1)
        for sequence in sequences:
            self.cache.free(sequence)

    def test_appended_tokens_within_heads(self) -> None:
        self.check_appended("HND")

    def test_appended_heads_within_tokens(self) -> None:
        self.check_appended("NHD")

    def test_int8(self) -> None:
        """FlashInfer finds the codes that gpool_kv_write() stores, by the layout that gpool describes, which is NHD."""
        self.use_int8()
        layout = self.cache.layout
        sequence = self.cache.allocate(LENGTHS[-1])
        table = self.cache.table(sequence)
        slots = torch.tensor([table[j // BLOCK] * BLOCK + j % BLOCK for j in range(LENGTHS[-1])])
        self.cache.sync()
        for number in range(LAYERS):
            # The largest magnitude of each vector is 127, so the codes are the values.
            written = torch.randint(-127, 128, (2, len(slots), KV_HEADS, SIZE)).half()
            written[..., 0] = 127
            keys, end = self.place(0, written[0])
            values, end = self.place(end, written[1])
            places, end = self.place(end, slots)
            self.cache.write(number, keys, values, places, len(slots))
            self.stream.synchronize()
            first = number * layout.layer_bytes
            layer = Layer(first + layout.keys, first + layout.values, layout.token_stride, layout.head_stride)
            pages = self.described(self.cache, "NHD", layer, (KV_HEADS, SIZE), torch.float8_e4m3fn, [sequence])
            self.places_agree(self.cache, pages, layer, 1, [sequence])
            self.strides_agree(pages)
            for value in (False, True):
                base = (pages.values if value else pages.keys) - layout.address
                for j in range(LENGTHS[-1]):
                    for head in range(KV_HEADS):
                        at = base + self.offset(pages, value, table[j // BLOCK], head, j % BLOCK, 0)
                        self.assertTrue(torch.equal(self.raw[at : at + SIZE], written[int(value), j, head].char()))
