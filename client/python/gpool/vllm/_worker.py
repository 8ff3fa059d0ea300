"""The worker's side: the range with the KV cache, and the operations on its chunks.

A chunk has committed pages, or an object whose pages are mapped there, or nothing (_native.Chunks).

A thread executes the operations in their order, so that the forward pass does not wait for the agent. This is possible
because the scheduler uses a chunk only after the answers to its operations. In a step without a forward pass the worker
executes them itself, so that the answers do not need a further step.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple, Union

import torch
from torch.overrides import TorchFunctionMode

from .. import _native
from .._errors import Error, NoRoom, NotFound, Stale
from .._object import ObjectClass
from .._options import Usage
from .._pool import Pool
from .._range import Range
from .._text import counted
from ._geometry import Geometry
from ._identity import Namespace
from ._messages import AFTER_FORWARD, Action, Answer, Answers, Content, Op, Orders, pack, unpack
from ._metrics import Counters

logger = logging.getLogger("vllm.gpool")

REPLACE_MS = 30000
"""longest wait for pages that replace lost pages of running requests"""
CHECK_SECONDS = 5.0
"""time between two checks of pinned objects"""
METADATA_KEY = "gpool.vllm"


class _Batch(NamedTuple):
    """Operations that are executed together."""

    ops: List[Op]
    calls: List[Tuple[Any, ...]]
    """what Chunks.execute() takes for each of them; not used for MAP"""
    patience_ms: int
    reservation: int
    queued: Optional[torch.cuda.Event]
    """recorded after the work that precedes the operations"""


_Ended = Union[_Batch, Tuple[_Batch, Set[int]], BaseException]
"""a batch, and the numbers of its operations that have failed, or the exception that has ended it"""
_Result = Tuple[int, Optional[Error]]
"""of Chunks.execute()"""


class Worker:
    """Own the range of a worker, and execute operations on it. Threads: one, besides the one of the operations."""

    def __init__(
        self, pool: Pool, namespace: Namespace, geometry: Geometry, rank: int, ranks: int, private: bool
    ) -> None:
        self.pool = pool
        self.geometry = geometry
        self._namespace = namespace
        self._rank = rank
        self._ranks = ranks
        self._private = private
        self._check_at = time.monotonic() + CHECK_SECONDS
        self._later: List[Op] = []
        self._waits = False  # no forward pass follows in this step
        self._running = 0  # number of batches in the thread whose end was not taken
        self._thread: Optional[threading.Thread] = None
        # While operations have not ended, only the thread changes chunks and uses this field.
        self._refused = ""  # the last refusal of reserved pages that was logged
        # The thread adds to this field, and the other one takes what belongs to ended operations.
        self._contents: Dict[int, Content] = {}  # content of mapped objects, by operation
        self._answers = Answers()
        self._invalid: Set[int] = set()
        self._tainted = False  # this step's forward pass reads lost content
        self.counters = Counters()
        self.range: Optional[Range] = None
        self.buffer: Optional[torch.Tensor] = None

    # ---- the buffer ----

    def allocation(self) -> TorchFunctionMode:
        """Return a context in which vLLM's allocation of its KV cache buffer returns the range."""
        return _Allocation(self.geometry.buffer_bytes, self._allocate)

    def _allocate(self) -> torch.Tensor:
        """Return the buffer: a tensor over the whole range, in which only the first chunk has memory."""
        # Attention would propagate NaNs in memory of other processes, so it is filled with zeros.
        self.range = self.pool.reserve_range(self.geometry.pages, ObjectClass.EPHEMERAL, Usage.KV_CACHE, zero=True)
        self._chunks = _native.Chunks(
            self.range.handle,
            self.pool,
            self.geometry.chunks,
            self.geometry.chunk_pages,
            METADATA_KEY.encode(),
            self._private,
        )
        view = self.range.view("int8", self.geometry.buffer_bytes, sparse=True)
        self.buffer = torch.from_dlpack(view)
        error = self._chunks.execute([(Action.COMMIT, 0)], 0)[1]
        if isinstance(error, NoRoom):
            raise NoRoom(
                error.errno,
                f"cannot start: the first chunk of the KV cache needs {counted(self.geometry.chunk_pages, 'page')} of "
                f"pool '{self.pool.device.pool}', which has {self.pool.page_count}: {error.strerror}; use a larger "
                "pool, or stop another engine",
            ) from error
        if error is not None:
            raise error
        thread = threading.Thread(target=self._run_thread, args=(self._chunks,), name="gpool", daemon=True)
        thread.start()
        self._thread = thread
        return self.buffer

    def check_buffer(self, kv_caches: Dict[str, torch.Tensor]) -> None:
        """Check that vLLM's KV cache is in the range. Raises RuntimeError: it is not, or it has another layout."""
        if self.buffer is None or self.range is None:
            raise RuntimeError(
                "GpoolConnector: vLLM has not allocated its KV cache as one buffer of int8 through torch.zeros(); "
                "this model or device is not supported"
            )
        begin, end = self.range.address, self.range.address + self.geometry.buffer_bytes
        for name, cache in kv_caches.items():
            if not begin <= cache.data_ptr() < end:
                raise RuntimeError(f"GpoolConnector: the KV cache of layer {name} is not in the range of gpool")
            if cache.dim() > 1 and cache.stride(0) * cache.element_size() != self.geometry.block_bytes:
                raise RuntimeError(
                    f"GpoolConnector: blocks of layer {name} are {cache.stride(0) * cache.element_size()} bytes "
                    f"apart and not {self.geometry.block_bytes}; the layout is not BLHNC"
                )

    # ---- a step ----

    def before_forward(self, orders: Orders) -> None:
        """Begin the operations that can precede the forward pass, and keep the others for after_forward()."""
        if time.monotonic() >= self._check_at:
            self._check_pins()
        self._waits = orders.patience_ms > 0
        if not orders.ops and not self._running:  # most steps
            return
        now: List[Op] = []
        later: Set[int] = set()
        for op in orders.ops:
            if op.action in AFTER_FORWARD or op.chunk in later:
                self._later.append(op)
                later.add(op.chunk)
            else:
                now.append(op)
        self._begin(now, orders.patience_ms, orders.reservations[self._rank] if orders.reservations else 0)

    def after_forward(self) -> None:
        """Begin the operations that read the output of the forward pass, and those that follow them."""
        if not self._later and not self._running and not self._tainted:  # most steps
            return
        later, self._later = self._later, []
        if self._tainted:
            refused = [op for op in later if op.action in AFTER_FORWARD]
            self._answer(refused, {op.number for op in refused})
            later = [op for op in later if op.action not in AFTER_FORWARD]
            self._tainted = False
        self._begin(later, 0)

    def wait(self) -> None:
        """Wait for the end of all operations that have begun. Raises the exception that has ended one of them."""
        while self._take_ended(True):
            pass

    def _take_ended(self, wait: bool) -> bool:
        """Record the answers of the first batch in the thread; return False if there is none that has ended."""
        ended: Optional[_Ended] = self._chunks.take(wait) if self._running else None
        if ended is None:
            return False
        self._running -= 1
        if isinstance(ended, BaseException):
            raise ended
        batch, failed = (ended, set()) if isinstance(ended, _Batch) else ended
        self._answer(batch.ops, failed)
        return True

    def take_answers(self) -> Optional[Answers]:
        """Return the answers since the last call, or None."""
        answers = self._answers
        if not answers.answers and not answers.lost:
            return None
        self._answers = Answers()
        return answers

    def take_invalid_blocks(self) -> Set[int]:
        """Return the blocks in use whose content was lost since the last call."""
        invalid = self._invalid
        if invalid:
            self._invalid = set()
        return invalid

    def _begin(self, ops: List[Op], patience_ms: int, reservation: int = 0) -> None:
        """Give operations to the thread, which executes them after the GPU work that is queued now. If no forward pass
        follows, execute them here, after the operations that have begun. Raise an exception of earlier operations.
        """
        while self._take_ended(self._waits):
            pass
        if not ops:
            return
        queued = torch.cuda.current_stream().record_event() if self.pool.device.backend == "cuda" else None
        batch = _Batch(ops, [self._call(op) for op in ops], patience_ms, reservation, queued)
        if self._waits:
            self._answer(ops, self._run(batch))
        else:
            simple = not reservation and queued is None and all(op.action != Action.MAP for op in ops)
            self._chunks.post(batch, batch.calls if simple else None)
            self._running += 1

    def _run_thread(self, chunks: _native.Chunks) -> None:
        """Execute batches. Most of them run no Python code here: the forward pass waits while this thread has the
        interpreter's lock. The other thread therefore prepares the calls and records the answers.
        """
        while True:
            served = chunks.serve()
            if served is None:
                return
            batch, begun = served
            try:
                chunks.finish((batch, self._run(batch, begun)))
            except BaseException as error:  # the thread of the forward pass raises it
                chunks.finish(error)

    def _run(self, batch: _Batch, begun: Optional[_Result] = None) -> Set[int]:
        """Execute a batch; return the numbers of the operations that have failed. begun: the result of its calls up to
        one that has failed.
        """
        if batch.queued is not None:
            batch.queued.synchronize()
        with self.pool.use_reservation(batch.reservation) if batch.reservation else contextlib.nullcontext():
            return self._execute(batch, begun)

    def _execute(self, batch: _Batch, begun: Optional[_Result]) -> Set[int]:
        """Execute operations in order, in as few calls as possible."""
        failed: Set[int] = set()
        ops, calls = batch.ops, batch.calls
        while ops:
            if ops[0].action == Action.MAP:
                count, (done, error) = 1, self._map(ops[0])
            else:
                count = next((at for at, op in enumerate(ops) if op.action == Action.MAP), len(ops))
                done, error = begun or self._chunks.execute(calls[:count], batch.patience_ms)
                begun = None
            if done < count:
                if error is not None:
                    self._report(ops[done], error, batch.reservation)
                failed.add(ops[done].number)
                done += 1
            ops, calls = ops[done:], calls[done:]
        return failed

    def _call(self, op: Op) -> Tuple[Any, ...]:
        if op.action != Action.PUBLISH:
            return op.action, op.chunk
        return op.action, op.chunk, self._name(op.name), self._namespace.digest + pack(op.content), op.follows

    def _name(self, name: str) -> bytes:
        return self._namespace.name(self._rank, name).encode()

    def _answer(self, ops: List[Op], failed: Set[int]) -> None:
        answers = self._answers
        for op in ops:
            done = op.number not in failed
            self.counters.count(op.action.name.lower(), done)
            answers.answers[op.number] = Answer(int(done), int(not done))
            if op.number in self._contents:
                answers.contents[op.number] = self._contents.pop(op.number)

    def _report(self, op: Op, error: Error, reservation: int) -> None:
        """Log an error, unless it only means that the pool has no room, or that the content was lost."""
        if isinstance(error, NoRoom) and reservation:
            # Reserved pages are refused only because of the quota of this session. The request waits forever then.
            if str(error) != self._refused:  # the scheduler tries again and again
                self._refused = str(error)
                where = f"rank {self._rank} cannot take over reserved memory in session {self.pool.session}"
                logger.warning("gpool: %s: %s", where, error)
        elif isinstance(error, (NoRoom, Stale)):
            pass
        elif isinstance(error, NotFound) and reservation:
            pass  # the reservation has ended, or has too few pages
        else:
            logger.warning("gpool: %s of chunk %d has failed: %s", op.action.name, op.chunk, error)

    def _map(self, op: Op) -> Tuple[int, Optional[Error]]:
        """Map an object; return as execute()."""
        try:
            pages, memory_class, pid, about = self._chunks.map(op.chunk, self._name(op.name))
        except Error as error:
            return 0, error
        digest = self._namespace.digest
        content = self._content(about[len(digest) :]) if about.startswith(digest) else None
        if content is None or pages != self.geometry.chunk_pages or memory_class != ObjectClass.EPHEMERAL:
            name = self._namespace.name(self._rank, op.name)
            logger.warning("gpool: object '%s' of process %d is not a prefix of this model", name, pid)
            return 0, self._chunks.execute([(Action.LEAVE, op.chunk)], 0)[1]
        self._contents[op.number] = content
        return 1, None

    def _content(self, packed: bytes) -> Optional[Content]:
        """Return the content that an object's metadata describes; None: it is not metadata of a chunk."""
        try:
            content = unpack(packed)
        except struct.error:
            return None
        return content if len(content) == self.geometry.chunk_blocks else None

    def _bytes(self, chunk: int) -> torch.Tensor:
        assert self.buffer is not None
        return self.buffer[chunk * self.geometry.chunk_bytes : (chunk + 1) * self.geometry.chunk_bytes]

    # ---- pins ----

    def _check_pins(self) -> None:
        """Find objects that were evicted although they are pinned.

        The agent does not evict pinned objects. The check limits the effects of errors in other processes.
        """
        self._check_at = time.monotonic() + CHECK_SECONDS
        self.wait()
        lost = self._chunks.lost()
        if lost:
            self._replace(lost)

    def _replace(self, lost: List[int]) -> None:
        """Give new memory to chunks whose objects were lost; vLLM computes their blocks again in this memory.

        vLLM also writes to the blocks after them, which may belong to other objects, so each pinned object is replaced
        by a private copy.

        Raises RuntimeError: with several workers, the others may still map the objects, which are read-only.
        """
        if self._ranks > 1:
            raise RuntimeError(f"gpool: {len(lost)} objects were evicted although they are pinned; restart the engine")
        logger.warning("gpool: %d chunks were evicted while requests used them; they are computed again", len(lost))
        blocks = self.geometry.chunk_blocks
        for chunk in self._chunks.pinned():
            content = None if chunk in lost else self._bytes(chunk).clone()
            error = self._chunks.execute([(Action.RENEW, chunk)], REPLACE_MS)[1]
            if error is not None:
                raise error
            if content is None:
                self._invalid.update(range(chunk * blocks, (chunk + 1) * blocks))
                self._answers.lost.add(chunk)
            else:
                self._bytes(chunk).copy_(content)
        self._tainted = True

    def close(self) -> None:
        """Detach from the pool if its memory is not in use. Otherwise the session ends with the process."""
        if self._thread is not None and self._thread.is_alive():
            self._chunks.stop()
            self._thread.join()
            while self._chunks.take(True) is not None:
                pass  # the results concern no step anymore
        self.buffer = None
        try:
            self.pool.close()
        except Error:
            pass  # vLLM's tensors still use the memory


class _Allocation(TorchFunctionMode):
    """Return the range from the first call of torch.zeros(size, dtype=torch.int8); other calls are not changed."""

    def __init__(self, size: int, allocate: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self._size = size
        self._allocate: Optional[Callable[[], torch.Tensor]] = allocate

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (
            func is torch.zeros
            and self._allocate is not None
            and kwargs.get("dtype") is torch.int8
            and args == (self._size,)
        ):
            allocate, self._allocate = self._allocate, None
            return allocate()
        return func(*args, **kwargs)
