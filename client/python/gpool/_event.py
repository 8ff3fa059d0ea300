"""Events of the agent."""

from __future__ import annotations

import enum
from typing import NamedTuple, Union

from . import _abi


class EventKind(enum.IntEnum):
    """The kind of an event; see gpool/event.h."""

    PRESSURE = _abi.GPOOL_EVENT_PRESSURE
    EVICTION = _abi.GPOOL_EVENT_EVICTION
    RECLAIM = _abi.GPOOL_EVENT_RECLAIM
    TENANT_LIMIT = _abi.GPOOL_EVENT_TENANT_LIMIT
    AGENT_START = _abi.GPOOL_EVENT_AGENT_START
    SESSION_START = _abi.GPOOL_EVENT_SESSION_START
    SESSION_END = _abi.GPOOL_EVENT_SESSION_END
    LEAKED_PIN = _abi.GPOOL_EVENT_LEAKED_PIN
    RELOAD = _abi.GPOOL_EVENT_RELOAD
    FRONT_RESTART = _abi.GPOOL_EVENT_FRONT_RESTART
    DAMAGE = _abi.GPOOL_EVENT_DAMAGE
    OBJECT_PUBLISHED = _abi.GPOOL_EVENT_OBJECT_PUBLISHED
    OBJECT_DELETED = _abi.GPOOL_EVENT_OBJECT_DELETED
    OBJECT_EVICTED = _abi.GPOOL_EVENT_OBJECT_EVICTED
    ROLE_GRANTED = _abi.GPOOL_EVENT_ROLE_GRANTED
    ROLE_FREED = _abi.GPOOL_EVENT_ROLE_FREED
    TAKEOVER = _abi.GPOOL_EVENT_TAKEOVER
    RETIRED = _abi.GPOOL_EVENT_RETIRED
    SPILL_ERROR = _abi.GPOOL_EVENT_SPILL_ERROR
    MOVER = _abi.GPOOL_EVENT_MOVER
    DRAIN = _abi.GPOOL_EVENT_DRAIN


class Event(NamedTuple):
    """An event of the agent."""

    kind: Union[EventKind, int]
    """a number if this package does not know the kind"""
    session: int
    """session that the event concerns; 0: all"""
    time_ms: int
    """wall clock, milliseconds since 1970"""
    value: int
    """depends on the kind"""
    pool: str
    text: str


def event_of(filled: _abi.gpool_event) -> Event:
    """Return the event in a struct of the C library."""
    kind: Union[EventKind, int] = filled.kind
    try:
        kind = EventKind(filled.kind)
    except ValueError:
        pass
    return Event(
        kind,
        filled.session,
        filled.time_ms,
        filled.value,
        filled.pool.decode(errors="replace"),
        filled.text.decode(errors="replace"),
    )
