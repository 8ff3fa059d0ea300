"""The examples run, the README shows the first of them verbatim, and all public names exist and are documented."""

from __future__ import annotations

import ast
import inspect
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
        """Return the output of the example if this number of its pages is evicted while it waits."""
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

    def test_docstrings(self) -> None:
        """Each public class and function has a headline; that of a function is a verb phrase. A function that raises
        names its errors."""
        for path in sorted(Path(gpool.__file__).parent.glob("*.py")):
            if path.name != "_abi.py":
                self.check_docstrings(path.name, ast.parse(path.read_text()), "")

    def test_docstrings_in_c(self) -> None:
        """Likewise each method that a class inherits from the module in C, which also names its arguments."""
        checked = 0
        for kind in (gpool.Pool, gpool.Block, gpool.Range, gpool.Stream, gpool.Fence):
            native = kind.__mro__[1]
            for name, member in vars(native).items():
                if name[0] == "_" or not callable(member) or name == "take":
                    continue
                with self.subTest(f"{kind.__name__}.{name}"):
                    self.assertRegex(member.__doc__.split("\n\n")[0], VERB_PHRASE)
                    self.assertRegex(member.__doc__, r"\bRaises? ")
                    self.assertEqual(next(iter(inspect.signature(member).parameters)), "self")
                    checked += 1
        self.assertEqual(checked, 12)

    def check_docstrings(self, path: str, node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.ClassDef, ast.FunctionDef)) or child.name[0] == "_":
                continue
            name, text = f"{path}: {prefix}{child.name}", ast.get_docstring(child)
            with self.subTest(name):
                self.assertTrue(text, "has a docstring")
                assert text
                headline = text.split("\n\n")[0]
                if isinstance(child, ast.FunctionDef):
                    self.assertRegex(headline, VERB_PHRASE)
                self.assertRegex(headline, r"[.:\"]$")
                if raises_errors(child):
                    self.assertRegex(text, r"\bRaises? ")
            if isinstance(child, ast.ClassDef):
                self.check_docstrings(path, child, f"{child.name}.")


# Verbs for headlines. Extend the list, but not with prepositions, articles or "whether".
VERB_PHRASE = (
    r"^(Acquire|Add|Allocate|Append|Attach|Begin|Call|Cancel|Close|Combine|Commit|Copy|Count|Create|Decommit|"
    r"Define|Delete|Describe|Destroy|Detach|End|Evict|Find|Free|Give|Hold|Import|Iterate|Keep|List|Load|Locate|Make|"
    r"Map|Mark|Move|Name|Open|Permit|Pin|Preempt|Present|Publish|Queue|Raise|Read|Register|Release|Remove|"
    r"Replace|Report|Reserve|Restrict|Resume|Return|Set|Share|Signal|Start|Store|Sum|Unmap|Unpin|Unregister|Wait|Wrap)\b"
)


def raises_errors(function: ast.AST) -> bool:
    """Return whether a function contains `raise`, or a call of check(), check_room() or error()."""
    if not isinstance(function, ast.FunctionDef):
        return False
    for node in ast.walk(function):
        if isinstance(node, ast.Raise) and node.exc is not None:
            return True
        if isinstance(node, ast.Call):
            called = node.func
            if (called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")) in ("check", "check_room"):
                return True
    return False


if __name__ == "__main__":
    unittest.main()
