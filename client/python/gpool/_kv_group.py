"""Groups of KV caches: sequences that are longer than one cache can hold."""

from __future__ import annotations

import ctypes
import errno
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi
from ._errors import check
from ._handle import Closing, Handle
from ._kv import KvAdmission, KvCache, KvNeed, grow, need_of, refuse, request_of
from ._library import library
from ._text import counted, sequence
from ._wait import waiting


class KvSpan(NamedTuple):
    """The part of a group's sequence in one cache."""

    first_token: int
    """first token of the sequence in this cache"""
    tokens: int
    blocks: int
    sequence: int
    """number in this cache; 0: no part yet"""


SEND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_abi.gpool_kv_order))
"""type of the function that reaches a cache of another process"""


class KvGroup(Closing):
    """A group of 1 to 16 caches, usually each on its own GPU, until close() or the end of a `with` statement. The first
    `range_tokens` tokens of a sequence are in the first cache, the next in the second, and all remaining tokens in the
    last.

    A call for a group takes effect in all of its caches or in none. A sequence has the number of its part in the first
    cache; span() returns those of the others. Only the group's calls may change the parts. The caches cannot be closed
    before the group; closing their pool ends it.

    A cache may be in another process: pass a function that sends an order, which consists of bytes, to that process,
    where KvCache.execute() executes it, and that returns the bytes of the answer. If the function raises an exception,
    the call that needs the cache raises Error with ECONNRESET, and so do all later ones; `failures` has the exceptions.
    The first call raises KeyboardInterrupt and other exceptions that are no Exception itself.
    The function must not call the group.

    Calls raise as those of KvCache.
    Threads: any.
    """

    def __init__(self, caches: Sequence[Union[KvCache, Callable[[bytes], bytes]]], range_tokens: int) -> None:
        """Create a group. range_tokens: tokens in each cache but the last.

        Raises Error with EINVAL: the number of caches, one of them twice, or range_tokens; ENOMEM.
        """
        for at, each in enumerate(sequence(caches, "caches")):
            if not isinstance(each, KvCache) and not callable(each):
                raise TypeError(f"caches[{at}] is {each!r}, which is neither a KvCache nor a function")
        self.caches: Tuple[KvCache, ...] = tuple(cache for cache in caches if isinstance(cache, KvCache))
        """those of this process"""
        self.failures: List[BaseException] = []
        self._sends: List[Any] = []  # functions that the library calls
        self._ends: List[BaseException] = []  # KeyboardInterrupt and others that also end the call
        self._entered = 0
        pointer = ctypes.c_void_p()
        try:
            for cache in self.caches:
                cache.handle.__enter__()
                self._entered += 1
            members = (_abi.gpool_kv_member * len(caches))(*map(self._member, caches))
            create = library().gpool_kv_group_create_members
            result = create(members, len(caches), range_tokens, ctypes.byref(pointer))
            self._raise_end()
            check(result, f"create a group of {len(caches)} KV caches")
        except BaseException:
            self._leave()
            raise
        assert pointer.value
        self.handle = Handle(pointer.value, "a KV group", self.caches[0].handle if self.caches else None)
        for cache in self.caches:
            cache.groups.add(self)

    def close(self) -> None:
        """End the group and its sequences; a second call does nothing. Raises Busy: another thread is in a call."""
        if self._entered and not self.handle.forked:
            self.handle.close(library().gpool_kv_group_destroy)
            self._leave()  # if a signal has ended an earlier call before this line, this is all that is left to do
            self._raise_end()

    def _member(self, cache: Union[KvCache, Callable[[bytes], bytes]]) -> _abi.gpool_kv_member:
        member = _abi.gpool_kv_member(size=ctypes.sizeof(_abi.gpool_kv_member))
        if isinstance(cache, KvCache):
            member.cache = _pointer(cache)
            return member
        send = cache

        def call(_context: Any, order: Any) -> int:
            size = ctypes.sizeof(_abi.gpool_kv_order)
            try:
                answer = send(ctypes.string_at(order, size))
                if len(answer) != size:
                    raise ValueError(f"the answer has {counted(len(answer), 'byte')}; it must have {size}")
                ctypes.memmove(order, answer, size)
                return 0
            except BaseException as exception:  # ctypes would print it
                self.failures.append(exception)
                if not isinstance(exception, Exception):
                    self._ends.append(exception)
                return -errno.ECONNRESET

        self._sends.append(SEND(call))
        member.send = self._sends[-1]
        return member

    def _leave(self) -> None:
        while self._entered:
            self._entered -= 1
            self.caches[self._entered].handle.__exit__()

    # ---- sequences ----

    def can_allocate(self, tokens: int) -> Tuple[KvAdmission, int, KvNeed]:
        """Return whether a sequence can be admitted in all caches, the index of the cache with the worst result, and
        its numbers.
        """
        member, need = ctypes.c_uint32(), _abi.gpool_kv_need(size=ctypes.sizeof(_abi.gpool_kv_need))
        result = self._call(
            library().gpool_kv_group_can_allocate,
            tokens,
            ctypes.byref(member),
            ctypes.byref(need),
            what="check an admission",
        )
        return KvAdmission(result), member.value, need_of(need)

    def oom_info(self) -> Tuple[int, KvNeed]:
        """Return the index of the cache that refused the last failed call, and the blocks that it needs and has."""
        member, need = ctypes.c_uint32(), _abi.gpool_kv_need(size=ctypes.sizeof(_abi.gpool_kv_need))
        self._call(
            library().gpool_kv_group_oom_info,
            ctypes.byref(member),
            ctypes.byref(need),
            what="read the reason of the refusal",
        )
        return member.value, need_of(need)

    def allocate(
        self,
        tokens: int,
        *,
        estimated_tokens: int = 0,
        priority: int = 0,
        owner_id: int = 0,
        continues: bool = False,
    ) -> int:
        """Create a sequence and return its number; arguments and errors as in KvCache.allocate()."""
        request = request_of(tokens, estimated_tokens, priority, owner_id, continues)
        sequence = ctypes.c_uint64()
        self._call(
            library().gpool_kv_group_allocate,
            ctypes.byref(request),
            ctypes.byref(sequence),
            what=f"allocate a sequence of {counted(tokens, 'token')}",
        )
        return sequence.value

    def append(self, sequence: int, tokens: int = 1) -> Tuple[int, int]:
        """Append tokens to a sequence; return the index of the cache and the slot of the first token. Raises as
        KvCache.append(), and as allocate() for a part that begins.
        """
        member, slot = ctypes.c_uint32(), ctypes.c_uint64()
        self._call(
            library().gpool_kv_group_append,
            sequence,
            tokens,
            ctypes.byref(member),
            ctypes.byref(slot),
            what=f"append {counted(tokens, 'token')} to a sequence",
        )
        return member.value, slot.value

    def grow(
        self,
        sequence: int,
        tokens: int = 1,
        *,
        policy: Optional[Callable[[int], Optional[int]]] = None,
        most: int = 256,
    ) -> Tuple[int, int, List[int]]:
        """Append tokens as append(), and preempt other sequences of the group in all caches while blocks or pages are
        missing; return the index of the cache and the slot of the first token, and the preempted sequences in order.

        policy and most: as in KvCache.grow(); oom_info() returns the cache that lacks blocks. Without a policy, only
        sequences with a part in that cache are preempted. Raises as append() and KvCache.grow().
        """
        growth = _abi.gpool_kv_growth(size=ctypes.sizeof(_abi.gpool_kv_growth), most=most)
        member, slot = ctypes.c_uint32(), ctypes.c_uint64()
        places = ctypes.byref(member), ctypes.byref(slot)
        what = f"append {counted(tokens, 'token')} to a sequence"
        victims = grow(
            growth,
            policy,
            lambda growth, victims: self._call(
                library().gpool_kv_group_grow, sequence, tokens, growth, *places, victims, what=what
            ),
        )
        return member.value, slot.value, victims

    def fork(self, sequence: int) -> int:
        """Return a new sequence that shares all blocks of another one. Raises as KvCache.fork()."""
        child = ctypes.c_uint64()
        self._call(library().gpool_kv_group_fork, sequence, ctypes.byref(child), what="fork a sequence")
        return child.value

    def free(self, sequence: int) -> None:
        """End a sequence in all caches."""
        self._call(library().gpool_kv_group_free, sequence, what="free a sequence")

    def preempt(self, sequence: int = 0) -> Tuple[int, int]:
        """Preempt a sequence in all caches; return the number of blocks that are free now, and the sequence.

        sequence: 0: the choice of the first cache, which may be a sequence outside of the group.
        Raises as KvCache.preempt().
        """
        victim = ctypes.c_uint64()
        blocks = self._call(library().gpool_kv_group_preempt, sequence, ctypes.byref(victim), what="preempt a sequence")
        return blocks, victim.value

    def resume(self, sequence: int) -> None:
        """Resume a sequence in all caches or in none; KvCache.waiting() of the first cache returns the sequence to
        resume first. Raises as KvCache.resume().
        """
        with self.handle as pointer:
            result = waiting(-1, library().gpool_kv_group_resume, pointer, sequence)
            self._raise_end()
            if result < 0:
                refuse(result, "resume a sequence")

    def span(self, sequence: int, member: int) -> KvSpan:
        """Return the part of a sequence in the cache with index `member`. Raises Error with EINVAL: no such cache."""
        filled = _abi.gpool_kv_span(size=ctypes.sizeof(_abi.gpool_kv_span))
        self._call(
            library().gpool_kv_group_span, sequence, member, ctypes.byref(filled), what="read the part of a sequence"
        )
        return KvSpan(filled.first_token, filled.tokens, filled.blocks, filled.sequence)

    def _call(self, call: Any, *arguments: Any, what: str) -> int:
        with self.handle as pointer:
            result = int(call(pointer, *arguments))
            self._raise_end()
            return result if result >= 0 else refuse(result, what)

    def _raise_end(self) -> None:
        """Raise the exception of a signal handler that has ended a function of a member."""
        if self._ends:
            raise self._ends.pop()


def _pointer(cache: KvCache) -> int:
    with cache.handle as pointer:
        return pointer
