"""Weights that engines share: --load-format gpool.

Requirements: E4.
"""

from __future__ import annotations

import json
import unittest
from pathlib import Path
from typing import List

from engines import BUILD, Engine, EngineTest, model, tokens


def private_bytes(engine: Engine) -> int:
    """Return the private memory of the process of an engine that has the model: the largest.

    The kernel's fields Private_* would include pages of the pool that no other process maps.
    """
    found: List[int] = []
    for pid in engine.pids():
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        found.append(sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Anonymous:")))
    return max(found)


class Weights(EngineTest):
    pool = "name=p0,backend=host,size=512MiB,page_size=2MB,reserved=0"

    def objects(self) -> List[str]:
        listed = json.loads(self.agent.poolctl("--output", "json", "objects"))["objects"]
        return [each["name"] for each in listed if each["name"].startswith("vllm-weights/")]

    def test_the_second_engine_maps_them(self) -> None:
        large = model(BUILD / "engines-model-large", "--large")
        size = (large / "model.safetensors").stat().st_size
        self.assertGreater(size, 100 << 20)
        prompts = [tokens(number, 100) for number in range(4)]
        options = {"path": large, "kv_cache_memory_bytes": 256 << 20, "max_num_seqs": 4}
        expected = self.stock(prompts, 20, **options)
        plain = self.start(**options).ready()
        self.same(plain.generate(prompts, 20), expected)
        private = private_bytes(plain)
        plain.stop()
        first = self.start(load_format="gpool", **options).ready()
        self.same(first.generate(prompts, 20), expected)
        names = self.objects()
        self.assertEqual(len(names), 1)
        first.kill()
        self.assertEqual(self.objects(), names)
        second = self.start(load_format="gpool", **options).ready()
        self.same(second.generate(prompts, 20), expected)
        self.assertEqual(self.objects(), names)
        # Without the weights, and at most 5 % of them more, the process is as small as one without its model.
        self.assertLess(private_bytes(second), private - 0.95 * size)


if __name__ == "__main__":
    unittest.main()
