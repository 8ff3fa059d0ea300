"""Paged KV caches: keys and values of tokens in blocks, and for each sequence a table of its blocks."""

from __future__ import annotations

import array
import ctypes
import enum
import errno
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable, List, NamedTuple, NoReturn, Optional, Sequence, Tuple, Union

from . import _abi, _native
from ._checked import check_count
from ._dtype import dtype_of
from ._errors import Busy, Error, Preempted, check, error
from ._handle import Closing, Handle
from ._library import library
from ._text import c_bytes, counted, sequence
from ._view import Addresses, View
from ._wait import waiting

if TYPE_CHECKING:
    from ._kv_group import KvGroup
    from ._pool import Pool
    from ._stream import Stream


CHOOSE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64))
"""type of the policy of gpool_kv_grow()"""
SEQUENCES_MOST = 65536
"""sequences of a cache (max_sequences), and therefore of the preempted ones"""


class KvAdmission(enum.IntEnum):
    """Whether a sequence can be admitted."""

    OK = _abi.GPOOL_KV_OK
    LATER = _abi.GPOOL_KV_LATER
    """too few blocks now, or only if unpinned content is evicted; KvCache.allocate() may evict it"""
    NEVER = _abi.GPOOL_KV_NEVER
    """exceeds the limit for a sequence, or the size of the cache or the pool"""


class KvState(enum.IntEnum):
    """The state of a sequence."""

    RUNNING = _abi.GPOOL_KV_RUNNING
    PREEMPTED = _abi.GPOOL_KV_PREEMPTED


class KvLayout(NamedTuple):
    """The location of blocks: block i is at address + i // chunk_blocks * chunk_bytes + i % chunk_blocks *
    block_bytes.
    """

    block_tokens: int
    block_bytes: int
    chunk_bytes: int
    chunk_blocks: int
    max_blocks: int
    address: int
    """of block 0"""
    table_address: int
    """of the tables on the device: int32 [max_sequences][table_columns]; KvCache.sync()"""
    table_columns: int
    max_sequences: int
    pool_blocks: int
    """read-only blocks of the pool, numbered from max_blocks on"""
    layer_bytes: int
    """of a cache with int8: the distance of layers in a block. The following fields are byte offsets of the first
    layer, and strides, as described by struct gpool_kv_layout; in other caches all of them are 0
    """
    keys: int
    values: int
    key_scales: int
    value_scales: int
    token_stride: int
    head_stride: int
    scale_token_stride: int
    scale_head_stride: int


class KvNeed(NamedTuple):
    """The number of blocks that a request needs, and the numbers of blocks that are available."""

    needed_blocks: int
    available_blocks: int
    """free and cached blocks with memory in this cache or free in the pool: no content would be evicted"""
    free_blocks: int
    """all blocks that are not in use, with or without memory; includes cached ones"""
    watermark_blocks: int
    """those of the free blocks that admission keeps free"""


class KvSequenceInfo(NamedTuple):
    """Description of a sequence."""

    state: KvState
    tokens: int
    blocks: int
    """current blocks; of a preempted sequence: the blocks that it had, and gets again when it is resumed"""
    shared_blocks: int
    """those of the blocks that other sequences share"""
    room: int
    """tokens that fit without a further block or copy"""
    row: int
    """in the tables on the device"""
    priority: int
    arrival: int
    """a lower number arrived earlier"""
    owner_id: int


class KvPrefixFound(NamedTuple):
    """The longest published prefix of some tokens."""

    blocks: int
    """from the first on, without a gap"""
    tokens: int
    cached_blocks: int
    """those of the blocks that no sequence uses; they count as free until they are used"""
    last_block: int = -1
    """number of the last of the blocks; -1: none"""


class KvPrefixNode(NamedTuple):
    """A node of the radix tree of published blocks: a run of blocks without a branch, used by the same sequences."""

    key: str
    """of its last block: a hash, in hexadecimal, of all tokens up to its end, and of model, shape, adapter and salt"""
    parent: Optional[int]
    """index of the node that it follows; None: it is the beginning of its texts"""
    children: int
    first_token: int
    """number of tokens before it"""
    blocks: int
    last_block: int
    """number of its last block"""
    sequences: int
    """running sequences that use its blocks; 0: they are cached"""
    pooled: bool
    """whether other processes can share its blocks"""


