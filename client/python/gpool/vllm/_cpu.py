"""vLLM's attention backend of the CPU, with the layout that the connector needs."""

from __future__ import annotations

from typing import Tuple

from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.kv_cache_layout import KVCacheLayout


class Backend(CPUAttentionBackend):  # type: ignore[misc]
    """Declare a second layout: the CPU kernels take any stride between blocks, but vLLM declares LBHNC only."""

    @classmethod
    def supported_kv_cache_layouts(cls) -> Tuple[KVCacheLayout, ...]:
        """Return the layout of vLLM, which remains the first choice, and that in which a block is in one piece."""
        return (KVCacheLayout.LBHNC, KVCacheLayout.BLHNC)
