"""vLLM's NixlConnector, for use with GpoolConnector in a MultiConnector: KV content of engines on other nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlPullConnector

from ._geometry import LAYOUT

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class NixlConnector(NixlPullConnector):  # type: ignore[misc]
    """Transfer KV content between nodes by NIXL, in the layout of GpoolConnector.

    NIXL registers the whole range of the KV cache, most of which has no memory yet: its transport must not pin memory.
    """

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str:
        """Return the layout of GpoolConnector, which MultiConnector requires of all its connectors."""
        return LAYOUT