class KvQuantError(NamedTuple):
    """The loss of precision by the conversion of a sequence to int8, over all elements x of its blocks, which became
    x'."""

    max_error: float
    """max |x - x'|; infinity: the content cannot be converted"""
    relative_error: float
    """sqrt(sum (x - x')^2 / sum x^2)"""

    @classmethod
    def of_writes(cls, data: Any) -> KvQuantError:
        """Return the loss from the 24 bytes to which KvCache.write() has added. data: bytes, or another buffer."""
        sums = _abi.gpool_kv_write_error.from_buffer_copy(c_bytes(data, "data"))
        relative = (sums.error_squares / sums.squares) ** 0.5 if sums.squares else 0.0
        return cls(sums.max_error, relative)


class KvOffloadInfo(NamedTuple):
    """Description of the content that is kept for preempted sequences."""

    host_blocks: int
    """blocks in the host memory of the cache; 0: the cache has none"""
    host_free_blocks: int
    sequences: int
    """sequences whose content is kept"""
    host_bytes: int
    content_bytes: int
    """size of their content in the blocks of the cache"""
    pool_pages: int
    """pages of blocks with this content, in the pool, in the agent's host memory, or in its file"""
    saves: int
    loads: int


class KvStats(NamedTuple):
    """Statistics of a cache: current numbers of blocks and sequences, and counters."""

    used_blocks: int
    free_blocks: int
    """includes cached blocks; the sum of used and free blocks is max_blocks"""
    available_blocks: int
    watermark_blocks: int
    reclaimable_blocks: int
    """blocks of the next victim of preempt() that no other sequence shares"""
    step_blocks: int
    """enough blocks for one more token of every running sequence"""
    shared_blocks: int
    """own blocks that more than one sequence uses"""
    running: int
    preempted: int
    committed_chunks: int
    """chunks with memory"""
    cached_blocks: int
    """published blocks that no sequence uses"""
    committed_bytes: int
    allocations: int
    forks: int
    frees: int
    preemptions: int
    resumes: int
    refusals: int
    """calls refused for lack of blocks, sequences or pages"""
    block_copies: int
    table_bytes: int
    """bytes of tables copied to the device"""
    prefix_hits: int
    prefix_misses: int
    prefix_published: int
    prefix_switched: int
    """blocks that were replaced when they were published, by blocks with the same content"""
    prefix_evicted: int
    pool_shared: int
    """blocks that prefix_share() moved to the pool"""
    pool_found: int
    """blocks found in the pool"""
    pool_blocks: int
    """blocks of the pool that are mapped here"""
    offered_chunks: int
    prefix_lost: int
    """cached blocks that were lost because the agent took them or an earlier block"""


class KvPrefix(NamedTuple):
    """Tokens from the beginning of a sequence, given by their IDs. Blocks are found only with the same adapter and
    salt; a secret salt separates tenants.
    """

    ids: Iterable[int]
    adapter_id: int = 0
    """adapter with which they are computed; 0: none"""
    salt: Tuple[int, int] = (0, 0)


