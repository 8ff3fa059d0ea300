"""Two servers of vLLM (`vllm serve`) on one pool, with requests over HTTP.

Requirements: E2.
"""

from __future__ import annotations

import re
import unittest
from concurrent.futures import ThreadPoolExecutor

from engines import EngineTest, Server, tokens

COUNT = 24


class Serve(EngineTest):
    def test_two_servers_answer_as_stock_vllm(self) -> None:
        common = tokens(1, 600)
        prompts = [common[: 100 * number] + tokens(2 + number, 50) for number in range(7)]
        servers = [Server(self.model, self.agent.directory) for _ in range(2)]
        for server in servers:
            self.addCleanup(server.stop)
        expected = self.stock(prompts, COUNT)
        for server in servers:
            server.ready()
        self.assertEqual(servers[0].complete(prompts[-1:], COUNT), expected[-1:])
        with ThreadPoolExecutor(2) as threads:
            for answers in threads.map(lambda server: server.complete(prompts, COUNT), servers):
                self.assertEqual(answers, expected)
        found = re.search(r"^vllm:gpool_mapped_chunks_total\{.*\} (\S+)$", servers[1].get("/metrics"), re.MULTILINE)
        assert found
        self.assertGreaterEqual(float(found[1]), 2)  # the second server has used prefixes of the first one


if __name__ == "__main__":
    unittest.main()
