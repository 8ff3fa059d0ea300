"""Sharing prefixes between engines: publishing chunks, and mapping the objects of other engines.

An object contains the KV content of one chunk, in which some blocks may be unused. The name of the object is the hash
of the first of its blocks in their prefix, which covers all tokens up to this block; the metadata lists the hashes of
all its blocks. An engine that knows a prefix up to some block can therefore find the object that continues the prefix,
and use only some of its blocks. Names and metadata form a radix tree in which each chunk is an edge.

A chunk is published as soon as all its blocks are computed, or when no request uses it anymore.
"""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Set

from .._pool import Pool
from ._balloon import Balloon, State
from ._identity import Namespace
from ._messages import Content, Filled

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request

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
        """Share the chunks of a balloon. pools: sessions of this process, one for each rank."""
        self._balloon = balloon
        self._pools = pools
        self._one_pool = all(pool is pools[0] for pool in pools)
        self._namespace = namespace
        self._block_tokens = block_tokens
        self._blocks = balloon.geometry.chunk_blocks
        self._coming: Set[str] = set()  # names that are being mapped or published
        self._failed: Dict[str, float] = {}
        self.due: Dict[str, float] = {}  # request: number of computed tokens at which note() has work
        self._noted: Dict[str, int] = {}  # request: number of its blocks that note() has seen
        self._filled: Dict[int, Filled] = {}  # block: its last content that can be shared
        self._follows: Dict[int, int] = {}  # chunk: the chunk with the block before its first block
        self._touched: Dict[int, None] = {}  # chunks with blocks that this step fills, in the order of their prefixes

    def forget(self, request_id: str) -> None:
        """Remove all records of a request."""
        self.due.pop(request_id, None)
        self._noted.pop(request_id, None)

    def _find(self, names: List[str]) -> int:
        """Return the number of consecutive names, from the first one on, that exist in the pools of all ranks."""
        ranks = range(len(self._pools))
        if self._one_pool:
            every = [self._namespace.name(rank, name).encode() for name in names for rank in ranks]
            return self._pools[0]._find(every) // len(self._pools)
        found = len(names)
        for rank in ranks:
            found = self._pools[rank]._find([self._namespace.name(rank, name).encode() for name in names[:found]])
        return found

    # ---- mapping ----

    def _places(self, request: Request, computed: int) -> Sequence[int]:
        """Return the places of the blocks by whose hashes the chunks after `computed` tokens are named."""
        last = min((request.num_tokens - 1) // self._block_tokens, len(request.block_hashes))
        return range(computed // self._block_tokens, last, self._blocks)[:MAPS_MOST]

    def found(self, request: Request, computed: int) -> int:
        """Return the number of tokens in published chunks that continue `computed` tokens; they may be fewer."""
        if not can_share(request):
            return 0
        names = [request.block_hashes[place].hex() for place in self._places(request, computed)]
        return self._find(names) * self._blocks * self._block_tokens

    def fetch(self, request: Request, computed: int) -> bool:
        """Map the published chunks that continue a request's local prefix of `computed` tokens; return whether the
        request has to wait for them.
        """
        if not can_share(request):
            return False
        places = self._places(request, computed)
        names = [request.block_hashes[place].hex() for place in places]
        if not names:
            return False
        if names[0] in self._coming:
            return True
        started = False
        for place, name in zip(places, names[: self._find(names)]):
            if name in self._coming or time.monotonic() - self._failed.get(name, -RETRY_SECONDS) < RETRY_SECONDS:
                break
            chunk = self._balloon.reserve()
            if chunk is None:
                started |= self._balloon.count(State.LEAVING) > 0  # a chunk will be OUT
                break
            self._map(request, place, name, chunk)
            started = True
        return started

    def _map(self, request: Request, place: int, name: str, chunk: int) -> None:
        def then(done: bool, content: Content) -> None:
            self._coming.discard(name)
            if done and Filled(place, bytes.fromhex(name)) in content:
                self._balloon.counters.count("mapped_chunks")
                self._enter(request, chunk, content)
                return
            if done:
                self._balloon.end(chunk)
            if len(self._failed) > 10000:
                self._failed.clear()
            self._failed[name] = time.monotonic()

        self._coming.add(name)
        self._balloon.map(chunk, name, then)

    def _enter(self, request: Request, chunk: int, content: Content) -> None:
        """Enter the blocks of a mapped chunk into vLLM's prefix cache."""
        pool = self._balloon.pool
        for block, filled in zip(self._balloon.blocks(chunk), content):
            if filled is None or filled.place >= len(pool.blocks):
                continue
            place = filled.place
            source: Any = request
            if place >= len(request.block_hashes) or request.block_hashes[place] != filled.hash:
                if pool.enable_kv_cache_events:
                    continue  # an event would contain the tokens, which only a request has
                source = SimpleNamespace(block_hashes=[b""] * place + [filled.hash])
            blocks = [pool.null_block] * place + [block]
            pool.cache_full_blocks(source, blocks, place, place + 1, self._block_tokens, 0)

    # ---- publishing ----

    def note(self, request: Request, done: int, block_ids: List[int]) -> None:
        """Note the blocks of a request that the next step fills; publish() then publishes the chunks that are full.

        done: number of tokens that are computed after this step. block_ids: the blocks of the request.
        """
        if not can_share(request):
            self.due[request.request_id] = math.inf
            return
        full = min(done // self._block_tokens, len(request.block_hashes))
        for place in range(self._noted.get(request.request_id, 0), full):
            block, before = block_ids[place], block_ids[place - 1] if place else block_ids[place]
            self._filled[block] = Filled(place, request.block_hashes[place])
            chunk, follows = self._balloon.chunk_of(block), self._balloon.chunk_of(before)
            self._touched[chunk] = None
            if chunk != follows:
                self._follows[chunk] = follows
        self._noted[request.request_id] = full
        self.due[request.request_id] = (full + 1) * self._block_tokens

    def publish(self) -> None:
        """Publish the chunks that the next step fills."""
        for chunk in self._touched:
            if all(block.block_hash is not None for block in self._balloon.blocks(chunk)):
                self.publish_chunk(chunk)
        self._touched.clear()

    def publish_chunk(self, chunk: int) -> bool:
        """Publish a chunk to which no request writes anymore; return False if this is not possible or has no use."""
        if not self._balloon.can_publish(chunk):
            return False
        content = tuple(self._filled_of(block) for block in self._balloon.blocks(chunk))
        filled = [each for each in content if each is not None]
        if not filled:
            return False
        name = min(filled).hash.hex()
        if name in self._coming or self._find([name]):
            return False  # another engine or another chunk has the same content

        def then(done: bool, _: Content) -> None:
            self._coming.discard(name)
            self._balloon.counters.count("published_chunks", done)

        self._coming.add(name)
        self._balloon.publish(chunk, name, self._follows.pop(chunk, -1), content, then)
        return True

    def _filled_of(self, block: KVCacheBlock) -> Optional[Filled]:
        """Return the content of a block; None: it belongs to a request that cannot be shared."""
        filled = self._filled.get(block.block_id)
        return filled if filled and block.block_hash and block.block_hash[:-4] == filled.hash else None
