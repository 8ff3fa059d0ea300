"""Engines of vLLM for tests, stock or on gpool, each with a time limit."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import unittest
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from vllm_process import (
    BLOCK_BYTES,
    OPTIONS,
    RUNNING,
    SECONDS,
    Processes,
    Server,
    connector,
    environment,
    loopback,
    model,
    tokens,
)

from harness import BUILD, ROOT, Agent

from gpool import NoRoom

HERE = Path(__file__).resolve().parent
TOOLS = ROOT / "tools" / "engines"
__all__ = [
    "BLOCK_BYTES",
    "BUILD",
    "RUNNING",
    "SECONDS",
    "TOOLS",
    "Answer",
    "Engine",
    "EngineTest",
    "Server",
    "connector",
    "loopback",
    "model",
    "tokens",
]

# Engines are forked from a server that has imported what they need, which takes more time than all else in a start.
os.environ.update(environment())
os.environ["PYTHONPATH"] += os.pathsep + str(HERE)
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["serve"])


class Answer(NamedTuple):
    """The tokens that an engine has generated."""

    tokens: List[int]
    cached: int


class Engine(Processes):
    """An engine that a program drives through a pipe: serve.py."""

    def __init__(self, path: Path, directory: Optional[str], extra: Optional[Dict[str, Any]] = None, **more: Any):
        """Start an engine.

        directory: the agent's runtime directory; None: stock vLLM.
        extra: kv_connector_extra_config. more: arguments of vllm.LLM.
        """
        self._options = {**OPTIONS, "model": str(path), **more}
        if directory is not None:
            self._options.setdefault("kv_transfer_config", connector(directory, extra))
        self.seconds = 0.0
        self.last = 0.0
        self.firsts: List[Tuple[float, int, int]] = []
        self.adapter: Optional[List[Any]] = None  # arguments of a LoRARequest, for the next prompts
        self.transfers: List[Any] = []  # kv_transfer_params of the last answers
        super().__init__()

    def _start(self) -> multiprocessing.process.BaseProcess:
        self._pipe, theirs = FORKS.Pipe()
        process = FORKS.Process(target=_serve, args=(theirs, self._options, str(self.log)))
        process.start()
        theirs.close()
        return process

    def _wait(self) -> None:
        self.process.join()
        self._pipe.close()

    def end(self) -> None:
        """As stop(), but let vLLM first delete the shared memory of its processes."""
        self._pipe.close()
        self.process.join(SECONDS)
        self.stop()

    def ready(self) -> "Engine":
        """Wait until the engine has started."""
        self._answer()
        return self

    def call(self, name: str, *arguments: Any) -> str:
        """Call a method of vllm.LLM; return why it has failed, or an empty text."""
        self._pipe.send({"call": name, "arguments": arguments})
        return str(self._answer()["error"])

    def ask(self, prompts: List[List[int]], count: int, transfers: Optional[List[Any]] = None) -> None:
        """Send prompts, which answers() returns. transfers: kv_transfer_params of each."""
        self._pipe.send({"prompts": prompts, "tokens": count, "adapter": self.adapter, "transfers": transfers})

    def answers(self) -> List[Answer]:
        """Wait for the answers to ask()."""
        found = self._answer()
        self.seconds, self.transfers = found["seconds"], found["transfers"]
        return [Answer(*answer) for answer in found["answers"]]

    def begin(self, prompts: List[List[int]], count: int, alone: bool = True) -> Optional[float]:
        """Send prompts that arrive at once; step() returns the answers. Returns as step(). alone: see serve.burst()."""
        self._pipe.send({"burst": prompts, "tokens": count, "alone": alone})
        return self._heard()

    def step(self, seconds: float = 0.0) -> Optional[float]:
        """Let the engine make its next step, and further ones for some seconds. Returns the time of its clock before
        the step after that; None: it has answered all requests, and `last` and `firsts` have the result of
        serve.burst()."""
        self._pipe.send(seconds)
        return self._heard()

    def _heard(self) -> Optional[float]:
        found = self._answer()
        if isinstance(found, float):
            return found
        self.last, self.firsts = found
        return None

    def readable(self) -> bool:
        """Return whether an answer has arrived, or arrives within a hundredth of a second."""
        return self._pipe.poll(0.01)

    def generate(self, prompts: List[List[int]], count: int) -> List[Answer]:
        """Return the answers to prompts, `count` tokens each."""
        self.ask(prompts, count)
        return self.answers()

    def timed(self, prompts: List[List[int]], count: int) -> Tuple[List[Answer], float]:
        """As generate(), with the time that the engine took."""
        return self.generate(prompts, count), self.seconds

    def metric(self, name: str) -> float:
        """Return a counter of vLLM's; disable_log_stats=False must be set."""
        self._pipe.send({"metric": name})
        return float(self._answer()["value"])

    def one_by_one(self, prompts: List[List[int]], count: int) -> List[Answer]:
        """As generate(), each after the one before."""
        return [self.generate([prompt], count)[0] for prompt in prompts]

    def _answer(self) -> Any:
        if not wait([self._pipe, self.process.sentinel], SECONDS):
            raise AssertionError(f"no answer within {SECONDS} s; stacks of all threads:\n{self.stacks()}")
        try:
            if self._pipe.poll():
                return self._pipe.recv()
        except (EOFError, OSError):
            pass
        raise AssertionError(f"the engine has ended: {self.text()[-6000:]}")


