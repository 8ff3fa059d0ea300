"""The connector: vLLM's interface, for the scheduler and the workers."""

from __future__ import annotations

import itertools
import logging
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set, Tuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from .. import _native
from ._geometry import LAYOUT, geometry_of
from ._identity import namespace_of
from ._messages import Answers, Orders
from ._metrics import PromMetrics, Stats
from ._plugin import register
from ._scheduler import Scheduler
from ._settings import Settings, attach, settings_of
from ._version import check_version
from ._worker import Worker

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logging.getLogger("vllm.gpool")

NOTHING = _native.constant(None)
"""ignores its arguments and returns None"""


class GpoolConnector(KVConnectorBase_V1, SupportsHMA):
    """Place an engine's KV cache in a pool of gpool, where it grows and shrinks, and shares prefixes with others."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        """Attach this process to its pool.

        Raises gpool.Error; ImportError: another version of vLLM; ValueError: an invalid setting, a missing option, or a
        KV cache that does not fit into the pool's pages.
        """
        check_version()
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        config = self._kv_transfer_config
        self._settings: Settings = settings_of(config.kv_connector_extra_config)
        parallel = vllm_config.parallel_config
        if parallel.pipeline_parallel_size > 1:
            raise ValueError(
                f"GpoolConnector: --pipeline-parallel-size is {parallel.pipeline_parallel_size}; only 1 is supported"
            )
        if not vllm_config.cache_config.kv_cache_memory_bytes:
            raise ValueError(
                "GpoolConnector: --kv-cache-memory-bytes is not set or 0; set it to the maximum size of this engine's "
                "KV cache, for example the size of the pool"
            )
        self._scheduler: Optional[Scheduler] = None
        self._worker: Optional[Worker] = None
        name = self._settings.name or f"vllm-{vllm_config.instance_id}"
        if role == KVConnectorRole.SCHEDULER:
            if config.kv_load_failure_policy != "recompute":
                logger.warning(
                    "gpool: kv_load_failure_policy is '%s': requests fail if their KV content is lost, as after "
                    "a long stop of this process; set it to 'recompute' in --kv-transfer-config",
                    config.kv_load_failure_policy,
                )
            self._scheduler = Scheduler(vllm_config, kv_cache_config, self._settings, name)
            self._bind(
                build_connector_meta=self._scheduler.build,
                get_kv_connector_stats=self._scheduler.stats,
                take_events=_native.constant(()),
            )
        else:
            self._worker = worker = self._make_worker(vllm_config, kv_cache_config, name)
            self._bind(
                handle_preemptions=worker.before_forward,
                wait_for_save=worker.after_forward,
                get_block_ids_with_load_errors=worker.take_invalid_blocks,
                build_connector_worker_meta=worker.take_answers,
                # handle_preemptions() gets the metadata. vLLM calls wait_for_layer_load() and save_kv_layer() for each
                # layer only if metadata is bound.
                bind_connector_metadata=NOTHING,
                has_connector_metadata=_native.constant(False),
                clear_connector_metadata=NOTHING,
                start_load_kv=NOTHING,
                get_transfer_results=_native.constant(KVConnectorTransferResults()),
                get_kv_connector_stats=NOTHING,
                get_kv_connector_kv_cache_events=NOTHING,
            )

    def _bind(self, **functions: Callable[..., Any]) -> None:
        """Let vLLM's calls in each step reach these functions directly, instead of methods of this class that call them
        or do nothing.
        """
        self.__dict__.update(functions)

    def _make_worker(self, config: VllmConfig, kv: KVCacheConfig, name: str) -> Worker:
        from vllm.v1.core.kv_cache_utils import get_none_hash_seed

        rank, ranks = config.parallel_config.rank, config.parallel_config.world_size
        pool = attach(self._settings, rank, name if ranks == 1 else f"{name}-{rank}")
        with pool.reserve_range(1) as probe:
            geometry = geometry_of(kv, pool.page_bytes, probe.info().handle_pages)
        namespace = namespace_of(config, kv, geometry, get_none_hash_seed())
        return Worker(pool, namespace, geometry, rank, ranks, self._settings.private)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> Optional[str]:
        """Return the layout in which all layers of a block are side by side."""
        register()
        return LAYOUT

    @property
    def requires_kv_delivery(self) -> bool:
        """Return False: blocks that are not published are computed again."""
        return False

    def shutdown(self) -> None:
        """Detach from the pool."""
        if self._scheduler is not None:
            self._scheduler.close()
        if self._worker is not None:
            self._worker.close()

    # ---- worker ----

    @property
    def _of_worker(self) -> Worker:
        assert self._worker is not None
        return self._worker

    def get_mem_pool_context(self) -> Optional[AbstractContextManager[Any]]:
        """Return the context in which vLLM allocates its KV cache."""
        return self._of_worker.allocation()

    def register_kv_caches(self, kv_caches: Dict[str, torch.Tensor]) -> None:
        """Check that the KV cache is in the pool."""
        self._of_worker.check_buffer(kv_caches)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Execute the step's operations; vLLM calls this at the beginning of each step."""
        assert isinstance(kv_connector_metadata, Orders)
        self._of_worker.before_forward(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Do nothing: no block is external."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: no block is external."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: the blocks are already in the pool, and are published there."""

    def wait_for_save(self) -> None:
        """Publish blocks that the step has computed."""
        self._of_worker.after_forward()

    def get_block_ids_with_load_errors(self) -> Set[int]:
        """Return blocks in use whose content was lost."""
        return self._of_worker.take_invalid_blocks()

    def build_connector_worker_meta(self) -> Optional[KVConnectorWorkerMetadata]:
        """Return the answers to the step's operations."""
        return self._of_worker.take_answers()

    # ---- scheduler ----

    @property
    def _of_scheduler(self) -> Scheduler:
        assert self._scheduler is not None
        return self._scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        """Take the blocks without memory out of vLLM's block pool."""
        super().bind_kv_cache_manager(kv_cache_manager)
        self._of_scheduler.bind(kv_cache_manager)

    def on_new_request(self, request: Request) -> None:
        """Register a new request."""
        self._of_scheduler.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Tuple[Optional[int], bool]:
        """Return (0, False), or (None, False) while workers prepare the blocks that the request can reuse."""
        return self._of_scheduler.matched(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Record that a request has its blocks."""
        self._of_scheduler.admitted(request)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Return the operations of the step."""
        return self._of_scheduler.build(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Take the answers of the workers."""
        if connector_output.finished_sending or connector_output.finished_recving:  # of another connector
            self._of_scheduler.freed()
        answers = connector_output.kv_connector_worker_meta
        if isinstance(answers, Answers):
            self._of_scheduler.hear(answers)

    def request_finished(self, request: Request, block_ids: List[int]) -> Tuple[bool, Optional[Dict[str, Any]]]:
        """Record that a request ends; its blocks can be freed."""
        self._of_scheduler.finished(request, block_ids)
        return False, None

    def request_finished_all_groups(
        self, request: Request, block_ids: Tuple[List[int], ...]
    ) -> Tuple[bool, Optional[Dict[str, Any]]]:
        """As request_finished()."""
        self._of_scheduler.finished(request, itertools.chain.from_iterable(block_ids))
        return False, None

    def has_pending_block_frees(self) -> bool:
        """Return whether running requests will get memory, so that none needs to be preempted."""
        return self._of_scheduler.waits_for_memory()

    def has_pending_push_work(self) -> bool:
        """Return whether an idle engine needs a step to release memory."""
        return self._of_scheduler.has_work()

    def get_kv_connector_stats(self) -> Optional[Stats]:
        """Return the counts since the last call; only in the scheduler."""
        return self._scheduler.stats() if self._scheduler is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: Optional[Dict[str, Any]] = None) -> Stats:
        """Return statistics with the counts that get_kv_connector_stats() has sent."""
        return Stats(dict(data or {}))

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: VllmConfig, metric_types: Any, labelnames: List[str], per_engine_labelvalues: Any
    ) -> PromMetrics:
        """Register the Prometheus metrics vllm:gpool_*."""
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def reset_cache(self) -> Optional[bool]:
        """Drop cached blocks that no request uses."""
        self._of_scheduler.reset()
        return True
