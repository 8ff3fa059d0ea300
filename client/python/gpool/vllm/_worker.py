"""The worker's side: the range with the KV cache, and the operations on its chunks.

A chunk has committed pages, or an object whose pages are mapped there (`_objects`), or nothing.

A thread executes the operations in their order, so that the forward pass does not wait for the agent. This is possible
because the scheduler uses a chunk only after the answers to its operations. In a step without a forward pass the worker
waits for the thread, so that the answers do not need a further step.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import struct
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Deque, Dict, List, Optional, Set

import torch
from torch.overrides import TorchFunctionMode

from .._errors import Error, NoRoom, NotFound, Stale
from .._object import Object, ObjectClass
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
MADV_POPULATE_READ = 22
MADVISE = ctypes.CDLL(None).madvise
MADVISE.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Worker:
    """Own the range of a worker, and execute operations on it. Threads: one, besides the one of the operations."""

    def __init__(
        self, pool: Pool, namespace: Namespace, geometry: Geometry, rank: int, ranks: int, private: bool
    ) -> None:
        self.pool = pool
        self.geometry = geometry
        self._on_host = pool.device.backend == "host"
        self._namespace = namespace
        self._rank = rank
        self._ranks = ranks
        self._private = private
        self._objects: Dict[int, Object] = {}
        self._pinned: Set[int] = set()
        self._offered: Set[int] = set()  # chunks whose pages are offered to the pool; none of them is an object
        self._checked = time.monotonic()
        self._later: List[Op] = []
        self._waits = False  # no forward pass follows in this step
        self._thread = ThreadPoolExecutor(1, "gpool")  # while it runs, only it uses the fields above up to _offered
        self._running: Deque[Future[None]] = deque()
        self._reserved = False  # the thread's: its operations take pages over from a reservation
        self._refused = ""  # the thread's: the last refusal of reserved pages that was logged
        self._contents: Dict[int, Content] = {}  # the thread's: content of objects that it has mapped, by operation
        self._lock = threading.Lock()  # protects _answers
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
        self.range = self.pool.reserve_range(self.geometry.pages, ObjectClass.EPHEMERAL, Usage.KV_CACHE)
        view = self.range.view("int8", self.geometry.buffer_bytes, sparse=True)
        self.buffer = torch.from_dlpack(view)
        try:
            self._commit(0, 0)
        except NoRoom as error:
            raise NoRoom(
                error.errno,
                f"cannot start: the first chunk of the KV cache needs {counted(self.geometry.chunk_pages, 'page')} of "
                f"pool '{self.pool.device.pool}', which has {self.pool.page_count}: {error.strerror}; use a larger "
                "pool, or stop another engine",
            ) from error
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
        self._check_pins()
        if not orders.ops and not self._running:  # most steps
            self._waits = orders.patience_ms > 0
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
        self._waits = orders.patience_ms > 0

    def after_forward(self) -> None:
        """Begin the operations that read the output of the forward pass, and those that follow them."""
        if not self._later and not self._running and not self._tainted:  # most steps
            return
        later, self._later = self._later, []
        if self._tainted:
            for op in later:
                if op.action in AFTER_FORWARD:
                    self._answer(op, False)
            later = [op for op in later if op.action not in AFTER_FORWARD]
            self._tainted = False
        self._begin(later, 0)
        if self._waits:
            self.wait()

    def wait(self) -> None:
        """Wait for the end of all operations that have begun."""
        while self._running:
            self._running.popleft().result()

    def take_answers(self) -> Optional[Answers]:
        """Return the answers since the last call, or None."""
        answers = self._answers
        if not answers.answers and not answers.lost:  # without the lock: the next step takes a later answer
            return None
        with self._lock:
            answers, self._answers = self._answers, Answers()
        return answers

    def take_invalid_blocks(self) -> Set[int]:
        """Return the blocks in use whose content was lost since the last call."""
        invalid = self._invalid
        if invalid:
            self._invalid = set()
        return invalid

    def _begin(self, ops: List[Op], patience_ms: int, reservation: int = 0) -> None:
        """Let the thread execute operations after the work that is queued now. Raise an exception of earlier ones."""
        while self._running and self._running[0].done():
            self._running.popleft().result()
        if not ops:
            return
        queued = torch.cuda.current_stream().record_event() if self.pool.device.backend == "cuda" else None
        self._running.append(self._thread.submit(self._execute, ops, patience_ms, reservation, queued))

    def _execute(self, ops: List[Op], patience_ms: int, reservation: int, queued: Optional[torch.cuda.Event]) -> None:
        if queued is not None:
            queued.synchronize()
        self._reserved = reservation != 0
        with self.pool.use_reservation(reservation) if reservation else contextlib.nullcontext():
            for op in ops:
                self._execute_one(op, patience_ms)

    def _answer(self, op: Op, done: bool) -> None:
        with self._lock:
            self._answers.answers[op.number] = Answer(int(done), int(not done))
            if op.number in self._contents:
                self._answers.contents[op.number] = self._contents.pop(op.number)

    def _execute_one(self, op: Op, patience_ms: int) -> None:
        try:
            done = self._try(op, patience_ms)
        except (NoRoom, Stale) as error:
            # Reserved pages are refused only because of the quota of this session. The request waits forever then.
            if self._reserved and isinstance(error, NoRoom) and str(error) != self._refused:
                self._refused = str(error)  # the scheduler tries again and again
                where = f"rank {self._rank} cannot take over reserved memory in session {self.pool.session}"
                logger.warning("gpool: %s: %s", where, error)
            done = False
        except Error as error:
            logger.warning("gpool: %s of chunk %d has failed: %s", op.action.name, op.chunk, error)
            done = False
        self.counters.count(op.action.name.lower(), done)
        self._answer(op, done)

    def _try(self, op: Op, patience_ms: int) -> bool:
        """Return whether an operation has succeeded. Raises Error."""
        if op.action == Action.COMMIT:
            return self._commit(op.chunk, patience_ms)
        if op.action == Action.RENEW:
            return self._renew(op.chunk, patience_ms)
        if op.action == Action.LEAVE:
            return self._leave(op.chunk)
        if op.action == Action.OFFER:
            return self._offer(op.chunk)
        if op.action == Action.RECLAIM:
            return self._reclaim(op.chunk)
        if op.action == Action.MAP:
            return self._map(op)
        return self._publish(op)

    # ---- memory ----

    @property
    def _range(self) -> Range:
        assert self.range is not None
        return self.range

    def _first(self, chunk: int) -> int:
        return chunk * self.geometry.chunk_pages

    def _bytes(self, chunk: int) -> torch.Tensor:
        assert self.buffer is not None
        return self.buffer[chunk * self.geometry.chunk_bytes : (chunk + 1) * self.geometry.chunk_bytes]

    def _zero(self, chunk: int) -> None:
        """Fill a chunk with zeros: attention would propagate NaNs of its old content."""
        if self._on_host:  # PyTorch would distribute this small operation to all its threads, and wait for them
            address, size = self._range.address + chunk * self.geometry.chunk_bytes, self.geometry.chunk_bytes
            # One call instead of a page fault for each 4 KiB. Before Linux 5.14 it fails, and has no effect.
            MADVISE(address, size, MADV_POPULATE_READ)
            ctypes.memset(address, 0, size)
        else:
            chunk_bytes = self._bytes(chunk)
            chunk_bytes.zero_()
            torch.cuda.current_stream(chunk_bytes.device).synchronize()  # the forward pass uses another stream

    def _commit(self, chunk: int, patience_ms: int) -> bool:
        try:
            self._range.commit(self._first(chunk), self.geometry.chunk_pages, patience_ms)
        except NotFound:
            return False  # the reservation has ended, or has too few pages
        self._zero(chunk)
        return True

    def _leave(self, chunk: int) -> bool:
        if chunk in self._objects:
            self._close(chunk)
        self._offered.discard(chunk)
        self._range.decommit(self._first(chunk), self.geometry.chunk_pages)
        return True

    def _renew(self, chunk: int, patience_ms: int) -> bool:
        """Give a chunk memory for other content. It keeps its pages, unless they are an object or were taken."""
        if chunk in self._offered and self._reclaim(chunk):
            return True
        return self._leave(chunk) and self._commit(chunk, patience_ms)

    def _offer(self, chunk: int) -> bool:
        if chunk not in self._objects:
            self._range.offer(self._first(chunk), self.geometry.chunk_pages)
            self._offered.add(chunk)
        elif chunk in self._pinned:
            self._pinned.discard(chunk)
            self._objects[chunk].unpin()
        return True

    def _reclaim(self, chunk: int) -> bool:
        if chunk in self._objects:
            if chunk not in self._pinned:
                self._objects[chunk].pin()
                self._pinned.add(chunk)
            return True
        self._offered.discard(chunk)
        return all(self._range.reclaim(self._first(chunk), self.geometry.chunk_pages))

    # ---- objects ----

    def _name(self, name: str) -> str:
        return self._namespace.name(self._rank, name)

    def _keep(self, chunk: int, made: Object) -> None:
        self._objects[chunk] = made
        self._pinned.add(chunk)

    def _close(self, chunk: int) -> None:
        self._pinned.discard(chunk)
        self._objects.pop(chunk).close()

    def _publish(self, op: Op) -> bool:
        self._keep(
            op.chunk,
            self._range.publish(
                self._first(op.chunk),
                self.geometry.chunk_pages,
                self._name(op.name),
                key=METADATA_KEY,
                value=self._namespace.digest + pack(op.content),
                private=self._private,
                follows=self._objects.get(op.follows),
            ),
        )
        return True

    def _map(self, op: Op) -> bool:
        mapped = self._range.map(self._first(op.chunk), self._name(op.name))
        try:
            info = mapped.info()
            fits = info.pages == self.geometry.chunk_pages and info.memory_class == ObjectClass.EPHEMERAL
            about = mapped[METADATA_KEY] if METADATA_KEY in mapped else b""
            fits = fits and about.startswith(self._namespace.digest)
            content = self._content(about[len(self._namespace.digest) :])
            fits = fits and content is not None
            if not fits:
                logger.warning("gpool: object '%s' of process %d is not a prefix of this model", info.name, info.pid)
            else:
                with mapped.pin():
                    pass  # check that it can be pinned: objects that were not published by a range cannot
        except Error:
            mapped.close()
            raise
        if not fits:
            mapped.close()
            return False
        self._keep(op.chunk, mapped)
        assert content is not None
        self._contents[op.number] = content
        return True

    def _content(self, packed: bytes) -> Optional[Content]:
        """Return the content that an object's metadata describes; None: it is not metadata of a chunk."""
        try:
            content = unpack(packed)
        except struct.error:
            return None
        return content if len(content) == self.geometry.chunk_blocks else None

    # ---- pins ----

    def _check_pins(self) -> None:
        """Find objects that were evicted although they are pinned.

        The agent does not evict pinned objects. The check limits the effects of errors in other processes.
        """
        if time.monotonic() - self._checked < CHECK_SECONDS:
            return
        self._checked = time.monotonic()
        self.wait()
        lost = {chunk for chunk in self._pinned if not self._is_kept(chunk)}
        if lost:
            self._replace(lost)

    def _is_kept(self, chunk: int) -> bool:
        try:
            with self._objects[chunk].pin():
                return True
        except Stale:
            return False

    def _replace(self, lost: Set[int]) -> None:
        """Give new memory to chunks whose objects were lost; vLLM computes their blocks again in this memory.

        vLLM also writes to the blocks after them, which may belong to other objects, so each pinned object is replaced
        by a private copy.

        Raises RuntimeError: with several workers, the others may still map the objects, which are read-only.
        """
        if self._ranks > 1:
            raise RuntimeError(f"gpool: {len(lost)} objects were evicted although they are pinned; restart the engine")
        logger.warning("gpool: %d chunks were evicted while requests used them; they are computed again", len(lost))
        blocks = self.geometry.chunk_blocks
        for chunk in list(self._pinned):
            content = None if chunk in lost else self._bytes(chunk).clone()
            self._close(chunk)
            self._commit(chunk, REPLACE_MS)
            if content is None:
                self._invalid.update(range(chunk * blocks, (chunk + 1) * blocks))
                self._answers.lost.add(chunk)
            else:
                self._bytes(chunk).copy_(content)
        self._tainted = True

    def close(self) -> None:
        """Detach from the pool if its memory is not in use. Otherwise the session ends with the process."""
        self._thread.shutdown()
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
