"""An engine sleeps, others use its memory, and it wakes.

Requirements: E5.
"""

from __future__ import annotations

import json
import unittest

from engines import EngineTest, tokens


class Sleep(EngineTest):
    def weights(self) -> int:
        """Return the number of objects with weights."""
        listed = json.loads(self.agent.poolctl("--output", "json", "objects"))["objects"]
        return sum(each["name"].startswith("vllm-weights/") for each in listed)

    def test_a_sleeping_engine_gives_its_memory_to_others(self) -> None:
        prompts = [tokens(number, 300) for number in range(4)]
        expected = self.stock(prompts, 20)
        engine = self.start(load_format="gpool", worker_cls="gpool.vllm.Worker").ready()
        self.same(engine.generate(prompts, 20), expected)
        for taken in (False, True):
            self.assertEqual(engine.call("sleep", 1), "")
            self.await_idle()
            self.assertEqual(self.weights(), 1)
            if taken:
                with self.agent.pool() as pool, pool.alloc(self.pages - 1):
                    self.assertEqual(self.weights(), 0)
                    for _ in range(2):
                        self.assertIn("not enough free or evictable pages: 10 needed", engine.call("wake_up"))
                        self.assertEqual(self.status()["pinned_pages"], self.pages)
            self.assertEqual(engine.call("wake_up"), "")
            self.assertEqual(self.weights(), 1)
            self.same(engine.generate(prompts, 20), expected)

    def test_an_engine_with_private_weights_does_not_sleep(self) -> None:
        prompts = [tokens(1, 300)]
        engine = self.start(worker_cls="gpool.vllm.Worker").ready()
        expected = engine.generate(prompts, 5)
        self.assertIn("its weights are not in the pool", engine.call("sleep", 1))
        self.assertEqual(engine.call("wake_up"), "")
        self.assertEqual(engine.generate(prompts, 5)[0].tokens, expected[0].tokens)


if __name__ == "__main__":
    unittest.main()
