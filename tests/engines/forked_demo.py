#!/usr/bin/env python3
"""forked_demo.py - run tools/engines/demo.py, with servers whose processes are forked from one that has imported vLLM.

The import takes 10 s of CPU time in each of a server's three processes, and the demonstration starts six servers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python"), str(HERE.parents[1] / "tools" / "engines")]

import demo  # noqa: E402
from engines import FORKS  # noqa: E402


class ForkedServer(demo.Server):
    """`vllm serve`, forked."""

    def _start(self) -> Any:
        process = FORKS.Process(target=_run, args=(self._arguments, str(self.log)))
        process.start()
        return process

    def _wait(self) -> None:
        self.process.join()

    def ended(self) -> bool:
        """Return whether the server has ended."""
        return not self.process.is_alive()


def _run(*arguments: Any) -> None:
    from serve import command  # the fork server has imported it

    command(*arguments)


if __name__ == "__main__":
    FORKS.set_forkserver_preload(["serve", "vllm.entrypoints.cli.serve"])
    demo.Server = ForkedServer  # type: ignore[misc]
    sys.exit(demo.main())
