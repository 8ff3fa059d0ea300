"""Agent, front and mover are killed while an engine works."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
import unittest

from engines import EngineTest, tokens

COUNT = 100


class Faults(EngineTest):
    def test_killed_processes_of_gpoold_change_no_token(self) -> None:
        prompts = [tokens(number % 12, 200 + 10 * number) for number in range(36)]
        expected = self.stock(prompts, COUNT)
        engine = self.start().ready()
        killed = 0
        for turn in itertools.count():
            engine.ask(prompts, COUNT)
            due = time.monotonic()
            while not engine.readable():
                if time.monotonic() >= due:
                    killed += self.kill(killed)
                    due = time.monotonic() + 1
            self.same(engine.answers(), expected)
            if killed >= 6:
                break
            self.assertLess(turn, 50)
        self.assertNotIn("ERROR", engine.text())

    def kill(self, number: int) -> int:
        """Kill the agent, the front or the mover in turn; return 1, or 0 if none answers."""
        try:
            status = json.loads(self.agent.poolctl("--output", "json", "status"))
        except subprocess.CalledProcessError:
            return 0
        pids = [status["agent_pid"], status["front_pid"], status["pools"][0]["mover_pid"]]
        try:
            os.kill(pids[number % 3], signal.SIGKILL)
        except ProcessLookupError:
            return 0
        return 1


if __name__ == "__main__":
    unittest.main()
