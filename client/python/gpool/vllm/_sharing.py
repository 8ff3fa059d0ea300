"""Sharing prefixes between engines: which chunks are published, and which objects of others are mapped.

An object has the KV content of one chunk: consecutive blocks of one prefix. Its name is the hash of its last block,
which covers the whole prefix.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Dict, List, Sequence, Set

from .._pool import Pool
from ._balloon import Balloon, State
from ._identity import Namespace

if TYPE_CHECKING:
    from vllm.v1.request import Request

COPIES_MOST = 8
"""maximum number of copies in a step, which they delay; 1 in a step that computes one token for each request"""
MAPS_MOST = 64
"""maximum number of objects that a step maps"""
RETRY_SECONDS = 1.0
"""time after which mapping an object is tried again"""


def can_share(request: Request) -> bool:
    """Return whether vLLM's block hashes describe the content of a request's blocks in all engines.

    The hashes contain the name of a LoRA adapter and the identifiers of images. Another engine may use the same name or
    identifier for another adapter or image.
    """
    return request.lora_request is None and not request.mm_features and request.prompt_embeds is None


class Sharing:
    """Publish the chunks of requests, and map published ones. Threads: one, the scheduler's."""

    def __init__(
        self, balloon: Balloon, pools: Sequence[Pool], namespace: Namespace, block_tokens: int, private: bool
    ) -> None:
        """pools: this process's sessions, one for each rank."""
        self._balloon = balloon
        self._pools = pools
        self._namespace = namespace
        self._block_tokens = block_tokens
        self._blocks = balloon.geometry.chunk_blocks
        self.chunk_tokens = self._blocks * block_tokens
        self._coming: Set[str] = set()  # names that are being mapped or published
        self._failed: Dict[str, float] = {}
        self.copies = 0  # number of copies that this step may still make
        self.due: Dict[str, float] = {}  # request: number of computed tokens at which publish() has work
        self._published: Dict[str, int] = {}  # request: number of its chunks that were checked
        self._last: Dict[str, int] = {}  # request: chunk with the last object of its prefix

    def forget(self, request_id: str) -> None:
        """Remove all records of a request."""
        self.due.pop(request_id, None)
        self._published.pop(request_id, None)
        self._last.pop(request_id, None)

    def _name(self, request: Request, place: int) -> str:
        return request.block_hashes[(place + 1) * self._blocks - 1].hex()

    def _find(self, names: List[str]) -> int:
        """Return the number of consecutive names, from the first one on, that exist in the pools of all ranks."""
        ranks = range(len(self._pools))
        if all(pool is self._pools[0] for pool in self._pools):
            every = [self._namespace.name(rank, name) for name in names for rank in ranks]
            return self._pools[0].find_objects(every) // len(self._pools)
        found = len(names)
        for rank in ranks:
            found = self._pools[rank].find_objects([self._namespace.name(rank, name) for name in names[:found]])
        return found

    # ---- mapping ----

    def fetch(self, request: Request, computed: int) -> bool:
        """Map the published chunks that continue a request's local prefix of `computed` tokens; return whether the
        request has to wait for them.
        """
        if not can_share(request):
            return False
        first = computed // self.chunk_tokens
        last = min((request.num_tokens - 1) // self.chunk_tokens, len(request.block_hashes) // self._blocks)
        names = [self._name(request, place) for place in range(first, min(last, first + MAPS_MOST))]
        if not names:
            return False
        if names[0] in self._coming:
            return True
        started = False
        for place, name in enumerate(names[: self._find(names)], first):
            if name in self._coming or time.monotonic() - self._failed.get(name, -RETRY_SECONDS) < RETRY_SECONDS:
                break
            chunk = self._balloon.reserve()
            if chunk is None:
                break
            self._map(request, place, name, chunk)
            started = True
        return started

    def _map(self, request: Request, place: int, name: str, chunk: int) -> None:
        def then(done: bool) -> None:
            self._coming.discard(name)
            if done:
                self._balloon.counters.count("mapped_chunks")
                self._enter(request, place, chunk)
            else:
                if len(self._failed) > 10000:
                    self._failed.clear()
                self._failed[name] = time.monotonic()

        self._coming.add(name)
        self._balloon.map(chunk, name, then)

    def _enter(self, request: Request, place: int, chunk: int) -> None:
        """Enter the blocks of a chunk into vLLM's prefix cache, as blocks of a request's prefix."""
        first = place * self._blocks
        self._balloon.pool.cache_full_blocks(
            request,
            [self._balloon.pool.null_block] * first + self._balloon.blocks(chunk),
            first,
            first + self._blocks,
            self._block_tokens,
            0,
        )

    # ---- publishing ----

    def publish(self, request: Request, done: int, block_ids: List[int]) -> None:
        """Publish the chunks of a request that the next step completes.

        done: number of tokens that are computed after this step. block_ids: the blocks of the request.
        """
        if not can_share(request):
            self.due[request.request_id] = math.inf
            return
        place = self._published.get(request.request_id, 0)
        last = min(done // self.chunk_tokens, len(request.block_hashes) // self._blocks)
        while place < last:
            if not self._publish(request, place, block_ids[place * self._blocks : (place + 1) * self._blocks]):
                break
            place += 1
        self._published[request.request_id] = place
        self.due[request.request_id] = (place + 1) * self.chunk_tokens

    def _publish(self, request: Request, place: int, blocks: List[int]) -> bool:
        """Publish one chunk of a request; return False if that must wait for a step that may make copies."""
        balloon, name, last = self._balloon, self._name(request, place), request.request_id
        chunk = balloon.chunk_of(blocks[0])
        follows = self._last.get(last, -1)
        whole = blocks == list(range(chunk * self._blocks, (chunk + 1) * self._blocks))
        in_place = whole and chunk and balloon.state(chunk) == State.LIVE
        if whole and balloon.is_shared(chunk):
            self._last[last] = chunk
        elif name in self._coming:
            pass  # another request publishes it
        elif not in_place and not self.copies:
            return False
        elif self._find([name]):
            pass  # another engine has published it
        elif in_place:
            self._coming.add(name)
            self._last[last] = chunk
            balloon.publish(chunk, name, follows, lambda done: self._told(name, done, "published_chunks"))
        elif not balloon.refusals:
            to = balloon.reserve()
            if to is not None:
                self._copy(request, place, to, tuple(blocks), follows)
                self.copies -= 1
        return True

    def _told(self, name: str, done: bool, counter: str) -> None:
        self._coming.discard(name)
        self._balloon.counters.count(counter, done)

    def _copy(self, request: Request, place: int, chunk: int, blocks: "tuple[int, ...]", follows: int) -> None:
        name = self._name(request, place)

        def then(done: bool) -> None:
            self._told(name, done, "copied_chunks")
            if not done:
                return
            self._enter(request, place, chunk)
            pairs = zip(blocks, self._balloon.blocks(chunk))
            same = {old for old, new in pairs if self._balloon.pool.blocks[old].block_hash == new.block_hash}
            self._balloon.pool.evict_blocks(same)  # the copies are found from now on

        self._coming.add(name)
        self._last[request.request_id] = chunk
        self._balloon.copy(chunk, blocks, name, follows, then)
