"""An engine that is idle or stopped frees its memory for others, and continues.

Requirements: E2.
"""

from __future__ import annotations

import signal
import unittest

from engines import EngineTest, tokens


class Idle(EngineTest):
    def test_others_get_the_memory_of_an_idle_or_stopped_engine(self) -> None:
        prompts = [tokens(number, 700) for number in range(8)]
        expected = self.stock(prompts, 20)
        for share in (False, True):
            for stopped in (False, True):
                with self.subTest(share=share, stopped=stopped):
                    engine = self.start(extra={"share": share}).ready()
                    self.same(engine.generate(prompts, 20), expected)
                    self.await_idle()
                    if stopped:
                        engine.signal(signal.SIGSTOP)
                    # About half of the cached content, which is 24 pages: the rest is used from the cache.
                    # The allocation does not wait for the engine.
                    with self.agent.pool() as pool, pool.alloc(self.pages - 13):
                        pass
                    engine.signal(signal.SIGCONT)
                    found = engine.one_by_one(prompts, 20)
                    self.same(found, expected)
                    cached = sum(answer.cached for answer in found)
                    self.assertGreater(cached, 600)
                    self.assertLess(cached, 8 * 600)
                    # All of it.
                    self.await_idle()
                    if stopped:
                        engine.signal(signal.SIGSTOP)
                    self.assertEqual(self.pool_pages(self.pages), self.pages - 1)
                    engine.signal(signal.SIGCONT)
                    found = engine.generate(prompts[:2], 20)
                    self.same(found, expected[:2])
                    self.assertEqual([answer.cached for answer in found], [0, 0])
                    engine.stop()


if __name__ == "__main__":
    unittest.main()
