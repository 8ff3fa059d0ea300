"""Counters of the connector."""

from __future__ import annotations

from typing import Dict


class Counters:
    """Count operations by name and result."""

    def __init__(self) -> None:
        self.counts: Dict[str, int] = {}

    def count(self, name: str, done: bool = True, amount: int = 1) -> None:
        """Add to the counter of an operation, or of its failures."""
        key = name if done else f"{name}_failed"
        self.counts[key] = self.counts.get(key, 0) + amount

    def take(self) -> Dict[str, int]:
        """Return the counts since the last call."""
        counts, self.counts = self.counts, {}
        return counts
