"""A connector of vLLM that does nothing, in the layout of gpool's: `bench.py` measures what any connector costs."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA

from gpool.vllm import GpoolConnector


class Nothing(KVConnectorMetadata):  # type: ignore[misc]
    """The metadata of a step."""


class EmptyConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Implement what vLLM requires of a connector, without any work."""

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> Optional[str]:
        return GpoolConnector.get_required_kvcache_layout(vllm_config)

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return Nothing()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Tuple[bool, Optional[Dict[str, Any]]]:
        return False, None
