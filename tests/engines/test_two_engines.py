"""Two engines on a pool that has half of what they would use."""

from __future__ import annotations

import unittest
from typing import List

from engines import BLOCK_BYTES, EngineTest, tokens

COUNT = 200


class TwoEngines(EngineTest):
    pages = 26
    pool = f"name=p0,backend=host,size={pages * 512}KiB,page_size=512KB,reserved=0"

    # Requirements: E2.
    def test_refusals_become_waiting(self) -> None:
        prompts: List[List[List[int]]] = [
            [tokens(engine * 100 + number, 500 + 20 * number) for number in range(12)] for engine in range(2)
        ]
        demand = sum(min(8, len(asked)) * (600 + COUNT) // 32 * BLOCK_BYTES for asked in prompts)
        self.assertGreater(demand, 1.9 * self.pages * 512 * 1024)
        expected = self.stock(prompts[0] + prompts[1], COUNT)
        engines = [self.start(extra={"share": False}) for _ in prompts]
        for engine in engines:
            engine.ready()
        for engine, asked in zip(engines, prompts):
            engine.ask(asked, COUNT)
        for number, engine in enumerate(engines):
            self.same(engine.answers(), expected[12 * number : 12 * number + 12])
        self.assertGreater(self.status()["refusals"], 0)

    # Requirements: E7.
    def test_tensor_parallel(self) -> None:
        prompts = [tokens(number, 300 + 30 * number) for number in range(8)]
        expected = self.stock(prompts, COUNT, tensor_parallel_size=2)
        engine = self.start(tensor_parallel_size=2, kv_cache_memory_bytes=32 << 20).ready()
        self.same(engine.generate(prompts, COUNT), expected)
        again = engine.generate(prompts[:2], COUNT)
        self.same(again, expected[:2])
        self.assertGreater(again[1].cached, 0)


if __name__ == "__main__":
    unittest.main()
