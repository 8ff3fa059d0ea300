"""Options of allocations."""

from __future__ import annotations

import ctypes
import enum
from typing import Optional

from . import _abi
from ._checked import check_count
from ._handle import Handle
from ._stream import Stream, number_of


class Usage(enum.IntEnum):
    """The purpose of a block, which affects the order of eviction: TEMP_BUFFER is evicted first, then ACTIVATION,
    GRADIENT, LORA_WEIGHT, KV_CACHE.
    """

    KV_CACHE = _abi.GPOOL_USAGE_KV_CACHE
    LORA_WEIGHT = _abi.GPOOL_USAGE_LORA_WEIGHT
    TEMP_BUFFER = _abi.GPOOL_USAGE_TEMP_BUFFER
    ACTIVATION = _abi.GPOOL_USAGE_ACTIVATION
    GRADIENT = _abi.GPOOL_USAGE_GRADIENT


def alloc_options(
    flags: int, usage: Usage, priority: int, owner_id: int, timeout_ms: int, stream: Optional[Stream], pool: Handle
) -> _abi.gpool_alloc_options:
    """Return the options of an allocation as a struct of the C library. Raises as refuse_stream()."""
    check_count("usage", usage, f"from 0 to {max(Usage)}")
    check_count("priority", priority, "from 0 to 3")
    return _abi.gpool_alloc_options(
        size=ctypes.sizeof(_abi.gpool_alloc_options),
        flags=flags,
        usage=usage,
        priority=priority,
        owner_id=owner_id,
        timeout_ms=timeout_ms,
        stream=number_of(stream, pool) if stream is not None else 0,
    )
