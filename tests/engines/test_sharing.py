"""Prefixes that engines share: they outlive their engine, and exist once.

Requirements: E3.
"""

from __future__ import annotations

import json
import unittest

from engines import BLOCK_BYTES, EngineTest, tokens

LONG = 8192
BLOCK = 32
CHUNK = 512 * 1024 // BLOCK_BYTES * BLOCK  # tokens in a page


class Sharing(EngineTest):
    def objects(self) -> int:
        """Return the number of pages of named objects."""
        return sum(
            int(each["pages"]) for each in json.loads(self.agent.poolctl("--output", "json", "objects"))["objects"]
        )

    def test_a_prefix_outlives_an_engine_that_was_killed(self) -> None:
        prompt = tokens(1, 900)
        expected = self.stock([prompt, prompt[:600] + tokens(2, 100)], 30)
        first = self.start().ready()
        self.same(first.generate([prompt], 30), expected[:1])
        self.await_idle()  # the end of the prefix is published when no request uses it
        first.kill()
        second = self.start().ready()
        found = second.generate([prompt], 30) + second.generate([prompt[:600] + tokens(2, 100)], 30)
        self.same(found, expected)
        self.assertEqual(found[0].cached, 900 // BLOCK * BLOCK)
        self.assertEqual(found[1].cached, 600 // BLOCK * BLOCK)

    def test_two_engines_use_one_copy(self) -> None:
        options = {
            "max_model_len": LONG + 1024,
            "kv_cache_memory_bytes": 128 << 20,
            "max_num_batched_tokens": LONG + 1024,
        }
        prompt = tokens(3, LONG + 10)
        expected = self.stock([prompt], 30, **options)
        engines = [self.start(**options) for _ in range(2)]
        self.same(engines[0].ready().generate([prompt], 30), expected)
        self.await_idle(engines=2)
        pages = LONG // CHUNK + 1  # the last one has one block
        self.assertEqual(self.objects(), pages)
        before = self.status()["evicted_pages"]
        found = engines[1].ready().generate([prompt], 30)
        self.same(found, expected)
        self.assertEqual(found[0].cached, LONG)
        self.await_idle(engines=2)
        self.assertEqual(self.objects(), pages)
        # Besides the one copy: the first page of each engine, and at most two pages for the end of each request.
        self.assertLessEqual(self.status()["used_pages"], pages + 6)
        self.assertEqual(self.status()["evicted_pages"], before)


if __name__ == "__main__":
    unittest.main()
