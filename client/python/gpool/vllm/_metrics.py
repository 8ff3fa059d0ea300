"""Counters of the connector, which vLLM writes to its log and its Prometheus metrics."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from prometheus_client import Counter, Gauge
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

COUNTERS = {
    "published_chunks": "Chunks of the KV cache that were published.",
    "mapped_chunks": "Chunks of other engines that were mapped.",
    "lost_chunks": "Cached chunks whose memory the agent took.",
    "lost_in_use": "Chunks that were lost although requests used them.",
    "refused_commits": "Requests for memory that the pool could not satisfy.",
}
GAUGES = {
    "live_chunks": "Chunks that belong to vLLM's block pool.",
    "held_chunks": "Chunks with cached blocks that are kept.",
    "offered_chunks": "Chunks with cached blocks whose memory other sessions may take.",
    "out_chunks": "Chunks without memory.",
}


class Counters:
    """Count operations by name and result."""

    def __init__(self) -> None:
        self.counts: Dict[str, int] = {}
        self.changed = False  # since the last news()
        self._reported: Dict[str, int] = {}

    def count(self, name: str, done: bool = True, amount: int = 1) -> None:
        """Add to the counter of an operation, or of its failures."""
        self.changed = True
        key = name if done else f"{name}_failed"
        self.counts[key] = self.counts.get(key, 0) + amount

    def news(self) -> Dict[str, int]:
        """Return the counts since the last call."""
        self.changed = False
        news = {key: count - self._reported.get(key, 0) for key, count in self.counts.items()}
        self._reported = dict(self.counts)
        return {key: count for key, count in news.items() if count}


class Stats(KVConnectorStats):  # type: ignore[misc]
    """Carry counts and the last values of gauges from the scheduler to vLLM's log and metrics."""

    def reset(self) -> None:
        """Remove all counts."""
        self.data: Dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Add the counts of another interval, and take its gauges."""
        for key, value in other.data.items():
            self.data[key] = value if key in GAUGES else self.data.get(key, 0) + value
        return self

    def reduce(self) -> Dict[str, Any]:
        """Return the counts and gauges."""
        return dict(self.data)

    def is_empty(self) -> bool:
        """Return whether nothing was counted."""
        return not self.data


class PromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """Register the metrics vllm:gpool_* with the labels of vLLM's own metrics."""

    def __init__(self, config: Any, types: Any, labels: List[str], values: Dict[int, List[object]]) -> None:
        super().__init__(config, types, labels, values)
        self._metrics: Dict[str, Any] = {}
        for names, kind in ((COUNTERS, Counter), (GAUGES, Gauge)):
            for name, text in names.items():
                self._metrics[name] = types[kind](name=f"vllm:gpool_{name}", documentation=text, labelnames=labels)

    def observe(self, transfer_stats_data: Dict[str, Any], engine_idx: int = 0) -> None:
        """Add an interval's counts to the metrics of an engine."""
        for name, value in transfer_stats_data.items():
            metric = self._metrics.get(name)
            if metric is not None:
                bound = metric.labels(*self.per_engine_labelvalues[engine_idx])
                if name in GAUGES:
                    bound.set(value)
                else:
                    bound.inc(value)


def stats_of(counts: Dict[str, int], gauges: Dict[str, int]) -> Optional[Stats]:
    """Return the statistics of a step; None: nothing was counted."""
    return Stats({**counts, **gauges}) if counts else None
