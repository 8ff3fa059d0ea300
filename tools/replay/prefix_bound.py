#!/usr/bin/env python3
"""Print how much a prefix cache could find in a trace if it knew how long blocks wait for their next use.

usage: prefix_bound.py TRACE [BLOCKS...]

Between two uses, a block waits. A policy that does not know the future can only use the information about the block
when its wait begins (its class) and the age of the wait. It therefore evicts all blocks of a class at the same age of
their waits. The script counts the waits of the whole trace by class, and finds the ages that yield the most hits while
the blocks kept, averaged over the trace, do not exceed the size of the cache. This is an upper bound for all policies
that use these classes, because it has seen the whole trace, may exceed the size at times, and ignores that a block
needs its predecessors.

A row "learned" takes the ages from one half of the chats and applies them to the other half. It estimates what the
classes are worth to a policy that has not seen the requests. The first table row has one class; in the row "perfect",
each wait is a class of its own. A class is:

    uses      number of uses of the block, in powers of two from 4 on; and whether it was the last block of the prompt
    place     also, for a new block, the uses of the last known block before it, and its distance from it
    pause     also the time between the last two uses, in steps of two octaves
    prompt    uses, and the uses before a new block, the length of the prompt and the number of its new blocks, in
              powers of two
"""

import bisect
import json
import math
import sys
from collections import defaultdict
from typing import Callable, Iterable, NamedTuple

NEVER = 1 << 60
Curve = list[tuple[float, int, int]]  # block-time, hits, age: a convex hull


class Wait(NamedTuple):
    uses: int
    last: bool
    origin: int  # uses of the last known block before a new block; 0: not new, or none
    place: int  # distance from it; 0: not new
    length: int
    new: int
    pause: int  # blocks requested between the last two uses; 0: new
    part: int  # half of the trace, by chat
    length_until: int  # blocks requested until the next use, or NEVER
    end: int  # the same until the end of the trace


def octave(count: int) -> int:
    return int(math.log2(count)) + 1 if count > 0 else 0


def steps(uses: int) -> int:
    return uses if uses < 4 else 2 + octave(uses) - 1


CLASSES: dict[str, Callable[[Wait], object]] = {
    "one": lambda wait: 0,
    "uses": lambda wait: (steps(wait.uses), wait.last),
    "place": lambda wait: (steps(wait.uses), wait.last, steps(wait.origin), octave(wait.place)),
    "pause": lambda wait: (
        steps(wait.uses),
        wait.last,
        steps(wait.origin),
        octave(wait.place),
        octave(wait.pause) // 2,
    ),
    "prompt": lambda wait: (
        steps(wait.uses),
        wait.last,
        steps(wait.origin),
        wait.place > 0,
        octave(wait.length),
        octave(wait.new),
    ),
}


def waits_of(requests: list[list[int]]) -> list[Wait]:
    """Return all waits. A block is identified by its number; equal prefixes have equal numbers."""
    uses: dict[int, int] = defaultdict(int)
    chat: dict[int, int] = {}
    open_waits: dict[int, tuple[tuple, int]] = {}
    waits = []
    time = 0
    total = sum(map(len, requests)) - len(requests[0])
    for number, blocks in enumerate(requests):
        known = next((i for i, block in enumerate(blocks) if block not in uses), len(blocks))
        time += len(blocks) if number else 0
        origin = uses[blocks[known - 1]] if known else 0
        owner = chat[blocks[known - 1]] if known > 1 else number
        for i, block in enumerate(blocks):
            pause = 0
            if block in open_waits:
                what, since = open_waits[block]
                pause = time - since
                waits.append(Wait(*what, pause, total - since))
            uses[block] += 1
            chat.setdefault(block, owner)
            new = i >= known
            what = (uses[block], i + 1 == len(blocks), origin * new, (i - known + 1) * new)
            open_waits[block] = ((*what, len(blocks), len(blocks) - known, pause, owner % 2), time)
    for what, since in open_waits.values():
        waits.append(Wait(*what, NEVER, total - since))
    return waits


