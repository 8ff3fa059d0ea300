"""The examples run, the README contains the first of them byte for byte, and all types that they use exist."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any, Dict

from harness import PACKAGE, ROOT, AgentTest, gpool


class Examples(AgentTest):
    def start(self, name: str) -> "subprocess.Popen[str]":
        environment: Dict[str, Any] = {
            **os.environ,
            "GPOOL_DIR": self.agent.directory,
            "PYTHONPATH": PACKAGE,
            "PYTHONUNBUFFERED": "1",
        }
        return subprocess.Popen(
            [sys.executable, str(ROOT / "client" / "examples" / name)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def first(self, pages: int) -> str:
        """Return the example's output when this number of its pages was evicted while it waited."""
        with self.start("python_first.py") as example:
            assert example.stdin and example.stdout
            self.assertIn("Enter", example.stdout.readline())
            if pages:
                self.assertEqual(self.agent.evict(), pages)
            said = example.communicate("\n")[0]
        self.assertEqual(example.returncode, 0, said)
        return said

    def test_first_finds_its_block_again(self) -> None:
        self.assertEqual(self.first(0), "still there, 0x600d\n")

    def test_first_notices_the_eviction(self) -> None:
        self.assertEqual(self.first(4), "evicted: a program would now recreate the content\n")

    def test_torch(self) -> None:
        with self.start("torch_tensor.py") as example:
            said = example.communicate()[0]
        try:
            import torch  # noqa: F401
        except ImportError:
            self.assertEqual(said, "torch_tensor.py: there is no PyTorch here\n")
            self.skipTest("there is no PyTorch here")
        self.assertEqual(example.returncode, 0, said)
        self.assertIn("(256, 1024) on cpu", said)

    def test_the_readme_shows_the_first(self) -> None:
        self.assertIn(
            "\n```python\n" + (ROOT / "client" / "examples" / "python_first.py").read_text() + "```\n",
            (ROOT / "README.md").read_text(),
        )


class Names(unittest.TestCase):
    def test_all_names_are_there_and_documented(self) -> None:
        for name in gpool.__all__:
            self.assertTrue(getattr(gpool, name).__doc__, name)
        self.assertTrue((Path(gpool.__file__).parent / "py.typed").exists())
        self.assertEqual(
            set(gpool.__all__), {name for name in vars(gpool) if name[0] != "_" and name not in ("library",)}
        )


if __name__ == "__main__":
    unittest.main()
