"""One engine: tokens as stock vLLM's, while its memory grows and shrinks.

Requirements: E1.
"""

from __future__ import annotations

import random
import unittest
from typing import List

from engines import EngineTest, tokens

PROMPTS, COUNT = 200, 24


def prompts() -> List[List[int]]:
    """Return prompts of 20 to 700 tokens; most share a prefix with others."""
    chosen = random.Random(4)
    common = [tokens(seed, chosen.randrange(100, 600)) for seed in range(8)]
    made = []
    for number in range(PROMPTS):
        prefix = chosen.choice(common)[: chosen.randrange(600)] if number % 4 else []
        made.append(prefix + tokens(1000 + number, chosen.randrange(20, 100)))
    return made


class OneEngine(EngineTest):
    def test_tokens_are_those_of_stock_vllm(self) -> None:
        asked = prompts()
        expected = self.stock(asked, COUNT)
        engine = self.start().ready()
        self.assertLessEqual(self.status()["pinned_pages"], 1)
        most = cached = place = 0
        for size in (1, 39, 2, 60, 3, 95):  # the memory shrinks to one page after each
            part = asked[place : place + size]
            engine.ask(part, COUNT)
            while not engine.readable():
                most = max(most, self.status()["leased_pages"])
            found = engine.answers()
            self.same(found, expected[place : place + size])
            cached += sum(answer.cached for answer in found)
            place += size
            self.await_idle()
            self.assertEqual(self.pool_pages(self.pages), self.pages - 1)
        self.assertEqual(place, PROMPTS)
        self.assertGreater(most, 30)
        self.assertGreater(cached, 10000)


if __name__ == "__main__":
    unittest.main()
