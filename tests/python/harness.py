"""Run a real gpoold for tests, in its own folder, on the back end that $GPOOL_TEST_BACKEND names (default: host)."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("GPOOL_BUILD", ROOT / "build"))
PACKAGE = os.environ.get("GPOOL_PYTHON", str(ROOT / "client" / "python"))
sys.path.insert(0, PACKAGE)
os.environ.setdefault("GPOOL_LIBRARY", str(BUILD / "libgpool_lora.so"))

import gpool  # noqa: E402

BACKEND = os.environ.get("GPOOL_TEST_BACKEND") or "host"
POOL = f"name=p0,backend={BACKEND},size=32MiB,page_size=512KB,reserved=0,spill_memory=8MiB"  # 64 pages
PRCTL, PR_SET_PDEATHSIG = ctypes.CDLL(None).prctl, 1
START_TRIES, START_SLICE_MS, STOP_SECONDS = 300, 200, 60


class _OnDevice:
    """A view of device memory, for numpy, which keeps it: with its setting cpu_access, the double of the driver permits
    the CPU to access the memory at its address."""

    def __init__(self, view: gpool.View) -> None:
        self.view = view
        described = view.__cuda_array_interface__
        address = described["data"][0] or view.address  # numpy 1 rejects an empty array without an address
        self.__array_interface__: Dict[str, Any] = {**described, "data": (address, view.readonly)}


def array_of(view: gpool.View) -> Any:
    """Return a numpy array of the view's memory, which keeps the view, after the work that is queued on its stream."""
    if BACKEND == "host":
        return numpy.asarray(view)
    if view.stream is not None:
        view.stream.synchronize()
    return numpy.asarray(_OnDevice(view))


class Agent:
    """A gpoold, which serves when the constructor returns. stop() ends it and checks that its folder is empty."""

    def __init__(self, *arguments: str, pool: str = POOL) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="gpool-test-"))
        self.base.chmod(0o755)  # the front runs as another user and must be able to enter
        self.directory = str(self.base / "run")
        self.log = self.base / "log"
        # As in tests/lib/harness.c: gpoold gets no settings of the driver's double that only the test itself needs.
        double = os.environ.get("GPU_DOUBLE")
        strict = {} if double is None else {"GPU_DOUBLE": f"{double} cpu_access=0 fork=0"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(BUILD / "gpoold"), "--foreground", "--dir", self.directory, "--pool", pool, *arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, **strict},
                preexec_fn=lambda: PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL),  # gpoold dies with the test
            )
        for _ in range(START_TRIES):
            try:
                self.pool(timeout_ms=START_SLICE_MS).close()
                return
            except (gpool.NotFound, gpool.TimedOut):
                if self.process.poll() is not None:
                    break
        self.process.kill()
        raise AssertionError(f"gpoold does not come up: {self.log.read_text()}")

    def pool(self, pool: Optional[str] = None, timeout_ms: int = 600000, **options: object) -> gpool.Pool:
        return gpool.Pool(pool, directory=self.directory, timeout_ms=timeout_ms, **options)  # type: ignore[arg-type]

    def poolctl(self, *arguments: str) -> str:
        command: List[str] = [str(BUILD / "poolctl"), "--dir", self.directory, "--timeout", "60", *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def evict(self) -> int:
        """Evict all evictable blocks. Return the number of pages."""
        command = [str(BUILD / "poolctl"), "--dir", self.directory, "--timeout", "60", "evict", "64"]
        said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
        found = re.search(r"(\d+) of 64 pages|evicted (\d+)", said)
        assert found, said
        return int(found[1] or found[2])

    def stop(self) -> None:
        self.process.terminate()
        status = self.process.wait(STOP_SECONDS)
        said = self.log.read_text()
        left = os.listdir(self.directory) if os.path.isdir(self.directory) else []
        shutil.rmtree(self.base)
        assert status == 0 and not left, f"gpoold ended with {status} and left {left}: {said}"


class AgentTest(unittest.TestCase):
    """One agent for the tests of a class. After each test, the pool's invariants are checked, and no page may be in
    use."""

    agent: Agent
    arguments: List[str] = []

    @classmethod
    def setUpClass(cls) -> None:
        # Otherwise an agent whose pool is 90 % full evicts what a test unpins, at a time of its own.
        cls.agent = Agent("--set", "eviction.start=100", *cls.arguments)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.agent.stop()

    def setUp(self) -> None:
        self.pool = self.agent.pool()
        self.addCleanup(self.agent.poolctl, "check")
        self.addCleanup(self.pool.close)
