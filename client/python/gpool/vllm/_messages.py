"""The messages between the connectors of the scheduler and the workers, in the metadata of each step.

The scheduler sends operations on chunks. All workers execute them in the same order, each on its own range, and answer
each operation. An operation has succeeded if it has succeeded in all workers.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from .. import _native


class Action(enum.IntEnum):
    """List the operations. Those of AFTER_FORWARD, and operations on the same chunk that follow them, are executed
    after the forward pass, the others before it.
    """

    COMMIT = _native.COMMIT
    """give the chunk memory: its own earlier memory, or other memory that is filled with zeros"""
    LEAVE = _native.LEAVE
    """decommit the chunk, or unmap its object"""
    OFFER = _native.OFFER
    """permit the agent to take the chunk's memory: offer its pages, or unpin its object"""
    RECLAIM = _native.RECLAIM
    """end the offer; fails if the content was lost"""
    MAP = _native.MAP
    """map an object at the chunk"""
    PUBLISH = _native.PUBLISH
    """publish the chunk's pages as an object, at their addresses"""
    RENEW = _native.RENEW
    """as COMMIT, of a chunk with content, or an object, that is not needed anymore; after a failure it has no memory"""


AFTER_FORWARD = frozenset((Action.PUBLISH,))


class Filled(NamedTuple):
    """Describe a full block of a chunk."""

    place: int
    """number of blocks before it in its prefix"""
    hash: bytes
    """vLLM's hash of the prefix that ends with the block"""


Content = Tuple[Optional[Filled], ...]
"""the blocks of a chunk; None: a block without content that can be used"""
_BLOCK = struct.Struct(">I32s")


def pack(content: Content) -> bytes:
    """Return the content of a chunk as bytes, for the metadata of its object."""
    return b"".join(_BLOCK.pack(each.place + 1, each.hash) if each else bytes(_BLOCK.size) for each in content)


def unpack(packed: bytes) -> Content:
    """Return the content from the bytes that pack() has returned. Raises struct.error: the size is wrong."""
    return tuple(Filled(place - 1, hash_) if place else None for place, hash_ in _BLOCK.iter_unpack(packed))


class Op(NamedTuple):
    """Describe an operation on a chunk."""

    number: int
    action: Action
    chunk: int
    name: str = ""
    """name of the object, without its namespace"""
    follows: int = -1
    """chunk with the object before it in the prefix; -1: none is known"""
    content: Content = ()
    """PUBLISH: content of the chunk"""


@dataclass
class Orders(KVConnectorMetadata):
    """The operations of a step."""

    ops: List[Op] = field(default_factory=list)
    patience_ms: int = 0
    """longest wait of a commit for pages; 0 if a forward pass follows, which would wait"""
    reservations: Tuple[int, ...] = ()
    """for each rank, the reservation from which commits take pages; empty: none"""

    def __reduce__(self) -> Tuple[Any, ...]:
        """Return how pickle makes the message: most steps have no operations, and then need no fields."""
        return (Orders, (self.ops, self.patience_ms, self.reservations) if self.ops or self.patience_ms else ())


class Answer(NamedTuple):
    """Count the workers that have executed an operation."""

    succeeded: int
    failed: int


@dataclass
class Answers(KVConnectorWorkerMetadata):
    """The answers to operations, by their numbers."""

    answers: Dict[int, Answer] = field(default_factory=dict)
    lost: Set[int] = field(default_factory=set)
    """chunks whose content was lost although they were in use; they have new memory"""
    contents: Dict[int, Content] = field(default_factory=dict)
    """content of the objects that were mapped, by the numbers of the operations"""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Answers:
        """Return the sum of the answers of this worker and another."""
        assert isinstance(other, Answers)
        sums = dict(self.answers)
        for number, answer in other.answers.items():
            had = sums.get(number, Answer(0, 0))
            sums[number] = Answer(had.succeeded + answer.succeeded, had.failed + answer.failed)
        contents = dict(self.contents)
        for number, content in other.contents.items():
            contents[number] = common(contents.get(number, content), content)
        return Answers(sums, self.lost | other.lost, contents)


def common(one: Content, other: Content) -> Content:
    """Return the blocks that are equal in the objects of two workers; different engines may have published them."""
    return tuple(mine if mine == theirs else None for mine, theirs in zip(one, other))