def _serve(*arguments: Any) -> None:
    from serve import main  # the fork server has imported it

    main(*arguments)


class EngineTest(unittest.TestCase):
    """An agent for each test, and engines that end with it."""

    pool = "name=p0,backend=host,size=64MiB,page_size=512KB,reserved=0"
    pages = 128

    @classmethod
    def setUpClass(cls) -> None:
        cls.model = model(BUILD / "engines-model")

    def setUp(self) -> None:
        self.agent = Agent(pool=self.pool)
        self.addCleanup(self.agent.stop)
        self.addCleanup(self.agent.poolctl, "check")

    def start(self, gpool: bool = True, **options: Any) -> Engine:
        """Begin to start an engine."""
        options.setdefault("path", self.model)
        engine = Engine(directory=self.agent.directory if gpool else None, **options)
        self.addCleanup(engine.stop)
        return engine

    def stock(self, prompts: List[List[int]], count: int, **options: Any) -> List[List[int]]:
        """Return the tokens of stock vLLM."""
        engine = self.start(gpool=False, **options).ready()
        found = [answer.tokens for answer in engine.generate(prompts, count)]
        engine.stop()
        return found

    def same(self, answers: List[Answer], expected: List[List[int]]) -> None:
        """Compare answers token by token."""
        self.assertEqual(len(answers), len(expected))
        for place, (answer, tokens_) in enumerate(zip(answers, expected)):
            self.assertEqual(answer.tokens, tokens_, f"answer {place}, with {answer.cached} cached tokens")

    def status(self, agent: Optional[Agent] = None) -> Dict[str, Any]:
        """Return the state of the pool; agent: of another one."""
        return dict(json.loads((agent or self.agent).poolctl("--output", "json", "status"))["pools"][0])

    def pinned_objects(self, agent: Optional[Agent] = None) -> int:
        """Return the number of pins of objects; agent: of another one."""
        found = json.loads((agent or self.agent).poolctl("--output", "json", "pins"))["pins"]
        return sum(pin["usage"] == "object" for pin in found)

    def await_idle(self, agent: Optional[Agent] = None, engines: int = 1) -> None:
        """Wait until each engine on an agent has at most one page that other sessions may not take."""
        until = time.monotonic() + SECONDS
        # In this order: publishing makes a pinned page of a range a page of a pinned object, which the status omits.
        while self.status(agent)["pinned_pages"] > engines or self.pinned_objects(agent):
            self.assertLess(time.monotonic(), until, "an idle engine holds pages")

    def pool_pages(self, limit: int) -> int:
        """Allocate at most `limit` pages as another process would, free them, and return their number."""
        with self.agent.pool() as pool:
            return len(self.all_pages(pool, limit))

    def all_pages(self, pool: Any, limit: Optional[int] = None) -> List[Any]:
        """Allocate all pages that the pool has free or can evict, or at most `limit`."""
        blocks: List[Any] = []
        try:
            while limit is None or len(blocks) < limit:
                blocks.append(pool.alloc(1))
        except NoRoom:
            pass
        return blocks