def points(waits: Iterable[Wait]) -> Curve:
    """Return block-time and hits for each age at which the waits of a class could be given up."""
    ends = sorted((min(wait.length_until, wait.end), wait.length_until <= wait.end) for wait in waits)
    time = hits = age = 0
    curve: Curve = [(0, 0, 0)]
    for i, (until, hit) in enumerate(ends):
        time += (len(ends) - i) * (until - age)
        age = until
        hits += hit
        curve.append((time, hits, age))
    return curve


def hull(curve: Curve) -> Curve:
    best: Curve = []
    for point in curve:
        while len(best) > 1 and (best[-1][0] - best[-2][0]) * (point[1] - best[-2][1]) >= (
            best[-1][1] - best[-2][1]
        ) * (point[0] - best[-2][0]):
            best.pop()
        best.append(point)
    return best


def rate(pieces: list[tuple[float, int]], blocks: int, total: int) -> float:
    """Take the pieces (block-time, hits) in their order until the cache is full. Return hits per requested block."""
    room: float = blocks * total
    found: float = 0
    for time, hits in pieces:
        if time > room:
            return (found + hits * room / time) / total
        room -= time
        found += hits
    return found / total


def pieces_of(hulls: dict[object, Curve]) -> list[tuple[float, object, int, float, int]]:
    """Return the pieces of all hulls, those with the most hits per block-time first."""
    pieces = []
    for kind, curve in hulls.items():
        for (time, hits, _), (next_time, next_hits, age) in zip(curve, curve[1:]):
            density = (next_hits - hits) / (next_time - time) if next_time > time else math.inf
            pieces.append((density, kind, age, next_time - time, next_hits - hits))
    return sorted(pieces, key=lambda piece: -piece[0])


def group(waits: list[Wait], kind_of: Callable[[Wait], object]) -> dict[object, list[Wait]]:
    groups = defaultdict(list)
    for wait in waits:
        groups[kind_of(wait)].append(wait)
    return groups


def hindsight(waits: list[Wait], kind_of: Callable[[Wait], object]) -> list[tuple[float, int]]:
    hulls = {kind: hull(points(group_waits)) for kind, group_waits in group(waits, kind_of).items()}
    return [(time, hits) for _, _, _, time, hits in pieces_of(hulls)]


def learned(waits: list[Wait], kind_of: Callable[[Wait], object]) -> list[tuple[float, int]]:
    """Return the pieces that the ages of each half yield in the other half, in the order of the expected density."""
    pieces = []
    for part in (0, 1):
        there = {
            kind: points(group_waits)
            for kind, group_waits in group([wait for wait in waits if wait.part == part], kind_of).items()
        }
        ages = {kind: [age for _, _, age in curve] for kind, curve in there.items()}
        hulls = {
            kind: hull(points(group_waits))
            for kind, group_waits in group([wait for wait in waits if wait.part != part], kind_of).items()
        }
        reached: dict[object, tuple[float, int]] = {}
        for density, kind, age, _, _ in pieces_of(hulls):
            if kind not in there:
                continue
            i = bisect.bisect_right(ages[kind], age) - 1
            time, hits, before = there[kind][i]
            time += (len(there[kind]) - 1 - i) * (age - before)
            time_so_far, hits_so_far = reached.get(kind, (0, 0))
            pieces.append((density, time - time_so_far, hits - hits_so_far))
            reached[kind] = (time, hits)
    return [(time, hits) for _, time, hits in sorted(pieces, key=lambda piece: -piece[0])]


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    with open(sys.argv[1]) as trace:
        requests = [json.loads(line)["hash_ids"] for line in trace if line.strip()]
    sizes = [int(size) for size in sys.argv[2:]] or [1000, 2000, 5000, 10000, 20000]
    waits = waits_of(requests)
    total = sum(map(len, requests))
    print(f"{'classes':20}" + "".join(f"{size:>9,}" for size in sizes))
    rows = {}
    for name, kind_of in CLASSES.items():
        rows[f"{name}, {len(group(waits, kind_of))}"] = hindsight(waits, kind_of)
        rows[f"{name}, learned"] = learned(waits, kind_of)
    rows["perfect"] = sorted(
        ((wait.length_until, 1) for wait in waits if wait.length_until < NEVER), key=lambda piece: piece[0]
    )
    for name, pieces in rows.items():
        print(f"{name:20}" + "".join(f"{rate(pieces, size, total):9.4f}" for size in sizes))


if __name__ == "__main__":
    main()