class KvCache(_native.KvCache, Closing):
    """A paged KV cache with blocks of one size, from Pool.create_kv_cache() to close().

        with pool.stream() as stream, pool.create_kv_cache(32, 8, 128, stream) as cache:
            sequence = cache.allocate(len(prompt))
            slot = cache.append(sequence)

    The cache has one range of addresses, in which block i always has the same address (KvLayout). The memory of a chunk
    of blocks is committed when the first of its blocks is used. It is reclaimable by any session when no block of the
    chunk is used.

    A sequence is a number that is valid only in this cache. GPU work with a cache must be queued on its stream, or the
    program must make that stream wait for it, because a freed block may be allocated to another sequence at once.

    Calls for a sequence raise Stale: the sequence has ended; Error with EINVAL: it is not a sequence of this cache.
    Calls that allocate raise NoRoom, in which case oom_info() returns the numbers; Asleep; AgentGone; Error with
    ENOMEM.

    Threads: any.
    """

    def __init__(self, pool: Pool, options: _abi.gpool_kv_options, dtype: Any) -> None:
        """Create a cache; for this package only: see Pool.create_kv_cache()."""
        self._pool = pool
        self.element = dtype_of("int8" if options.flags & _abi.GPOOL_KV_INT8 else dtype)
        self._written = dtype_of(dtype)
        pointer = ctypes.c_void_p()
        with pool.handle as attached:
            check(library().gpool_kv_create(attached, options, ctypes.byref(pointer)), "create a KV cache")
        assert pointer.value
        self.addresses = Handle(pointer.value, "a KV cache", pool.handle)  # held by views, which permit sleep
        self.handle = Handle(pointer.value, "a KV cache", pool.handle)
        self.groups: weakref.WeakSet[KvGroup] = weakref.WeakSet()
        """current and former groups of this cache"""
        self.layout: KvLayout = self._read(_abi.gpool_kv_layout, library().gpool_kv_layout, KvLayout)

    def __repr__(self) -> str:
        return (
            f"<gpool.KvCache {counted(self.layout.max_blocks, 'block')} of {counted(self.layout.block_tokens, 'token')}"
            f"{', closed' * self.handle.closed}>"
        )

    def close(self) -> None:
        """Wait for the work on the pool's streams and end the cache and its sequences; a second call does nothing.

        A signal handler that raises an exception ends the wait, and the cache remains open with its sequences.
        Raises Busy: a view or a group of it exists, or GPU work that was queued elsewhere uses it.
        """
        if not self._pool.closed:
            if any(not group.handle.closed for group in self.groups):
                raise Busy(errno.EBUSY, "cannot close a KV cache: it belongs to a group; close the group first")
            self.addresses.refuse_views("close")
            with self._pool.handle:
                self.handle.close(library().gpool_kv_destroy, waits=True)

    # ---- memory ----

    def address(self, block: int) -> int:
        """Return the address of a block, in use or not. Raises Error with EINVAL: no such block. Cost: a few loads."""
        address = ctypes.c_uint64()
        self._call(library().gpool_kv_address, block, ctypes.byref(address), what=f"find block {block}")
        return address.value

    def view(
        self,
        dtype: Any = None,
        shape: Union[int, Sequence[int], None] = None,
        offset: int = 0,
        readonly: bool = False,
        stream: Optional[Stream] = None,
    ) -> View:
        """Return all addresses of the cache as an array; arguments as in Block.view(). dtype: None: the type of the
        cache.

        Blocks of sequences have memory; other blocks may have none. Blocks of the pool are read-only. The program may
        access only blocks of its sequences: an access to addresses without memory ends the process, or fails the GPU
        work. While a view exists, the cache cannot be closed, but Pool.sleep() is permitted.
        Raises ValueError; TypeError.
        """
        layout = self.layout
        room = -(-(layout.max_blocks + layout.pool_blocks) // layout.chunk_blocks) * layout.chunk_bytes
        memory = Addresses(self._pool, self.addresses, layout.address, room)
        kind = self.element.name if dtype is None else dtype
        return View(memory, self._pool, kind, shape, offset, readonly, stream)

    def write(
        self,
        layer: int,
        keys: int,
        values: int,
        slots: int,
        tokens: int,
        *,
        key_stride: int = 0,
        value_stride: int = 0,
        error: int = 0,
    ) -> None:
        """Queue the conversion of keys and values of some tokens to int8, into blocks of a cache with int8, on the
        cache's stream.

        keys, values: addresses of elements of the cache's dtype, [tokens][stride], of which kv_heads * head_size are
        used; multiples of 16. key_stride, value_stride: elements between tokens, multiples of 8; 0: kv_heads *
        head_size. slots: address of the tokens' slots (append()), uint64; tokens with a slot that does not exist are
        not written. error: address of 24 bytes, zero before the first call, to which the loss is added
        (KvQuantError.of_writes()); 0: none. All addresses are of device memory, as torch.Tensor.data_ptr() returns.
        Raises Asleep; Error with EINVAL: an argument is out of range or not aligned, EOPNOTSUPP: a cache without int8,
        or no kernels.
        Cost: one launch.
        """
        described = _abi.gpool_kv_write(
            size=ctypes.sizeof(_abi.gpool_kv_write),
            flags=_abi.GPOOL_KV_WRITE_BF16 if self._written.name == "bfloat16" else 0,
            keys=keys,
            values=values,
            slots=slots,
            error=error,
            layer=layer,
            tokens=tokens,
            key_stride=key_stride,
            value_stride=value_stride,
        )
        self._call(
            library().gpool_kv_write, ctypes.byref(described), what=f"write {counted(tokens, 'token')} to a cache"
        )

    # ---- admission ----

    def can_allocate(self, tokens: int) -> Tuple[KvAdmission, KvNeed]:
        """Return whether a sequence of `tokens` tokens can be admitted, and the numbers of blocks. Limits of tenants
        and quotas are not considered.

        Cost: no system call.
        """
        need = _abi.gpool_kv_need(size=ctypes.sizeof(_abi.gpool_kv_need))
        result = self._call(library().gpool_kv_can_allocate, tokens, ctypes.byref(need), what="check an admission")
        return KvAdmission(result), need_of(need)

    def can_batch(self, tokens: Sequence[int], max_sequences: int = 0, max_tokens: int = 0) -> Tuple[int, KvNeed]:
        """Return how many of the requests, from the first one on, can be admitted together, and the numbers of blocks
        for these requests.

        tokens: number of tokens of each request. max_sequences: maximum number of running and admitted sequences; 0:
        the limit of the cache. max_tokens: maximum number of tokens of the admitted requests; 0: no limit.
        Cost: no system call.
        """
        limits = _abi.gpool_kv_batch(ctypes.sizeof(_abi.gpool_kv_batch), max_sequences, max_tokens)
        need = _abi.gpool_kv_need(size=ctypes.sizeof(_abi.gpool_kv_need))
        numbers = ids_of(tokens, "tokens")
        result = self._call(
            library().gpool_kv_can_batch,
            numbers,
            len(numbers),
            ctypes.byref(limits),
            ctypes.byref(need),
            what=f"check the admission of {counted(len(numbers), 'request')}",
        )
        return result, need_of(need)

    def oom_info(self) -> KvNeed:
        """Return the numbers of blocks for the last allocate(), prefix_allocate(), append() or resume() that raised
        NoRoom, or Error with EFBIG, for lack of blocks. Cost: one lock.
        """
        need = _abi.gpool_kv_need(size=ctypes.sizeof(_abi.gpool_kv_need))
        self._call(library().gpool_kv_oom_info, ctypes.byref(need), what="read the reason of the refusal")
        return need_of(need)

    # ---- sequences: allocate(), append(), fork(), free() and table() are in C ----

    def preempt(self, sequence: int = 0) -> Tuple[int, int]:
        """Preempt a running sequence; return the number of blocks that are now free or cached, and the sequence.

        sequence: the sequence to preempt; 0: of the running sequences with the lowest priority, the one that arrived
        last.
        Raises NotFound: no sequence is running; Preempted: the sequence is already preempted.
        """
        victim = ctypes.c_uint64()
        blocks = self._call(library().gpool_kv_preempt, sequence, ctypes.byref(victim), what="preempt a sequence")
        return blocks, victim.value

    def grow(
        self,
        sequence: int,
        tokens: int = 1,
        *,
        policy: Optional[Callable[[int], Optional[int]]] = None,
        most: int = 256,
        offload: bool = False,
        to_pool: bool = False,
        int8: bool = False,
    ) -> Tuple[int, List[int]]:
        """Append tokens as append(), and preempt other sequences while blocks or pages are missing; return the slot of
        the first token, and the preempted sequences in order.

        policy: called with the sequence when blocks are missing; returns the running sequence to preempt next, None for
        the one that preempt() would select, or the sequence itself for none. It may call this cache, but not close it.
        Without a policy, no sequence is preempted that comes after the sequence itself in the order of preempt(). most:
        maximum number of sequences to preempt, at least 1. offload: keep their content as offload(), whose arguments
        are to_pool and int8; content for which there is no room is discarded.
        Raises as append() and offload(), and what the policy raises. NoRoom: the policy or the order permits no further
        preemption. The exception has the attribute `preempted`: the sequences that were preempted nevertheless. Error
        with EFBIG: more blocks than the cache or the pool has; nothing was preempted.
        Cost: as append(); for each preempted sequence as preempt() or offload().
        """
        growth = _abi.gpool_kv_growth(size=ctypes.sizeof(_abi.gpool_kv_growth), most=most)
        if offload:
            growth.flags = _abi.GPOOL_KV_GROW_OFFLOAD
            growth.offload_flags = offload_flags(to_pool, int8)
        slot = ctypes.c_uint64()
        what = f"append {counted(tokens, 'token')} to a sequence"
        victims = grow(
            growth,
            policy,
            lambda growth, victims: self._call(
                library().gpool_kv_grow, sequence, tokens, growth, ctypes.byref(slot), victims, what=what
            ),
        )
        return slot.value, victims

    def waiting(self) -> Optional[int]:
        """Return the preempted sequence to resume first: of those with the highest priority, the one that arrived
        first; None: no sequence is preempted.

        Raises Closed; Forked.
        """
        sequence = ctypes.c_uint64()
        with self.handle as pointer:
            result = library().gpool_kv_waiting(pointer, ctypes.byref(sequence))
            if result == -errno.ENOENT:
                return None
            check(result, "find a preempted sequence")
        return sequence.value

    def resume(self, sequence: int) -> None:
        """Allocate as many blocks to a preempted sequence as it had, and restore its content if offload() preempted it.

        Raises NoRoom; Error with EALREADY (the sequence is running), EIO (its content cannot be restored now, and is
        kept), ENODATA (its content is lost). After an exception raised by a signal handler, sequence_info() returns
        whether it is running. A handler must not use the pool, nor wait for a thread that uses the cache.
        """
        with self.handle as pointer:
            self._check(waiting(-1, library().gpool_kv_resume, pointer, sequence), "resume a sequence")

    def sequence_info(self, sequence: int) -> KvSequenceInfo:
        """Return the description of a sequence."""
        info: KvSequenceInfo = self._read(
            _abi.gpool_kv_sequence_info, library().gpool_kv_sequence_info, KvSequenceInfo, sequence
        )
        return info._replace(state=KvState(info.state))

    # ---- offloading ----

    def host_reserve(self, nbytes: int) -> None:
        """Allocate and page-lock host memory for the content of preempted sequences; only once for each cache.

        Raises Error with EINVAL, EALREADY (the cache has host memory), ENOMEM, EIO.
        """
        self._call(library().gpool_kv_host_reserve, nbytes, what=f"reserve {counted(nbytes, 'byte')} of host memory")

    def offload(self, sequence: int = 0, *, to_pool: bool = False, int8: bool = False) -> Tuple[int, int]:
        """Preempt a sequence and copy the content of its blocks on the cache's stream; return the same as preempt().

        to_pool: copy to spillable blocks of the pool instead of the host memory of the cache. int8: convert to int8,
        about half the size of float16; quant_error() returns the loss.
        Raises as preempt(); NoRoom; Error with EOPNOTSUPP (no host memory, no spill tier, or no kernels for int8).
        """
        victim = ctypes.c_uint64()
        flags = offload_flags(to_pool, int8)
        blocks = self._call(
            library().gpool_kv_offload, sequence, flags, ctypes.byref(victim), what="offload a sequence"
        )
        return blocks, victim.value

    def prefetch(self, sequence: int) -> int:
        """Start to restore evicted content of a sequence that was offloaded to the pool; return the number of pages
        that are not in the pool yet. When it returns 0, resume() does not wait.

        Raises NoRoom: no pages are free for any remaining page; Error with EALREADY, EIO, ENODATA.
        """
        return self._call(library().gpool_kv_prefetch, sequence, what="prefetch a sequence")

    def quant_error(self, sequence: int) -> KvQuantError:
        """Return the loss of a sequence's last offload(int8=True).

        Raises TimedOut: the stream has not executed the conversion yet; Error with ENODATA: the sequence was not
        offloaded as int8.
        """
        filled = _abi.gpool_kv_quant_error(size=ctypes.sizeof(_abi.gpool_kv_quant_error))
        with self.handle as pointer:
            check(
                library().gpool_kv_quant_error(pointer, sequence, ctypes.byref(filled)),
                "read the loss of the conversion to int8",
            )
        return KvQuantError(filled.max_error, filled.relative_error)

    def offload_info(self) -> KvOffloadInfo:
        """Return the description of the content that is kept for preempted sequences. Cost: proportional to their
        number.
        """
        info: KvOffloadInfo = self._read(_abi.gpool_kv_offload_info, library().gpool_kv_offload_info, KvOffloadInfo)
        return info

    # ---- tables and blocks ----

    def sync(self) -> None:
        """Copy the changes of all tables to the device, on the cache's stream. Waits if many earlier copies are queued.

        A signal handler that raises an exception ends the wait; the next call copies the rest.
        Raises NoRoom: no pages for the tables.
        Cost: a copy for each sequence that has changed.
        """
        with self.handle as pointer:
            self._check(waiting(-1, library().gpool_kv_sync, pointer), "copy the tables")

    def copy_blocks(self, pairs: Sequence[Tuple[int, int]]) -> None:
        """Queue copies of blocks (from, to), any number of them in the given order, on the cache's stream.

        Raises Error with EINVAL: a block does not exist or is not in use, or a destination is shared or published;
        TypeError.
        """
        pairs = sequence(pairs, "pairs")
        listed = (_abi.gpool_kv_pair * len(pairs))(*[pair_of(at, pair) for at, pair in enumerate(pairs)])
        self._call(library().gpool_kv_copy_blocks, listed, len(pairs), what=f"copy {counted(len(pairs), 'block')}")

    def compact(self, blocks: int) -> int:
        """Move at most `blocks` blocks out of the chunks with the fewest blocks, so that the memory of these chunks is
        returned; return the number of blocks that were moved.

        The call changes tables and queues copies on the cache's stream, so it must be made between two steps.
        Raises Asleep; Error with EIO, ENOMEM.
        """
        return self._call(library().gpool_kv_compact, blocks, what=f"compact {counted(blocks, 'block')}")

    def execute(self, order: bytes) -> bytes:
        """Return the answer to an order of a KvGroup of another process, after the call that it orders.

        order: any bytes are permitted. A signal handler that raises an exception ends a wait for the content of a
        resumed sequence. Errors of the call that was ordered are in the answer.
        Raises ValueError: the number of bytes; Error with EPROTO: an order of another version of the library.
        """
        order = c_bytes(order, "order")
        if len(order) != ctypes.sizeof(_abi.gpool_kv_order):
            raise ValueError(f"an order has {counted(ctypes.sizeof(_abi.gpool_kv_order), 'byte')}, not {len(order)}")
        filled = _abi.gpool_kv_order.from_buffer_copy(order)
        with self.handle as pointer:
            self._check(waiting(-1, library().gpool_kv_execute, pointer, ctypes.byref(filled)), "execute an order")
        return bytes(filled)

    def stats(self) -> KvStats:
        """Return the statistics of the cache. Cost: proportional to the number of sequences."""
        stats: KvStats = self._read(_abi.gpool_kv_stats, library().gpool_kv_stats, KvStats)
        return stats

    # ---- prefixes ----

    def prefix_find(self, prefix: KvPrefix) -> KvPrefixFound:
        """Find the longest published prefix of token IDs, in full blocks. The blocks are not reserved. Blocks that
        other processes share are found only if this cache already maps them.

        Raises Error with EOPNOTSUPP: the cache was created without prefixes.
        Cost: one lock, a hash of the IDs of each block.
        """
        named, kept = prefix_of(prefix)
        found = _abi.gpool_kv_prefix_found(size=ctypes.sizeof(_abi.gpool_kv_prefix_found))
        self._call(library().gpool_kv_prefix_find, ctypes.byref(named), ctypes.byref(found), what="find a prefix")
        del kept
        return KvPrefixFound(found.blocks, found.tokens, found.cached_blocks, found.last_block)

    def prefix_allocate(
        self,
        tokens: int,
        prefix: KvPrefix,
        *,
        estimated_tokens: int = 0,
        priority: int = 0,
        owner_id: int = 0,
        continues: bool = False,
    ) -> Tuple[int, int]:
        """Create a sequence as allocate(), beginning with the published blocks of its first tokens; return its number
        and the number of tokens that need not be computed.

        If the last token must be computed in any case, omit its ID, so that its block is not shared.
        Raises as allocate() and prefix_find().
        """
        request = request_of(tokens, estimated_tokens, priority, owner_id, continues)
        named, kept = prefix_of(prefix)
        sequence, found = ctypes.c_uint64(), ctypes.c_uint32()
        self._call(
            library().gpool_kv_prefix_allocate,
            ctypes.byref(request),
            ctypes.byref(named),
            ctypes.byref(sequence),
            ctypes.byref(found),
            what=f"allocate a sequence of {counted(tokens, 'token')}",
        )
        del kept
        return sequence.value, found.value

    def prefix_publish(self, sequence: int, prefix: KvPrefix) -> int:
        """Publish the full blocks of a sequence among these tokens; return how many of its first blocks are published.

        The work that writes these blocks must be queued on the cache's stream. After the call, the blocks must not be
        written.
        IDs of blocks that this sequence has published are not read again.
        Raises Preempted; Error with EINVAL: more IDs than the sequence has tokens, a block that a fork has published
        with other IDs, or another adapter or salt than at the first publication.
        Cost: one lock, and for each new block a hash of its IDs.
        """
        named, kept = prefix_of(prefix)
        result = self._call(
            library().gpool_kv_prefix_publish, sequence, ctypes.byref(named), what="publish the blocks of a sequence"
        )
        del kept
        return result

    def prefix_share(self, sequence: int, timeout_ms: int = -1) -> int:
        """Share the published blocks of a sequence with other processes, without a copy; return how many of its first
        blocks belong to the pool. The call changes the table.

        timeout_ms: longest wait for the work on the cache's stream in milliseconds; 0: do not wait, -1: no limit.
        Raises TimedOut; Preempted; NoRoom; Busy: queued GPU work could write to the blocks; Asleep; Stale; Error with
        EOPNOTSUPP: the cache has no pool_blocks.
        Cost: a wait for the stream; for each chunk one request to the agent and its mappings.
        """
        with self.handle as pointer:
            return self._check(
                waiting(timeout_ms, library().gpool_kv_prefix_share, pointer, sequence, timeout_ms),
                "share the blocks of a sequence",
            )

    def prefix_evict(self, blocks: Optional[int] = None) -> int:
        """Evict cached blocks in the order of eviction, and return their number. blocks: maximum number of blocks;
        None: all.

        Raises Error with EOPNOTSUPP.
        """
        most = 2**32 - 1 if blocks is None else blocks
        return self._call(library().gpool_kv_prefix_evict, most, what="evict cached blocks")

    def prefix_tree(self) -> Tuple[List[KvPrefixNode], List[Optional[int]]]:
        """Return the radix tree of the published blocks: its nodes, each after the one that it follows, and for each
        block of the cache the index of its node, or None.

        The node of a text is that of prefix_find(text).last_block; the nodes of a sequence are those of its table().
        Raises Error with EOPNOTSUPP: the cache was created without prefixes.
        Cost: one lock, plus time proportional to the number of blocks of the cache.
        """
        node_of = (ctypes.c_uint32 * (self.layout.max_blocks + self.layout.pool_blocks))()
        nodes: Any = (_abi.gpool_kv_prefix_node * 0)()
        while True:
            most = len(nodes)
            count = self._call(library().gpool_kv_prefix_tree, nodes, most, node_of, what="describe the prefixes")
            if count <= most:
                break
            nodes = (_abi.gpool_kv_prefix_node * count)()
        none = 2**32 - 1
        return [
            KvPrefixNode(
                f"{node.key[1]:016x}{node.key[0]:016x}",
                None if node.parent == none else node.parent,
                node.children,
                node.first_token,
                node.blocks,
                node.last_block,
                node.sequences,
                bool(node.pooled),
            )
            for node in nodes[:count]
        ], [None if node == none else node for node in node_of]

    # ---- calls ----

    def _call(self, call: Any, *arguments: Any, what: str) -> int:
        with self.handle as pointer:
            return self._check(call(pointer, *arguments), what)

    def _check(self, result: int, what: str) -> int:
        return result if result >= 0 else refuse(result, what)

    def _read(self, struct: Any, call: Any, kind: Any, *arguments: Any) -> Any:
        """Fill a struct that begins with its size, and return the fields that the named tuple `kind` contains."""
        filled = struct(size=ctypes.sizeof(struct))
        self._call(call, *arguments, ctypes.byref(filled), what="read the state of a KV cache")
        return kind(*(getattr(filled, name) for name in kind._fields))


def refuse(result: int, what: str) -> NoReturn:
    """Raise the exception for a code of a call with a sequence, where EAGAIN means that it is preempted."""
    raised = error(result, what)
    if raised.errno == errno.EAGAIN:
        raise Preempted(errno.EAGAIN, raised.strerror)
    raise raised


def grow(
    growth: _abi.gpool_kv_growth, policy: Optional[Callable[[int], Optional[int]]], call: Callable[[Any, Any], int]
) -> List[int]:
    """Make a call that preempts sequences, with its struct and an array for the victims, and return the victims.

    Raises what the call raises, and what the policy raises; Error with EINVAL: `most` is 0.
    """
    if policy is not None and not callable(policy):
        raise TypeError(f"policy is {policy!r}, which is not a function")
    if growth.most == 0:
        raise Error(errno.EINVAL, "cannot append tokens to a sequence: most is 0; the minimum is 1")
    raised: List[BaseException] = []

    def choose(_context: Any, growing: int, victim: Any) -> int:
        try:
            assert policy
            victim[0] = policy(growing) or 0
            return 0
        except BaseException as exception:  # ctypes would print it
            raised.append(exception)
            return -errno.ECANCELED

    if policy:
        growth.choose = CHOOSE(choose)
    growth.most = min(growth.most, SEQUENCES_MOST)
    victims = (ctypes.c_uint64 * growth.most)()
    try:
        call(ctypes.byref(growth), victims)
    except Exception as exception:
        cause = raised[0] if raised else exception
        cause.preempted = [victim for victim in victims if victim]  # type: ignore[attr-defined]
        if raised:
            raise cause from None
        raise
    return [victim for victim in victims if victim]


def offload_flags(to_pool: bool, int8: bool) -> int:
    """Return the flags of gpool_kv_offload()."""
    return (_abi.GPOOL_KV_OFFLOAD_POOL if to_pool else 0) | (_abi.GPOOL_KV_OFFLOAD_INT8 if int8 else 0)


def pair_of(at: int, pair: Tuple[int, int]) -> _abi.gpool_kv_pair:
    """Return a copy between blocks as a struct of the C library. Raises TypeError; OverflowError."""
    try:
        source, target = pair
    except (TypeError, ValueError):
        raise TypeError(f"pairs[{at}] is {pair!r}, which is not a pair (from, to)") from None
    return _abi.gpool_kv_pair(source, target)


def need_of(filled: _abi.gpool_kv_need) -> KvNeed:
    """Return the numbers of a struct of the C library."""
    return KvNeed(filled.needed_blocks, filled.available_blocks, filled.free_blocks, filled.watermark_blocks)


def request_of(
    tokens: int, estimated_tokens: int, priority: int, owner_id: int, continues: bool
) -> _abi.gpool_kv_request:
    """Return a request as a struct of the C library."""
    return _abi.gpool_kv_request(
        size=ctypes.sizeof(_abi.gpool_kv_request),
        flags=_abi.GPOOL_KV_CONTINUES if continues else 0,
        tokens=tokens,
        estimated_tokens=estimated_tokens,
        priority=priority,
        owner_id=owner_id,
    )


def ids_of(numbers: Iterable[int], name: str) -> Any:
    """Return numbers as an array of uint32 of C; name: that of the argument. Raises OverflowError; TypeError."""
    if not hasattr(numbers, "__len__") or isinstance(numbers, (bytes, bytearray, memoryview)):
        if not hasattr(numbers, "__iter__"):
            raise TypeError(f"{name} is {numbers!r}, which is not a sequence of integers")
        # A wrong element can be found in a second pass; array() would read bytes as numbers of 4 bytes.
        numbers = list(numbers)
    try:
        listed = array.array("I", numbers)
    except (TypeError, OverflowError):
        for at, number in enumerate(numbers):
            check_count(f"{name}[{at}]", number, f"from 0 to {2**32 - 1}")
        raise
    return (ctypes.c_uint32 * len(listed)).from_buffer(listed)


def prefix_of(prefix: KvPrefix) -> Tuple[_abi.gpool_kv_prefix, Any]:
    """Return a prefix as a struct of the C library, and the array to which it points. Raises as ids_of()."""
    if not isinstance(prefix, KvPrefix):
        raise TypeError(f"prefix is {prefix!r}, which is not a KvPrefix")
    ids = ids_of(prefix.ids, "ids")
    return _abi.gpool_kv_prefix(
        size=ctypes.sizeof(_abi.gpool_kv_prefix),
        ids=ctypes.cast(ids, ctypes.POINTER(ctypes.c_uint32)),
        count=len(ids),
        adapter_id=prefix.adapter_id,
        salt=prefix.salt,
    ), ids
