"""The geometry of the KV cache: which blocks of vLLM are in which pages of gpool.

A chunk is the smallest number of whole pages that holds a whole number of blocks. Chunks are committed, offered and
published as wholes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

LAYOUT = "BLHNC"
"""all layers of a block are side by side"""
CHUNK_BYTES_MOST = 256 << 20
"""maximum size of a chunk; with larger chunks, sharing and growing would be too coarse"""


class Geometry(NamedTuple):
    """Describe how blocks are arranged in chunks."""

    page_bytes: int
    block_bytes: int
    """size of a block, all layers together"""
    chunk_pages: int
    chunk_blocks: int
    chunks: int
    """number of chunks; blocks after the last chunk are never used"""
    pages: int
    """pages of the range, which may end after the last chunk"""
    buffer_bytes: int
    """size of vLLM's buffer"""

    @property
    def chunk_bytes(self) -> int:
        """Return the size of a chunk."""
        return self.chunk_pages * self.page_bytes


def geometry_of(config: KVCacheConfig, page_bytes: int, handle_pages: int) -> Geometry:
    """Return the geometry of a KV cache on a pool with pages of `page_bytes`, of which the GPU maps `handle_pages`
    together.

    Raises ValueError: the blocks of the cache are not side by side, or do not fit to pages.
    """
    strides = {tensor.block_stride for tensor in config.kv_cache_tensors}
    sizes = {tensor.size for tensor in config.kv_cache_tensors}
    if len(strides) != 1 or len(sizes) != 1 or any(tensor.host_resident for tensor in config.kv_cache_tensors):
        raise ValueError(
            f"GpoolConnector: this model's KV cache has buffers of {sorted(sizes)} bytes with blocks of "
            f"{sorted(strides)} bytes; it supports one buffer with blocks of one size"
        )
    block, size = strides.pop(), sizes.pop()
    if config.kv_cache_layout != LAYOUT or block * config.num_blocks != size:
        raise ValueError(
            f"GpoolConnector: the KV cache has the layout {config.kv_cache_layout}, with {config.num_blocks} blocks "
            f"every {block} bytes in {size} bytes; it needs {LAYOUT}, which the attention backend may lack. On a CPU "
            "the plugin 'gpool' of the group vllm.general_plugins must be loaded: see $VLLM_PLUGINS"
        )
    unit = page_bytes * handle_pages
    chunk = math.lcm(block, unit)
    if chunk > CHUNK_BYTES_MOST:
        raise ValueError(
            f"GpoolConnector: blocks of {block} bytes fit to pages of {unit} bytes only every {chunk} bytes, and the "
            f"most is {CHUNK_BYTES_MOST}; choose another --block-size, or another page_size of the pool"
        )
    chunks = config.num_blocks * block // chunk
    if chunks < 2:
        raise ValueError(
            f"GpoolConnector: a KV cache of {size} bytes has {chunks} chunks of {chunk} bytes, and needs two; "
            "raise --kv-cache-memory-bytes"
        )
    pages = -(-size // unit) * handle_pages
    return Geometry(page_bytes, block, chunk // page_bytes, chunk // block, chunks, pages, size)
