"""Errors: exceptions for the error codes of the library."""

from __future__ import annotations

import errno
import re
from typing import Dict, NamedTuple, Optional, Tuple, Type

from ._library import library


class Error(OSError):
    """A call has failed. `errno` is the positive error code. `strerror` contains the failed operation and the value and
    the limit, or the cause.

    Programs can distinguish common causes by the subclasses.
    """


class Holder(NamedTuple):
    """A session and the pages that it leases."""

    session: int
    name: str
    usage: Optional[int]
    """usage of most of its pages in blocks; None: no blocks"""
    needed_pages: int
    """pinned, or held by a thread"""
    offered_pages: int
    """with unpinned content"""
    idle_pages: int
    """without content"""


class OomInfo(NamedTuple):
    """The reason why an allocation was refused, at the time of the refusal."""

    needed: int
    """pages"""
    free: int
    """pages"""
    pinned: int
    """pages of all sessions"""
    holder: int
    """session with the most pinned pages; 0: none"""
    holder_pages: int
    """pages that this session has pinned"""
    holders: Tuple[Holder, ...] = ()
    """for Pool.oom_info(): the sessions that lease the most pages at the time of that call, in descending order; empty:
    the agent did not answer
    """


class NoRoom(Error):
    """Not enough pages, a limit or quota is reached, or a table is full (ENOSPC, EDQUOT).

    Free or unpin memory, or wait (timeout_ms).
    """

    oom_info: Optional[OomInfo] = None
    """set if an allocation was refused for lack of pages; Pool.oom_info() also reports the holders"""


class QuotaReached(NoRoom):
    """The quota of the session is reached (EDQUOT). Raise quota_bytes of Pool(), or free memory of this process.

    If the limit of the tenant is reached, which has the same code, NoRoom is raised.
    """


class Stale(Error):
    """Content was freed or evicted, a version is not current, or a role is no longer held (ESTALE).

    Create or load the content again.
    """


class TimedOut(Error, TimeoutError):
    """A wait has reached its timeout (ETIMEDOUT, and EAGAIN of a call that does not wait)."""


class NotFound(Error):
    """No pool, tenant, object, adapter, role or file has this name (ENOENT, ENXIO)."""


class Busy(Error):
    """GPU work, a view, or a call in another thread uses the object, and must end first (EBUSY)."""


class Asleep(Busy):
    """The session is asleep (EHOSTDOWN). Call Pool.wake() first."""


class OutOfService(Busy):
    """The pool was taken out of service by `poolctl drain` (ESHUTDOWN). Attach to another pool, or try again later."""


class Preempted(Error):
    """The sequence of a KV cache is preempted (EAGAIN). Call KvCache.resume() first."""


class AgentGone(Error):
    """The agent is not running, or has ended this session (EPIPE).

    Allocated memory remains usable. Close the pool when it is no longer needed.
    """


class Forked(Error):
    """A call in the child of fork(): the pool belongs to the parent (ECHILD). Attach again."""


class Closed(Error):
    """The handle is closed (EBADF)."""


_BY_CODE: Dict[int, Type[Error]] = {
    errno.ENOSPC: NoRoom,
    errno.EDQUOT: NoRoom,
    errno.ESTALE: Stale,
    errno.ETIMEDOUT: TimedOut,
    errno.EAGAIN: TimedOut,
    errno.ENOENT: NotFound,
    errno.ENXIO: NotFound,
    errno.EBUSY: Busy,
    errno.EHOSTDOWN: Asleep,
    errno.ESHUTDOWN: OutOfService,
    errno.EPIPE: AgentGone,
    errno.ECHILD: Forked,
    errno.EBADF: Closed,
}


_NAMES: Dict[str, str] = {
    "gpool_close()": "Pool.close()",
    "gpool_discard()": "Block.free()",
    "gpool_fence_export()": "Fence.export()",
    "gpool_kv_host_reserve()": "KvCache.host_reserve()",
    "gpool_lora_acquire()": "Adapter.acquire()",
    "gpool_lora_wait_layer()": "Acquired.wait_layer()",
    "gpool_object_alloc()": "Object.alloc()",
    "gpool_open()": "Pool()",
    "gpool_pin()": "Block.pin()",
    "gpool_range_publish()": "Range.publish()",
    "gpool_range_unmap()": "Object.close()",
    "gpool_reservation_release()": "Pool.release_reservation()",
    "gpool_role_acquire()": "Pool.acquire_role()",
    "gpool_scope_begin()": "Pool.scope()",
    "gpool_wake()": "Pool.wake()",
    "GPOOL_ALLOC_CRITICAL": "critical=True",
    "GPOOL_ALLOC_SPILL": "spill=True",
    "GPOOL_FENCE_EXPORT_EVENT": "event=True",
    "GPOOL_KV_ADAPTIVE": "adaptive=True",
    "GPOOL_KV_BF16": "the dtype bfloat16",
    "GPOOL_KV_CONTINUES": "continues=True",
    "GPOOL_KV_GROW_OFFLOAD": "offload=True",
    "GPOOL_KV_INT8": "int8=True",
    "GPOOL_KV_OFFLOAD_INT8": "int8=True",
    "GPOOL_KV_OFFLOAD_POOL": "to_pool=True",
    "GPOOL_KV_PREFIXES": "prefixes=True",
    "GPOOL_KV_ZERO": "zero=True",
    "GPOOL_LORA_INT8": "int8=True",
    "GPOOL_LORA_PRIVATE": "private=True",
    "GPOOL_OBJECT_ADOPT": "adopt=True",
    "GPOOL_OBJECT_DOMAIN_WRITE": "domain_write=True",
    "GPOOL_OBJECT_PINNED": "pinned=True",
    "GPOOL_OBJECT_PRIVATE": "private=True",
    "GPOOL_OPEN_ADMIN": "admin=True",
    "GPOOL_OPEN_OBSERVER": "observer=True",
    "GPOOL_RANGE_ZERO": "zero=True",
    "GPOOL_SCOPE_FREE": "free=True",
    "GPOOL_STREAM_HOST_SIGNALED": "host_signaled=True",
}
"""names of the C library in its texts, and the names of this package"""
_NAME = re.compile(r"gpool_[a-z0-9_]+\(\)|GPOOL_[A-Z0-9_]+")
_QUOTA_TEXT = "the quota of the session is reached"
"""what a text of the library with EDQUOT begins with, if the quota is the reason: fail_limit() in client/core"""
_BYTES = re.compile(r"(?<!\w )\bbytes(?= is \d)")
"""the argument `bytes` of the C library, which is `nbytes` in this package"""


def error(code: int, what: str, why: str = "") -> Error:
    """Return the exception for a code of either sign. Must be called in the thread of the failed call, directly after
    it.

    what: verb phrase of the call. why: text that replaces the library's.
    """
    code = abs(code)
    text = library().gpool_last_error(code).decode(errors="replace")  # read in any case, because reading removes it
    kind = _BY_CODE.get(code, Error)
    if code == errno.EDQUOT and text.startswith(_QUOTA_TEXT):
        kind = QuotaReached
    subject, _, rest = text.partition(": ")
    if rest and f"cannot {what}".endswith(subject):
        text = rest  # the library's text begins with the object that `what` names
    text = _NAME.sub(lambda found: _NAMES.get(found[0], found[0]), _BYTES.sub("nbytes", why or text))
    return kind(code, f"cannot {what}: {text}")


def check(result: int, what: str) -> int:
    """Return `result`, or raise its exception if it is negative. Raises Error."""
    if result < 0:
        raise error(result, what)
    return result
