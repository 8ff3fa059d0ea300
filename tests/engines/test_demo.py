"""The demonstration of tools/engines: its results and page, wrong arguments, and what it leaves after Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import List

from engines import SECONDS, TOOLS

HERE = Path(__file__).resolve().parent


class Demo(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="gpool-test-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.folder.chmod(0o755)
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir(mode=0o755)
        self.report = self.folder / "report.html"

    def start(self, *arguments: str, program: Path = TOOLS / "demo.py") -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, str(program), "--report", str(self.report), *arguments],
            env={**os.environ, "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def assert_nothing_left(self) -> None:
        """Check that the demonstration has deleted its files, and that all of its processes end: the kernel kills those
        that it was starting when it ended, and a fork server ends after it.
        """
        self.assertEqual(self.files(), [])
        until = time.monotonic() + SECONDS
        while left := self.processes():
            self.assertLess(time.monotonic(), until, left)
            time.sleep(0.1)

    def processes(self) -> List[bytes]:
        """Return the command lines of the demonstration's processes."""
        mark, left = f"TMPDIR={self.temporary}".encode(), []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    left.append((entry / "cmdline").read_bytes())
            except OSError:
                pass
        return left

    def files(self) -> List[str]:
        """Return the files that remain, except for caches of libraries."""
        return [each.name for each in self.temporary.iterdir() if each.name.startswith("gpool-")]

    def test_the_page_has_the_results(self) -> None:
        short = ("--seconds", "10", "--rate", "0.1", "--pool-pages", "12", "-o", "json")
        with self.start(*short, program=HERE / "forked_demo.py") as demo:
            said, progress = demo.communicate()
        self.assertEqual(demo.returncode, 0, progress)
        found = json.loads(said)
        self.assertEqual(found["differing"], 0)
        page = self.report.read_text()
        for name in ("shared", "halves"):
            self.assertEqual(found[name]["requests"], found["shared"]["requests"])
            self.assertGreater(found[name]["requests"], 80)
            self.assertGreater(found[name]["ttft_mean_s"], 0)
            self.assertGreater(found[name]["delayed_requests"], 0)
            self.assertEqual(found[name]["timed_requests"], found["shared"]["timed_requests"])
            self.assertLessEqual(
                found[name]["timed_requests"], found[name]["requests"] - found[name]["delayed_requests"]
            )
            self.assertGreater(max(found[name]["needed_pages"]), 0)
            self.assertIn(f"{found[name]['ttft_p99_s']:.3f} s", page)
        self.assertGreater(found["shared"]["hit_rate"], 0)
        self.assertEqual(len(re.findall(r'<path class="area e[01] (?:needed|offered|idle)"', page)), 12)
        self.assertEqual(len(re.findall("<svg", page)), 4)
        self.assertRegex(progress, r"shared pool: \d+ s, \d+ of \d+ requests answered; pages needed: code \d+")
        self.assert_nothing_left()

    def test_nothing_remains_after_ctrl_c(self) -> None:
        with self.start() as demo:
            assert demo.stderr
            self.assertEqual(demo.stderr.readline(), "shared pool: starting two servers\n")
            demo.send_signal(signal.SIGINT)
            progress = demo.communicate()[1]
        self.assertEqual((demo.returncode, progress), (130, ""))
        self.assertFalse(self.report.exists())
        self.assert_nothing_left()

    def test_the_limit_ends_it(self) -> None:
        with self.start("--limit", "10") as demo:
            progress = demo.communicate()[1]
        self.assertEqual(demo.returncode, 1)
        self.assertIn("demo.py: not done within 10 s; --limit sets the limit\n", progress)
        self.assert_nothing_left()

    def test_wrong_arguments_are_refused(self) -> None:
        for arguments, text in (
            (("--rate", "2"), "--rate 2 must be from 0.05 to 1"),
            (("--rate", "nan"), "--rate nan must be from 0.05 to 1"),
            (("--pool-pages", "9"), "--pool-pages 9 must be at least 10"),
            (("--seconds", "1"), "--seconds 1 must be from 8 to 3600"),
            (("--limit", "0"), "--limit 0 must be at least 1"),
        ):
            with self.subTest(arguments), self.start(*arguments) as demo:
                self.assertIn(text, demo.communicate()[1])
                self.assertEqual(demo.returncode, 2)


if __name__ == "__main__":
    unittest.main()
