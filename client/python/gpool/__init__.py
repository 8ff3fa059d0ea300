"""libgpool for Python: GPU memory in pages, leased from the agent of this machine.

    with gpool.Pool() as pool, pool.alloc(4) as block:
        weights = torch.from_dlpack(block.view("float16", (1024, 1024)))

client/python/README.md describes the rules. The package needs libgpool_lora.so, which loads libgpool.so. It loads the
file that $GPOOL_LIBRARY names, the library of the source tree that contains the package, the library in the package
itself (a wheel has one), or the library with which the package was installed.
"""

from ._block import Block, Pin, Span
from ._errors import (
    AgentGone,
    Asleep,
    Busy,
    Closed,
    Error,
    Forked,
    Holder,
    NoRoom,
    NotFound,
    OomInfo,
    OutOfService,
    Preempted,
    QuotaReached,
    Stale,
    TimedOut,
)
from ._event import Event, EventKind
from ._kv import (
    KvAdmission,
    KvCache,
    KvLayout,
    KvNeed,
    KvOffloadInfo,
    KvPrefix,
    KvPrefixFound,
    KvPrefixNode,
    KvQuantError,
    KvSequenceInfo,
    KvState,
    KvStats,
)
from ._kv_group import KvGroup, KvSpan
from ._library import library
from ._lora import (
    Acquired,
    Activity,
    Adapter,
    AdapterInfo,
    Adapters,
    AdapterState,
    AdapterStats,
    Element,
    Matrix,
    Tier,
    Weights,
)
from ._object import Object, ObjectClass, ObjectInfo, ObjectPin, ObjectState
from ._options import Usage
from ._pool import Device, Pool, Pressure, Stats
from ._range import PageState, Range, RangeInfo
from ._role import Role
from ._scope import Scope
from ._sliced import SlicedRange, SlicedRangeInfo
from ._stream import Fence, Stream
from ._view import View

__all__ = [
    "Acquired",
    "Activity",
    "Adapter",
    "AdapterInfo",
    "AdapterState",
    "AdapterStats",
    "Adapters",
    "AgentGone",
    "Block",
    "Asleep",
    "Busy",
    "Closed",
    "Usage",
    "Device",
    "Element",
    "Error",
    "Event",
    "EventKind",
    "Fence",
    "Forked",
    "Holder",
    "KvAdmission",
    "KvCache",
    "KvGroup",
    "KvLayout",
    "KvNeed",
    "KvOffloadInfo",
    "KvPrefix",
    "KvPrefixFound",
    "KvPrefixNode",
    "KvQuantError",
    "KvSequenceInfo",
    "KvSpan",
    "KvState",
    "KvStats",
    "Matrix",
    "NoRoom",
    "NotFound",
    "OutOfService",
    "Object",
    "ObjectClass",
    "ObjectInfo",
    "ObjectPin",
    "ObjectState",
    "PageState",
    "Weights",
    "Pin",
    "Pool",
    "Preempted",
    "Pressure",
    "QuotaReached",
    "Range",
    "RangeInfo",
    "Role",
    "Scope",
    "SlicedRange",
    "SlicedRangeInfo",
    "OomInfo",
    "Span",
    "Stale",
    "Stats",
    "Stream",
    "Tier",
    "TimedOut",
    "View",
    "version",
]


def version() -> str:
    """Return the version of the loaded library, such as "0.2.0". Raises ImportError."""
    return str(library().gpool_version().decode())
