"""PyTorch without vLLM: the examples, of which the training job yields its memory and computes the same result.

Requirements: E9.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest
from typing import Any, List

from engines import EngineTest, tokens

from harness import ROOT, AgentTest

STEPS = 120


def start(directory: str, name: str, *arguments: str) -> "subprocess.Popen[str]":
    """Start an example."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "client" / "examples" / name), *arguments],
        env={**os.environ, "GPOOL_DIR": directory, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


class Examples(AgentTest):
    def test_tensor(self) -> None:
        with start(self.agent.directory, "torch_tensor.py") as example:
            said = example.communicate()[0]
        self.assertEqual(example.returncode, 0, said)
        self.assertIn("(256, 1024) on cpu", said)

    def test_weights(self) -> None:
        said = []
        for _ in range(2):
            with start(self.agent.directory, "torch_weights.py") as example:
                said.append(example.communicate()[0])
            self.assertEqual(example.returncode, 0, said)
        self.addCleanup(self.pool.delete_object, "example-weights")
        self.assertEqual(said[1], said[0].replace("published", "mapped"))
        self.assertNotEqual(said[1], said[0])
        self.assertEqual([each.name for each in self.pool.objects()], ["example-weights"])


class Training(EngineTest):
    pages = 32
    pool = f"name=p0,backend=host,size={pages * 512}KiB,page_size=512KB,reserved=0,spill_memory=8MiB"

    def start_training(self) -> "subprocess.Popen[str]":
        """Start the job, and return when it has used all of its memory."""
        job = start(self.agent.directory, "torch_training.py", str(STEPS))
        self.addCleanup(job.__exit__, None, None, None)
        self.addCleanup(job.kill)
        assert job.stdout
        for line in iter(job.stdout.readline, ""):
            if line.startswith("step 10:"):
                return job
        raise AssertionError("the job has ended")

    def result(self, job: "subprocess.Popen[str]") -> List[Any]:
        """Wait for the end of a job; return its losses, its state, and how often it computed activations."""
        said = job.communicate()[0]
        self.assertEqual(job.returncode, 0, said)
        found = re.search(r"^activations computed (\d+) times, state (\w+)$", said, re.MULTILINE)
        assert found, said
        return [re.findall(r"^step .*", said, re.MULTILINE), found[2], int(found[1])]

    def test_the_pool_takes_all_memory_between_two_steps(self) -> None:
        *expected, computed = self.result(self.start_training())
        self.assertEqual(computed, 8)
        job = self.start_training()
        with self.agent.pool() as pool, pool.alloc(self.pages, timeout_ms=60000):
            self.assertIsNone(job.poll())
            self.assertGreater(self.status()["spilled_pages"], 0)
        *found, computed = self.result(job)
        self.assertEqual(found, expected)
        self.assertEqual(computed, 16)

    def test_a_job_trains_beside_an_engine(self) -> None:
        prompts = [tokens(number, 700) for number in range(8)]
        answers = self.stock(prompts, 100)
        *expected, _ = self.result(self.start_training())
        engine = self.start().ready()
        job = self.start_training()
        self.same(engine.generate(prompts, 100), answers)
        *found, computed = self.result(job)
        self.assertEqual(found, expected)
        self.assertGreater(computed, 8)  # the engine has taken memory of the job


if __name__ == "__main__":
    unittest.main()
