"""The scheduler's side: the chunks of the KV cache that have memory.

vLLM's block pool contains all blocks of the cache. The balloon removes the chunks that have no memory or must not be
written: it holds a reference to each of their blocks. A chunk is in one of these states:

  OUT         no memory
  COMMITTING  workers are giving it memory
  LIVE        its blocks belong to vLLM; the only state without references of the balloon
  HELD        it has cached blocks, which vLLM finds; requests may use them
  OFFERED     it has cached blocks, no request uses it, and the agent may take its memory
  RECLAIMING  workers are ending the offer
  MAPPING     workers are mapping an object there
  PUBLISHING  workers are publishing its content, while requests use it
  LEAVING     workers are decommitting its memory or unmapping its object

The content of `shared` chunks, which are HELD or OFFERED, is an object of the pool and read-only. An operation is sent
in the metadata of the next step, and the state changes when all workers have answered it.
"""

from __future__ import annotations

import enum
import heapq
from itertools import chain
from typing import TYPE_CHECKING, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set

from ._geometry import Geometry
from ._messages import Action, Answer, Answers, Content, Op, common
from ._metrics import Counters

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import KVCacheBlock


class State(enum.IntEnum):
    """List the states of a chunk."""

    OUT = 0
    COMMITTING = 1
    LIVE = 2
    HELD = 3
    OFFERED = 4
    RECLAIMING = 5
    MAPPING = 6
    PUBLISHING = 7
    LEAVING = 8


LEAST_USEFUL = ((State.OFFERED, True), (State.HELD, True), (State.OFFERED, False))
"""order in which chunks are replaced by other content, by state and `shared`"""
CLAIM_STEPS = 2
"""steps for which a chunk is not offered after a waiting request has asked for it"""


class Chunk:
    """Record the state of a chunk."""

    __slots__ = ("state", "shared", "refused", "used", "claimed")

    def __init__(self) -> None:
        self.state = State.OUT
        self.shared = False
        self.refused = False  # workers could not publish its content
        self.used = 0  # step of its last use
        self.claimed = -CLAIM_STEPS  # step in which a waiting request asked for it


class _Sent(NamedTuple):
    """Describe an operation that was sent: its answers so far, and the function to call after the last answer."""

    op: Op
    answer: Answer
    then: Optional[Callable[[bool, Content], None]]
    content: Content = ()


