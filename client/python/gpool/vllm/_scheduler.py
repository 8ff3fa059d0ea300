"""The scheduler's side: decides in each step how the memory of the KV cache grows and shrinks."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Dict, Iterable, List, Optional, Set

from .._object import ObjectClass
from .._pool import Pool, Pressure
from ._balloon import Balloon, State
from ._geometry import Geometry, geometry_of
from ._identity import namespace_of
from ._messages import Answers, Orders
from ._metrics import Stats, stats_of
from ._reservations import Reservations
from ._settings import Settings, attach, pool_name
from ._sharing import Sharing

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

logger = logging.getLogger("vllm.gpool")

PATIENCE_MS = 20
"""longest wait of workers for pages in a step without a forward pass"""
SPARE_STEPS = 16
"""steps after which the number of blocks to keep free is computed, and unused chunks are searched, even if no request
has started or ended; a step in which a request fills a block does this after half of them"""
AHEAD_TOKENS = SPARE_STEPS + 8
"""tokens of each running request for which blocks are kept free; a commit takes up to 8 steps"""
KEEP_STEPS = 256
"""steps for which free blocks that were needed are kept while memory is free, at least"""
LOOK_AT_ALL_STEPS = 1024
"""steps after which the next search checks all chunks"""
STUCK_REFUSALS = 3
"""consecutive refusals after which an engine without running requests reserves the memory of its first request"""
NOTHING = Orders()
"""the message of most steps; never changed"""
SHOWN = (State.LIVE, State.HELD, State.OFFERED, State.OUT)
"""states whose chunks are counted in metrics"""


class Scheduler:
    """Control the memory of an engine's KV cache. Threads: one."""

    def __init__(self, config: VllmConfig, kv: KVCacheConfig, settings: Settings, name: str) -> None:
        """Attach to the pools. Raises gpool.Error; ValueError: the KV cache does not suit the pool."""
        from vllm.v1.request import RequestStatus

        self._running = RequestStatus.RUNNING
        self._config = config
        self._kv = kv
        self._settings = settings
        self._workers = config.parallel_config.world_size
        self._pools = self._attach(name)
        self._distinct = list(dict.fromkeys(self._pools))
        try:
            self.geometry = self._geometry()
        except ValueError:
            self.close()
            raise
        self._requests: Dict[str, Request] = {}
        self._admitted: Set[str] = set()
        self._need = 0  # blocks that the first waiting request needs
        self._short = 0  # blocks by which running requests were short
        self._postponed = 0  # requests for which this step has grown
        self._promised = self._promised_tokens = 0  # blocks and tokens of these requests
        self._ahead = 0  # blocks that running requests need soon
        self._next = 0  # blocks that waiting requests need when running ones end soon
        self._soon = 0  # blocks that running and waiting requests need in the next steps
        self._peaks = (0, 0)  # see _soon_most(): maxima of the last KEEP_STEPS, and of those that end in _peak_end
        self._peak_end = 0
        self._dirty = True
        self._looked = self._looked_at_all = 0  # the steps of the last searches, see SPARE_STEPS and LOOK_AT_ALL_STEPS
        self._quiet = 0  # next steps that need no work if each running request gets one token and nothing else happens
        self._settled = False
        self._idle = True  # no request was running at the end of the last step
        self._freed = False  # blocks of requests that had ended before
        self._first: Optional[Request] = None  # the first waiting request of this step
        self._stuck = False  # no memory is committed until that of the first waiting request is reserved
        self._chosen = ""  # the request whose memory is reserved
        self._whole = False  # reserve memory for all tokens of the request: cached ones were lost in the last attempt
        self._reservations = Reservations(self._pools)
        self._sharing: Optional[Sharing] = None

    def _attach(self, name: str) -> List[Pool]:
        """Return a session for each rank; ranks in one pool share a session."""
        sessions: Dict[Optional[str], Pool] = {}
        for rank in range(self._workers):
            pool = pool_name(self._settings, rank)
            if pool not in sessions:
                sessions[pool] = attach(self._settings, rank, f"{name}-scheduler")
        return [sessions[pool_name(self._settings, rank)] for rank in range(self._workers)]

    def _geometry(self) -> Geometry:
        """Return the geometry, which is the same for all ranks. Raises ValueError: it is not the same, or a pool is too
        small for one request of the maximum length.
        """
        geometries: Dict[Pool, Geometry] = {}
        for pool in self._distinct:
            with pool.reserve_range(1, ObjectClass.EPHEMERAL) as probe:
                geometries[pool] = geometry_of(self._kv, pool.page_bytes, probe.info().handle_pages)
        first = self._pools[0]
        geometry = geometries[first]
        tokens = self._config.model_config.max_model_len
        blocks = -(-tokens // self._config.cache_config.block_size) + 1
        pages = -(-blocks // geometry.chunk_blocks) * geometry.chunk_pages
        for pool, other in geometries.items():
            if other != geometry:
                raise ValueError(
                    f"GpoolConnector: pool '{first.device.pool}' has pages of {geometry.page_bytes} bytes and chunks "
                    f"of {geometry.chunk_bytes} bytes, and pool '{pool.device.pool}' has pages of {other.page_bytes} "
                    f"bytes and chunks of {other.chunk_bytes} bytes; the pools of all ranks need the same page_size "
                    "and handle_size"
                )
            ranks = self._pools.count(pool)
            if pages * ranks > pool.page_count:
                each = f" ({pages} for each of {ranks} ranks)" if ranks > 1 else ""
                raise ValueError(
                    f"GpoolConnector: a request of --max-model-len {tokens} needs {pages * ranks} pages{each}, and "
                    f"pool '{pool.device.pool}' has {pool.page_count}; lower --max-model-len, or use a larger pool"
                )
        return geometry

    def bind(self, manager: KVCacheManager) -> None:
        """Take the blocks of vLLM's block pool, of which only the first chunk has memory."""
        self._manager = manager
        self.balloon = Balloon(manager.block_pool, self.geometry, self._workers)
        self._block_tokens = self._config.cache_config.block_size
        self._groups = len(self._kv.kv_cache_groups)
        self._step_tokens = self._config.scheduler_config.max_num_batched_tokens
        self._most = self._config.scheduler_config.max_num_seqs
        self._simple = self._groups == 1 and manager.block_pool.hash_block_size == self._block_tokens
        why = self._why_not_share()
        if why and self._settings.share:
            logger.warning("gpool: prefixes are not shared with other engines: %s", why)
        elif self._settings.share:
            from vllm.v1.core.kv_cache_utils import get_none_hash_seed

            namespace = namespace_of(self._config, self._kv, self.geometry, get_none_hash_seed())
            self._sharing = Sharing(self.balloon, self._pools, namespace, self._block_tokens, self._settings.private)

    def _why_not_share(self) -> str:
        cache = self._config.cache_config
        if not cache.enable_prefix_caching:
            return "prefix caching is off (--enable-prefix-caching)"
        if cache.prefix_caching_hash_algo != "sha256_cbor":
            return (
                f"--prefix-caching-hash-algo is {cache.prefix_caching_hash_algo}; processes agree on names only with "
                "sha256_cbor"
            )
        if not self._simple:
            return f"the model has {self._groups} groups of layers with different KV caches"
        return ""

    # ---- requests ----

    def on_new_request(self, request: Request) -> None:
        """Register a request. If the chunks that it will find cannot be determined, reclaim all offered chunks."""
        self._requests[request.request_id] = request
        self._settled = False
        self._quiet = 0
        if not self._simple:
            self.balloon.claim_all()

    def matched(self, request: Request, computed: int) -> Optional[int]:
        """Return 0 if a request can use the `computed` tokens that vLLM has found, or None if it has to wait.

        The blocks of other engines are entered into vLLM's own prefix cache, so vLLM never has external tokens.
        """
        self._quiet = 0
        self._first = self._first or request
        if self._stuck or (self._chosen and request.request_id != self._chosen):
            return None
        if self._postponed and self._postponed >= self._most - len(self._admitted):
            return None  # the requests before this one, which wait for memory, will be as many as can run
        cached = self._cached(request, computed)
        if not self._claim(cached):
            return None
        if self._sharing is not None and not request.skip_reading_prefix_cache:
            if self._sharing.fetch(request, computed):
                return None
        missing = self._missing(request, computed)
        empty = self.balloon.empty()
        rest = self._rest(empty)
        # vLLM counts cached blocks that no request uses as free. The request takes them besides the missing ones.
        taken = sum(block.ref_cnt == 0 for block in cached)
        self._need = max(self._need, missing + max(0, taken - rest))
        # After an idle time, a request that publishes nothing uses the rest: otherwise this step would compute nothing.
        kept = 0 if self._idle and self._sharing is None else rest
        free = self.balloon.pool.get_num_free_blocks() - max(kept, taken)
        if free < missing - bool(kept) and self.balloon.can_grow:
            # Include the postponed requests before this one: as many as can run, and as one step can compute.
            if not self._postponed or (
                self._postponed < self._most - len(self._admitted) and self._promised_tokens < self._step_tokens
            ):
                self._postponed += 1
                self._promised += self._room(missing)
                self._promised_tokens += request.num_tokens - computed
                self.balloon.grow(max(missing, self._promised) + max(rest, taken))
            return None
        if self._simple:
            self.balloon.arrange(missing - 1, empty)
        return 0

    def _rest(self, chunks: List[int]) -> int:
        """Return the number of free blocks with which no request begins, because chunks are published as a whole: those
        that are not in these unused chunks.
        """
        return self.balloon.rest(chunks) if self._simple and not self.balloon.refusals and not self._chosen else 0

    def _room(self, missing: int) -> int:
        """Return the number of blocks to commit for a request that needs `missing`: it begins with whole chunks."""
        size = self.geometry.chunk_blocks
        return -(-(missing - 1) // size) * size if self._simple and size > 1 else missing

    def _missing(self, request: Request, computed: int) -> int:
        """Return the number of blocks that a request with `computed` tokens needs to begin."""
        return (-(-request.num_tokens // self._block_tokens) - computed // self._block_tokens + 1) * self._groups

    def _cached(self, request: Request, computed: int) -> List[KVCacheBlock]:
        """Return the cached blocks with the first `computed` tokens of a request.

        For several groups of layers, return instead all cached blocks of chunk 0, which is always LIVE. vLLM's other
        free blocks are cached only while requests use their chunks.
        """
        pool = self.balloon.pool
        if not self._simple:
            return [block for block in self.balloon.blocks(0) if computed and block.block_hash is not None]
        found = (
            pool.get_cached_block(request.block_hashes[place], [0]) for place in range(computed // self._block_tokens)
        )
        return [blocks[0] for blocks in found if blocks]

    def _claim(self, cached: List[KVCacheBlock]) -> bool:
        if not self._simple:
            return self.balloon.claim_all()
        chunks: List[int] = []
        for block in cached:
            chunk = self.balloon.chunk_of(block.block_id)
            if not chunks or chunks[-1] != chunk:
                chunks.append(chunk)
        return self.balloon.claim(chunks)

    def admitted(self, request: Request) -> None:
        """Record that a request has its blocks."""
        self._admitted.add(request.request_id)
        self._quiet = 0

    def finished(self, request: Request, blocks: Iterable[int]) -> None:
        """Record that a request ends; its blocks are freed after this call."""
        self.balloon.ended(blocks)
        self._requests.pop(request.request_id, None)
        self._admitted.discard(request.request_id)
        self._idle = not self._admitted
        self._dirty = True
        self._quiet = 0
        if self._sharing is not None:
            self._sharing.forget(request.request_id)

    def freed(self) -> None:
        """Record that blocks of ended requests are freed after this call, because another connector has sent them."""
        self._freed = self._dirty = True
        self._settled = False
        self._quiet = 0

    # ---- steps ----

    def build(self, output: SchedulerOutput) -> Orders:
        """Return the operations of the step."""
        if self._quiet and self._is_quiet(output):
            self._quiet -= 1
            self.balloon.step += 1
            return NOTHING
        return self._build(output)

    def _is_quiet(self, output: SchedulerOutput) -> bool:
        """Return whether each running request gets one token, which is true in most steps."""
        running = len(self._admitted)
        return output.total_num_scheduled_tokens == running == len(output.num_scheduled_tokens)

    def _build(self, output: SchedulerOutput) -> Orders:
        balloon = self.balloon
        sharing = self._sharing
        last = self._publish(output, sharing) if sharing is not None else self._full(output)
        publish = sharing.publish_chunk if sharing is not None else None
        due = balloon.step - self._looked >= (SPARE_STEPS // 2 if last else SPARE_STEPS)
        # Such a step needs nothing: the blocks that its requests take were counted as needed before.
        calm = not due and bool(self._admitted) and self._is_quiet(output)
        every = not self._simple or bool(output.preempted_req_ids) or self._freed
        if due:
            self._looked = balloon.step
            if balloon.step - self._looked_at_all >= LOOK_AT_ALL_STEPS:
                self._looked_at_all = balloon.step
                every = True
        if self._requests and not calm:
            self._count_ahead(output)
        spare = self._spare() if self._requests else 0
        look = self._dirty or self._stuck or due
        if self._chosen:
            self._check_chosen()
        if not self._requests:
            self._stuck = False
            balloon.settle(0, publish, every=True)
            balloon.offer()
            self._settled = True
            self._peaks = (0, 0)
        else:
            self._detect_stuck(output)
            kept = max(spare, self._soon_most()) + self.geometry.chunk_blocks
            if look or balloon.refusals:
                scarce = self._is_scarce()
                balloon.settle(0 if self._stuck else spare if scarce else kept, publish, every)
                if scarce:
                    balloon.offer()
            if self._stuck:
                self._reserve()
            elif (not calm or self._short or balloon.refusals) and balloon.free_blocks < spare:
                # One more chunk saves a further operation soon. If it replaces another chunk, the content of that one
                # stays in the pool if it was published.
                more = self.geometry.chunk_blocks if sharing is not None and not self._is_scarce() else 0
                balloon.grow(spare + more)
            balloon.continue_after(last)
        self._first = None
        self._dirty = self._freed = False
        self._need = self._short = self._promised = self._promised_tokens = self._postponed = 0
        self._idle = not self._admitted
        self._quiet = self._quiet_steps(output)
        balloon.step += 1
        patience_ms = 0 if output.total_num_scheduled_tokens else PATIENCE_MS
        return Orders(balloon.take_ops(), patience_ms, self._reservations.numbers)

    def _quiet_steps(self, output: SchedulerOutput) -> int:
        """Return the number of next steps in which no request fills a block, and that precede the next look at spare
        blocks and unused chunks. Any other event sets `_quiet` to 0.
        """
        if not self._simple or self.balloon.refusals or not self._admitted or not self._is_quiet(output):
            return 0
        if not self._requests.keys() >= output.num_scheduled_tokens.keys():
            return 0
        most = 0  # tokens after the last full block of a request, after this step
        for request_id in output.num_scheduled_tokens:
            done = self._requests[request_id].num_computed_tokens + 1
            if self._sharing is not None and self._sharing.due.get(request_id, self._block_tokens) <= done:
                return 0  # vLLM schedules ahead, and does not know the hash of the full block yet
            most = max(most, done % self._block_tokens)
        return min(self._block_tokens - most, self._looked + SPARE_STEPS - self.balloon.step) - 1

    def _is_scarce(self) -> bool:
        """Return whether free memory is needed elsewhere, or cannot be had."""
        return self.balloon.refusals > 0 or self._stuck or self._pressed()

    def _pressed(self) -> bool:
        for pool in self._distinct:
            if pool.pressure != Pressure.LOW:
                return True
        return False

    def _count_ahead(self, output: SchedulerOutput) -> None:
        """Count the blocks that running requests need until after the next look, and that others need when they end."""
        tokens = ending = self._ahead = 0
        for request_id in list(self._admitted):
            request = self._requests[request_id]
            if request.status != self._running:
                self._admitted.discard(request_id)
                self._dirty = True
                continue
            done = request.num_computed_tokens + output.num_scheduled_tokens.get(request_id, 0)
            self._ahead += -(-(done + AHEAD_TOKENS) // self._block_tokens) - -(-done // self._block_tokens)
            tokens += max(0, request.num_tokens - done)
            ending += request.max_tokens - request.num_output_tokens <= AHEAD_TOKENS
        tokens = min(tokens, self._step_tokens)
        self._ahead += -(-tokens // self._block_tokens)
        self._next = self._needed_after(ending)

    def _spare(self) -> int:
        """Return the number of free blocks that the next steps may need."""
        # Blocks that these requests do not use. settle() is about to remove the cached ones.
        rest = self._rest(self.balloon.unused()) if self._next else 0
        # Waiting requests whose need this step has found are among those that can start in the next step.
        self._soon = self._ahead * self._groups + max(self._need, self._next) + rest
        return self._soon + self._short

    def _soon_most(self) -> int:
        """Return the maximum of `_soon` in the last steps: requests that start and end repeatedly need it again."""
        if self.balloon.step >= self._peak_end:
            self._peaks = (self._peaks[1], 0)
            self._peak_end = self.balloon.step + KEEP_STEPS
        self._peaks = (self._peaks[0], max(self._peaks[1], self._soon))
        return max(self._peaks)

    def _needed_after(self, ending: int) -> int:
        """Return the number of blocks that waiting requests need in the next step and when `ending` ones have ended.

        The latter are not included under pressure, and the number is 0 after a refusal.
        """
        if len(self._requests) == len(self._admitted) or not self._simple or self.balloon.refusals or self._chosen:
            return 0
        slots = max(0, self._most - len(self._admitted))
        if ending and not self._pressed():
            slots += ending
        if not slots:
            return 0
        needed = tokens = 0
        waiting = (each for each in self._requests.values() if each.request_id not in self._admitted)
        for request in itertools.islice(waiting, slots):
            found = self._found(request)
            needed += self._room(self._missing(request, found))
            tokens += request.num_tokens - found
            if tokens >= self._step_tokens:
                break
        return needed

    def _found(self, request: Request) -> int:
        """Return the number of a waiting request's tokens that are cached or published."""
        computed = 0
        for block_hash in request.block_hashes[: (request.num_tokens - 1) // self._block_tokens]:
            if not self.balloon.pool.get_cached_block(block_hash, [0]):
                break
            computed += self._block_tokens
        if self._sharing is not None:
            computed += self._sharing.found(request, computed)
        return min(computed, request.num_tokens)

    def _publish(self, output: SchedulerOutput, sharing: Sharing) -> List[int]:
        """Publish the chunks that the step fills; return the last blocks of the requests that then need a new block."""
        last: List[int] = []
        for request_id in output.preempted_req_ids or ():
            sharing.forget(request_id)
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = self._requests.get(request_id)
            if request is None:
                continue
            done = request.num_computed_tokens + tokens
            if done >= sharing.due.get(request_id, self._block_tokens):
                blocks = self._manager.get_block_ids(request_id)[0]
                sharing.note(request, done, blocks)
                if done == len(blocks) * self._block_tokens:
                    last.append(blocks[-1])
        sharing.publish()
        return last

    def _full(self, output: SchedulerOutput) -> List[int]:
        """Return the last blocks of the requests that need another one after the step."""
        last: List[int] = []
        if not self._simple or self.geometry.chunk_blocks == 1:
            return last
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = self._requests.get(request_id)
            if request is None:
                continue
            done = request.num_computed_tokens + tokens
            if done % self._block_tokens == 0:
                blocks = self._manager.get_block_ids(request_id)[0]
                if done == len(blocks) * self._block_tokens:
                    last.append(blocks[-1])
        return last

    def _detect_stuck(self, output: SchedulerOutput) -> None:
        """Release all memory if the pool has no room and no request is running: other engines may be in the same state,
        and hold memory that this engine needs.
        """
        if self._stuck or output.total_num_scheduled_tokens or self._admitted:
            return
        if self.balloon.refusals >= STUCK_REFUSALS:
            self._stuck = True
            self.balloon.unclaim()

    def _reserve(self) -> None:
        """Try to reserve the memory of the first waiting request, when all other memory is released."""
        if self._first is None or self.balloon.busy:
            return
        found = 0 if self._whole or not self._simple else self._found(self._first)
        chunks = -(-self._missing(self._first, found) // self.geometry.chunk_blocks)
        if self._reservations.make(chunks * self.geometry.chunk_pages, PATIENCE_MS):
            self._stuck = False
            self._chosen = self._first.request_id
            self.balloon.refusals = 0
        elif self._reservations.over_quota:
            self._stuck = False
            self.balloon.refusals = 0

    def _check_chosen(self) -> None:
        """End the reservation if its request has begun, is not the first one anymore, or needs more memory."""
        began = self._chosen in self._admitted
        first = self._first is not None and self._first.request_id == self._chosen
        if began or not first or self.balloon.refusals:
            self._whole = first and not began
            self._chosen = ""
            self._reservations.release()

    def hear(self, answers: Answers) -> None:
        """Process the answers of the workers to a step's operations."""
        if self.balloon.hear(answers):
            self._settled = False
        if self.balloon.has_ops or self.balloon.refusals or answers.lost:  # other answers need no work
            self._quiet = 0

    def waits_for_memory(self) -> bool:
        """Return whether running requests will get blocks without a preemption; called when they lack blocks."""
        self._short += self.geometry.chunk_blocks
        self._quiet = 0
        return self.balloon.can_grow

    def has_work(self) -> bool:
        """Return whether an engine without requests may still have memory to release."""
        return not self._requests and (self.balloon.busy or not self._settled)

    def stats(self) -> Optional[Stats]:
        """Return the counts since the last call; None: no event was counted."""
        balloon = self.balloon
        if not balloon.counters.changed:
            return None
        gauges = {f"{state.name.lower()}_chunks": balloon.count(state) for state in SHOWN}
        return stats_of(balloon.counters.news(), gauges)

    def reset(self) -> None:
        """Discard all cached content that no request uses."""
        self.balloon.reset()
        self._settled = False
        self._quiet = 0

    def close(self) -> None:
        """Detach from the pools."""
        for pool in self._distinct:
            pool.close()
