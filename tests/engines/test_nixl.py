"""Prefill on one node and decode on another: two engines on two gpoold, with NIXL over TCP on the loopback.

Requirements: E10.
"""

from __future__ import annotations

import unittest
from typing import Any, Dict, List

from engines import SECONDS, Engine, EngineTest, connector, loopback, tokens

from harness import Agent

COUNT = 40
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


def transfer(agent: Agent, role: str) -> Dict[str, Any]:
    """Return the configuration of both connectors."""
    nixl = {
        "kv_connector": "NixlConnector",
        "kv_connector_module_path": "gpool.vllm",
        "kv_role": role,
        "kv_connector_extra_config": {"kv_lease_duration": SECONDS},  # the first node keeps blocks for this time
    }
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": [connector(agent.directory), nixl]},
    }


class Nixl(EngineTest):
    def setUp(self) -> None:
        super().setUp()
        self.other = Agent(pool=self.pool)
        self.addCleanup(self.other.stop)
        self.addCleanup(self.other.poolctl, "check")

    def node(self, agent: Agent, role: str) -> Engine:
        """Start an engine."""
        host, port = loopback()
        environment = {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": host,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port),
            "UCX_TLS": "tcp",  # as between two machines
            "UCX_NET_DEVICES": "lo",
        }
        return self.start(
            kv_transfer_config=transfer(agent, role),
            environment=environment,
            load_format="gpool",
            disable_log_stats=False,
        )

    def prefill(self, engine: Engine, prompts: List[List[int]]) -> List[Any]:
        """Compute prompts; return how another node gets their KV content."""
        engine.ask(prompts, 1, [PREFILL] * len(prompts))
        engine.answers()
        return engine.transfers

    def decode(self, engine: Engine, prompts: List[List[int]], transfers: List[Any], expected: List[List[int]]) -> int:
        """Compare the answers; return how many tokens were received from the other node."""
        before = engine.metric("vllm:external_prefix_cache_hits")
        engine.ask(prompts, COUNT, transfers)
        self.same(engine.answers(), expected)
        return int(engine.metric("vllm:external_prefix_cache_hits") - before)

    def test_answers_are_those_of_stock_vllm(self) -> None:
        prompts = [tokens(number, 200 + 40 * number) for number in range(16)]
        expected = self.stock(prompts, COUNT)
        first, second = self.node(self.agent, "kv_producer"), self.node(self.other, "kv_consumer")
        first.ready()
        second.ready()
        part = slice(0, 8)
        received = self.decode(second, prompts[part], self.prefill(first, prompts[part]), expected[part])
        self.assertEqual(received, sum(map(len, prompts[part])))
        self.await_idle(self.agent)
        self.await_idle(self.other)
        # Again: both have the prefixes in their own caches.
        received = self.decode(second, prompts[part], self.prefill(first, prompts[part]), expected[part])
        self.assertLess(received, sum(map(len, prompts[part])) / 2)
        # Hold all memory of the second node until a request for pages was refused there.
        part = slice(8, 12)
        transfers = self.prefill(first, prompts[part])
        self.await_idle(self.other)
        with self.other.pool() as pool:
            taken = self.all_pages(pool)
            refused = self.status(self.other)["refusals"]
            second.ask(prompts[part], COUNT, transfers)
            while self.status(self.other)["refusals"] == refused:
                self.assertFalse(second.readable())
            for block in taken:
                block.free()
            self.same(second.answers(), expected[part])
        # The first node dies before the second one has received the content.
        part = slice(12, 16)
        transfers = self.prefill(first, prompts[part])
        first.kill()
        self.decode(second, prompts[part], transfers, expected[part])
        self.await_idle(self.other)


if __name__ == "__main__":
    unittest.main()