class Balloon:
    """Grow and shrink the memory of a block pool by chunks. Threads: one, the scheduler's."""

    def __init__(self, pool: BlockPool, geometry: Geometry, workers: int) -> None:
        self.pool = pool
        self.geometry = geometry
        self.counters = Counters()
        self.step = 0
        self.refusals = 0  # refused commits since the last one that succeeded
        self._workers = workers
        self._chunks = [Chunk() for _ in range(geometry.chunks)]
        size = geometry.chunk_blocks
        self._blocks = [pool.blocks[chunk * size : (chunk + 1) * size] for chunk in range(geometry.chunks)]
        self._in: Dict[State, Set[int]] = {state: set() for state in State}
        self._out: List[int] = []  # a heap: the lowest chunk is committed first
        self._ended: Set[int] = set()  # all LIVE chunks that no request uses; others may be among them
        self._queue: List[Op] = []
        self._sent: Dict[int, _Sent] = {}
        self._number = 0
        self._chunks[0].state = State.LIVE  # it contains vLLM's null block; workers commit it when they start
        self._in[State.LIVE].add(0)
        for chunk in range(1, geometry.chunks):
            self._hold(chunk)
            self._in[State.OUT].add(chunk)
            self._out.append(chunk)
        self._take(pool.blocks[geometry.chunks * size :])  # blocks after the last chunk are never used

    # ---- chunks ----

    def chunk_of(self, block: int) -> int:
        """Return the chunk of a block."""
        return block // self.geometry.chunk_blocks

    def blocks(self, chunk: int) -> List[KVCacheBlock]:
        """Return the blocks of a chunk, in order; the caller must not change the list."""
        return self._blocks[chunk]

    def state(self, chunk: int) -> State:
        """Return the state of a chunk."""
        return self._chunks[chunk].state

    def count(self, state: State) -> int:
        """Return the number of chunks in a state."""
        return len(self._in[state])

    def is_shared(self, chunk: int) -> bool:
        """Return whether the content of a chunk is an object."""
        return self._chunks[chunk].shared

    @property
    def has_ops(self) -> bool:
        """Return whether take_ops() would return operations."""
        return bool(self._queue)

    @property
    def busy(self) -> bool:
        """Return whether operations have not been answered yet."""
        return bool(self._queue or self._sent)

    def _set(self, chunk: int, state: State) -> None:
        record = self._chunks[chunk]
        self._in[record.state].discard(chunk)
        record.state = state
        self._in[state].add(chunk)
        if state == State.OUT:
            record.shared = record.refused = False
            heapq.heappush(self._out, chunk)

    def _take(self, blocks: List[KVCacheBlock]) -> None:
        """Remove blocks from vLLM's block pool, and from the total from which it computes the blocks in use."""
        self.pool.touch(blocks)
        self.pool.num_gpu_blocks -= len(blocks)

    def _hold(self, chunk: int) -> None:
        self._take(self.blocks(chunk))

    def _release(self, chunk: int) -> None:
        """Return the blocks to vLLM's block pool, which next uses those that are not cached, in their order."""
        self._set(chunk, State.LIVE)
        self._ended.add(chunk)
        self.pool.free_blocks(self.blocks(chunk))
        self.pool.num_gpu_blocks += self.geometry.chunk_blocks

    def _forget(self, chunk: int) -> None:
        """Remove the blocks from vLLM's prefix cache."""
        self._chunks[chunk].refused = False
        self.pool.evict_blocks({block.block_id for block in self.blocks(chunk)})

    def _references(self, chunk: int) -> bool:
        """Return whether requests use a chunk that the balloon holds."""
        return any(block.ref_cnt > 1 for block in self._blocks[chunk])

    def _is_free(self, chunk: int) -> bool:
        """Return whether no request uses a LIVE chunk."""
        for block in self._blocks[chunk]:  # any() of a generator would take twice the time
            if block.ref_cnt:
                return False
        return True

    def _is_empty(self, chunk: int) -> bool:
        """Return whether a chunk has no cached blocks."""
        for block in self._blocks[chunk]:
            if block.block_hash is not None:
                return False
        return True

    def _send(self, action: Action, chunk: int, state: State, **fields: object) -> Op:
        then = fields.pop("then", None)
        self._number += 1
        op = Op(self._number, action, chunk, **fields)  # type: ignore[arg-type]
        self._queue.append(op)
        self._sent[op.number] = _Sent(op, Answer(0, 0), then)  # type: ignore[arg-type]
        self._set(chunk, state)
        return op

    # ---- steps ----

    def take_ops(self) -> List[Op]:
        """Return the operations for the next step."""
        ops, self._queue = self._queue, []
        return ops

    def hear(self, answers: Answers) -> bool:
        """Change states according to the answers of the workers; return whether more chunks may be released."""
        news = bool(answers.lost)
        for number, answer in answers.answers.items():
            sent = self._sent.get(number)
            if sent is None:
                continue
            total = Answer(sent.answer.succeeded + answer.succeeded, sent.answer.failed + answer.failed)
            content = answers.contents.get(number, sent.content)
            content = common(sent.content, content) if sent.content else content
            if total.succeeded + total.failed < self._workers:
                self._sent[number] = sent._replace(answer=total, content=content)
                continue
            del self._sent[number]
            self._answered(sent.op, total)
            news |= sent.op.action not in (Action.OFFER, Action.LEAVE)
            if sent.then is not None:
                sent.then(total.failed == 0, content)
        for chunk in answers.lost:
            self._lost_in_use(chunk)
        return news

    def _answered(self, op: Op, answer: Answer) -> None:
        chunk, done = op.chunk, answer.failed == 0
        if op.action in (Action.COMMIT, Action.RENEW):
            self.refusals = 0 if done else self.refusals + 1
            if not done:
                self.counters.count("refused_commits")
            if done:
                self._release(chunk)
            else:
                self._undo(chunk, answer)
        elif op.action == Action.LEAVE:
            self._set(chunk, State.OUT)
        elif op.action == Action.RECLAIM:
            if not done:
                self.counters.count("lost_chunks")
                self._forget(chunk)
                self._send(Action.LEAVE, chunk, State.LEAVING)
            else:
                self._set(chunk, State.HELD)
        elif op.action == Action.MAP:
            if done:
                self._shared(chunk)
            else:
                self._undo(chunk, answer)
        elif op.action == Action.PUBLISH:
            if self._chunks[chunk].state in (State.OFFERED, State.RECLAIMING):  # it was offered in the same step
                self._chunks[chunk].shared = answer.succeeded > 0
            elif self._chunks[chunk].state != State.PUBLISHING:
                pass  # its memory is ended
            elif answer.succeeded:  # in workers that failed, the pages are kept, and are offered and reclaimed instead
                self._shared(chunk)
            else:
                self._release(chunk)
                self._chunks[chunk].refused = True

    def _shared(self, chunk: int) -> None:
        self._set(chunk, State.HELD)
        self._chunks[chunk].shared = True
        self._chunks[chunk].used = self.step

    def _undo(self, chunk: int, answer: Answer) -> None:
        """Return a chunk to OUT: undo the operation in the workers in which it succeeded, because others failed."""
        if answer.succeeded:
            self._send(Action.LEAVE, chunk, State.LEAVING)
        else:
            self._set(chunk, State.OUT)

    def _lost_in_use(self, chunk: int) -> None:
        """Handle a HELD chunk whose content was lost; requests compute its blocks again, in new memory."""
        record = self._chunks[chunk]
        self.counters.count("lost_in_use")
        self._forget(chunk)
        if record.state == State.HELD:
            record.shared = False
            self._release(chunk)

    # ---- growing ----

    @property
    def can_grow(self) -> bool:
        """Return whether more blocks can be expected to become free without a preemption."""
        if self._in[State.COMMITTING]:
            return True
        return not self.refusals and (bool(self._in[State.OUT]) or next(self._renewable(), None) is not None)

    @property
    def free_blocks(self) -> int:
        """Return the number of vLLM's free blocks, and of those that workers are giving memory."""
        return self.pool.get_num_free_blocks() + self.geometry.chunk_blocks * len(self._in[State.COMMITTING])

    def grow(self, blocks: int) -> None:
        """Give vLLM chunks until it has `blocks` free blocks or no further chunk is available."""
        free = self.free_blocks
        if free >= blocks:
            return
        size = self.geometry.chunk_blocks
        held = self._unused(State.HELD, shared=False)  # a generator: no cost unless it is used
        renewable = self._renewable()
        while free < blocks:
            out, chunk = self._in[State.OUT], None
            if self.refusals or not out:
                chunk = next(held, None)
            if chunk is not None:  # the pool has no room: use the oldest cached blocks
                self._forget(chunk)
                self._release(chunk)
            elif self.refusals and self._in[State.COMMITTING]:
                return
            elif out:
                self._send(Action.COMMIT, self._take_out(), State.COMMITTING)
            else:  # all addresses have content
                chunk = next(renewable, None)
                if chunk is None:
                    return
                self._forget(chunk)
                self._chunks[chunk].shared = False
                self._send(Action.RENEW, chunk, State.COMMITTING)
            free += size

    def _take_out(self) -> int:
        """Return the lowest OUT chunk, which must exist. The caller changes its state."""
        while True:
            chunk = heapq.heappop(self._out)
            if self._chunks[chunk].state == State.OUT:
                return chunk

    def _make_out(self) -> None:
        """Request the end of a chunk that no request uses, because no chunk is OUT."""
        if self._in[State.LEAVING]:
            return
        chunk = next(self._renewable(), None)
        if chunk is not None:
            self.end(chunk)

    def end(self, chunk: int) -> None:
        """End a HELD or OFFERED chunk that no request uses."""
        self._forget(chunk)
        self._send(Action.LEAVE, chunk, State.LEAVING)

    def reserve(self) -> Optional[int]:
        """Return an OUT chunk for map(); None: no chunk is OUT now."""
        if not self._in[State.OUT]:
            self._make_out()
            return None
        return self._take_out()

    def _unused(self, state: State, shared: bool) -> Iterator[int]:
        """Yield the chunks that no request uses or claims, least recently used first."""
        chunks = [chunk for chunk in self._in[state] if self._chunks[chunk].shared == shared]
        for chunk in sorted(chunks, key=lambda chunk: self._chunks[chunk].used):
            if not self._in_use(chunk):
                yield chunk

    def _renewable(self) -> Iterator[int]:
        """Yield the chunks whose content can be replaced, in the order of LEAST_USEFUL."""
        return chain.from_iterable(self._unused(state, shared) for state, shared in LEAST_USEFUL)

    def _in_use(self, chunk: int) -> bool:
        return self._chunks[chunk].claimed > self.step - CLAIM_STEPS or self._references(chunk)

    # ---- releasing memory ----

    def ended(self, blocks: Iterable[int]) -> None:
        """Record that a request ends, so that the next settle() checks the chunks of its blocks."""
        size = self.geometry.chunk_blocks
        self._ended.update([block // size for block in blocks])

    def settle(self, spare: int, publish: Optional[Callable[[int], bool]], every: bool = False) -> None:
        """Check the chunks that no request uses anymore: remove those with cached blocks from vLLM's free blocks, and
        end the others as long as `spare` blocks remain free.

        publish: called for a chunk with cached blocks; returns whether it is published. every: also check chunks whose
        blocks were freed without a call of ended().
        """
        looked = self._in[State.LIVE] if every else self._ended & self._in[State.LIVE]
        self._ended = {chunk for chunk in looked if chunk and self._is_free(chunk)}
        empty: List[int] = []
        for chunk in sorted(self._ended, reverse=True):
            if self._is_empty(chunk):
                empty.append(chunk)
                continue
            self._chunks[chunk].used = self.step
            if publish is None or not publish(chunk):
                self._hold(chunk)
                self._set(chunk, State.HELD)
        for chunk in empty:  # when the others are not counted as free anymore
            if self.pool.get_num_free_blocks() - self.geometry.chunk_blocks < spare:
                break
            self._hold(chunk)
            self._send(Action.LEAVE, chunk, State.LEAVING)

    def offer(self) -> None:
        """Offer all chunks with cached blocks that no request uses, least recently used first. Those that this step
        publishes are included: the engine may be stopped before its next step.
        """
        chunks = [chunk for chunk in self._in[State.HELD] | self._in[State.PUBLISHING] if not self._in_use(chunk)]
        for chunk in sorted(chunks, key=lambda chunk: self._chunks[chunk].used):
            self._send(Action.OFFER, chunk, State.OFFERED)

    def unclaim(self) -> None:
        """End all claims of waiting requests."""
        for record in self._chunks:
            record.claimed = self.step - CLAIM_STEPS

    def reset(self) -> None:
        """Remove all content that no request uses from the cache, and free its memory."""
        for chunk in list(self._in[State.HELD] | self._in[State.OFFERED]):
            if not self._references(chunk):
                self.end(chunk)

    # ---- using cached blocks ----

    def claim(self, chunks: Iterable[int]) -> bool:
        """Claim chunks with cached blocks that a request is about to use; return whether all can be used now. Otherwise
        the workers reclaim them.
        """
        ready = True
        for chunk in chunks:
            record = self._chunks[chunk]
            record.used = record.claimed = self.step
            if record.state == State.OFFERED:
                self._send(Action.RECLAIM, chunk, State.RECLAIMING)
            ready &= record.state in (State.LIVE, State.HELD, State.PUBLISHING)
        return ready

    def claim_all(self) -> bool:
        """Claim all offered chunks, as claim()."""
        return self.claim(list(self._in[State.OFFERED] | self._in[State.RECLAIMING]))

    # ---- objects ----

    def can_publish(self, chunk: int) -> bool:
        """Return whether a chunk has pages that the workers may be able to publish."""
        record = self._chunks[chunk]
        return chunk != 0 and record.state == State.LIVE and not record.refused

    def map(self, chunk: int, name: str, then: Callable[[bool, Content], None]) -> None:
        """Map an object at a chunk from reserve()."""
        self._chunks[chunk].claimed = self._chunks[chunk].used = self.step
        self._send(Action.MAP, chunk, State.MAPPING, name=name, then=then)

    def publish(
        self, chunk: int, name: str, follows: int, content: Content, then: Callable[[bool, Content], None]
    ) -> None:
        """Publish a LIVE chunk, which is then held."""
        self._hold(chunk)
        self._send(Action.PUBLISH, chunk, State.PUBLISHING, name=name, follows=follows, content=content, then=then)

    # ---- order of blocks ----

    def unused(self) -> List[int]:
        """Return the LIVE chunks that no request uses; none if each chunk is one block, whose order has no effect."""
        if self.geometry.chunk_blocks == 1:
            return []
        return [chunk for chunk in self._ended & self._in[State.LIVE] if chunk and self._is_free(chunk)]

    def empty(self) -> List[int]:
        """Return those of unused() that have no content, in order."""
        return sorted(filter(self._is_empty, self.unused()))

    def rest(self, chunks: Sequence[int]) -> int:
        """Return the number of vLLM's free blocks that are not in these unused chunks. The content of such a block is
        published only together with that of other requests, and never in chunk 0.
        """
        size = self.geometry.chunk_blocks
        return self.pool.get_num_free_blocks() - size * len(chunks) if size > 1 else 0

    def arrange(self, count: int, empty: Sequence[int]) -> None:
        """Order vLLM's free blocks so that a request that takes `count` of them gets chunks of empty() if possible, in
        order. Their content can then be found by the name of its first block.
        """
        size = self.geometry.chunk_blocks
        if size > 1:
            for chunk in reversed(empty[: -(-count // size)]):
                self._first(self._blocks[chunk])

    def continue_after(self, last: Sequence[int]) -> None:
        """Order vLLM's free blocks so that each request that takes one block gets the block after its last block
        (`last`), or a block of an empty chunk.
        """
        size = self.geometry.chunk_blocks
        if size == 1:
            return
        empty: Optional[List[int]] = None
        for block in reversed(last):
            after = self.pool.blocks[block + 1] if (block + 1) % size else None
            if after is not None and after.ref_cnt == 0 and after.block_hash is None:
                self._first([after])
                continue
            empty = self.empty() if empty is None else empty
            if empty:
                self._first(self.blocks(empty.pop()))

    def _first(self, blocks: List[KVCacheBlock]) -> None:
        """Make free blocks that are not cached the next ones that vLLM uses."""
        self.pool.touch(blocks)
        self.pool.free_blocks(blocks)
