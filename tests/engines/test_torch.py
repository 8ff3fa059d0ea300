"""PyTorch without vLLM: the examples."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest

from harness import ROOT, AgentTest


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


if __name__ == "__main__":
    unittest.main()
