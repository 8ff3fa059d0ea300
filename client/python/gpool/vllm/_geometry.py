"""The geometry of the KV cache: the placement of vLLM's blocks in the pages of gpool.

A chunk is the smallest number of whole pages that contains a whole number of blocks. Chunks are committed, offered and
published as a whole.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

LAYOUT = "BLHNC"
"""all layers of a block are adjacent"""
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
    """Return the geometry of a KV cache on a pool with pages of `page_bytes` and `handle_pages` pages in each handle.

    Raises ValueError: the blocks of the cache are not adjacent, or chunks would be too large or too few.
    """
    strides = {tensor.block_stride for tensor in config.kv_cache_tensors}
    sizes = {tensor.size for tensor in config.kv_cache_tensors}
    if len(strides) != 1 or len(sizes) != 1 or any(tensor.host_resident for tensor in config.kv_cache_tensors):
        raise ValueError(
            f"GpoolConnector: this model's KV cache has buffers of {sorted(sizes)} bytes with blocks of "
            f"{sorted(strides)} bytes; only one buffer with blocks of one size is supported"
        )
    block, size = strides.pop(), sizes.pop()
    if config.kv_cache_layout != LAYOUT or block * config.num_blocks != size:
        raise ValueError(
            f"GpoolConnector: the KV cache of {size} bytes has {config.num_blocks} blocks of {block} bytes and the "
            f"layout {config.kv_cache_layout}; {LAYOUT} is required, which the attention backend might not support. "
            "On a CPU, the plugin 'gpool' of the group vllm.general_plugins must be loaded: see $VLLM_PLUGINS"
        )
    unit = page_bytes * handle_pages
    chunk = math.lcm(block, unit)
    if chunk > CHUNK_BYTES_MOST:
        raise ValueError(
            f"GpoolConnector: with blocks of {block} bytes and handles of {unit} bytes, a chunk has {chunk} bytes; the "
            f"maximum is {CHUNK_BYTES_MOST}; choose another --block-size, or another page_size of the pool"
        )
    chunks = config.num_blocks * block // chunk
    if chunks < 2:
        raise ValueError(
            f"GpoolConnector: a KV cache of {size} bytes has {chunks} chunks of {chunk} bytes, but needs at least 2; "
            "raise --kv-cache-memory-bytes"
        )
    pages = -(-size // unit) * handle_pages
    return Geometry(page_bytes, block, chunk // page_bytes, chunk // block, chunks, pages, size)
