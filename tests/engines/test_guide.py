"""The guide for vLLM, docs/vllm.md: its commands start two servers on one pool, and both answer a request.

The commands are executed as written, in one shell, except that ports, the runtime directory and the home directory are
replaced, since other programs of the machine may use them. Step 1, the installation, is that of these tests. The test
prints the time that the other steps take.

Requirements: E8.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from pathlib import Path
from typing import Any, List

from engines import BUILD, ROOT, SECONDS
from vllm_process import Processes, environment

SECTION = "## Two models in one pool\n"


def steps() -> List[str]:
    """Return the commands of each numbered step of the guide."""
    section = (ROOT / "docs" / "vllm.md").read_text().partition(SECTION)[2].partition("\n## ")[0]
    items = re.split(r"^\d+\. .*\n", section, flags=re.MULTILINE)[1:]
    return [textwrap.dedent("".join(re.findall(r"^ {7}.*\n", item, flags=re.MULTILINE))) for item in items]


def free_port() -> int:
    """Return a port that no process uses, outside of those that the kernel chooses for connections."""
    while True:
        port = random.randrange(25000, 32000)
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("", port))
                return port
            except OSError:
                pass


class Shell(Processes):
    """A shell that executes a script, and all processes that the script starts."""

    def __init__(self, folder: Path, script: str) -> None:
        self._folder, self._script = folder, script
        super().__init__()

    def _start(self) -> Any:
        path = os.pathsep.join([str(BUILD), str(Path(sys.executable).parent), os.environ["PATH"]])
        with self.log.open("wb") as log:
            return subprocess.Popen(
                ["bash", "-e", "-c", self._script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **environment(),
                    "PATH": path,
                    "GPOOL_DIR": "",
                    "HOME": str(self._folder),
                    "no_proxy": "localhost",
                },
                cwd=ROOT,
                start_new_session=True,
            )

    def _wait(self) -> None:
        self.process.wait()


class Guide(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpool-guide-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.folder.chmod(0o755)  # the front runs as another user and must be able to enter

    def run_to_end(self, script: str) -> str:
        """Return what the script prints. The servers print, too."""
        shell = Shell(self.folder, script)
        self.addCleanup(shell.stop)
        try:
            self.assertEqual(shell.process.wait(SECONDS), 0, shell.text()[-6000:])
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the guide takes more than {SECONDS} s; stacks:\n{shell.stacks()}") from None
        return (self.folder / "said").read_text()

    def test_two_models_in_one_pool(self) -> None:
        found = steps()
        first = ["apt-get", "export", "python", 'T=\'{"kv_connector":', "for", "curl", "poolctl", "kill"]
        self.assertEqual([step.split()[0] for step in found], first)
        # An engine that was killed has an exit status other than 0.
        script = "\n".join(found[1:5]) + "{\n" + found[5] + found[6] + "} > ~/said\nset +e\n" + found[7] + "wait\n"
        for name, own in (
            ("/tmp/gpool", str(self.folder / "run")),
            ("8001", str(free_port())),
            ("8002", str(free_port())),
        ):
            self.assertIn(name, script)
            script = script.replace(name, own)
        begun = time.monotonic()
        said = self.run_to_end(script)
        print(f"the guide took {time.monotonic() - begun:.0f} s, without the installation")
        for name in ("model-a", "model-b"):
            answer, end = json.JSONDecoder().raw_decode(said)
            self.assertEqual(answer["model"], name)
            self.assertIn(answer["usage"]["completion_tokens"], range(1, 9))
            said = said[end:].lstrip()
        self.assertEqual(len(set(re.findall(r"vllm-weights/\w+", said))), 2, said)


if __name__ == "__main__":
    unittest.main()
