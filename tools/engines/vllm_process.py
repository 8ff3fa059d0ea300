"""Start vLLM, stock or on gpool, in the environment of tools/build/engines.sh; each start has a time limit."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import itertools
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = Path(os.environ.get("GPOOL_BUILD", ROOT / "build"))
SECONDS = int(os.environ.get("ENGINE_SECONDS", "600"))
"""longest time for a start, and for an answer"""
DUMP_SECONDS = 3
PRCTL, PR_SET_PDEATHSIG = ctypes.CDLL(None).prctl, 1
RUNNING: Set["Processes"] = set()
"""those that were started and not stopped"""
ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_CI_ENV": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
OPTIONS: Dict[str, Any] = {
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 1024,
    "max_num_seqs": 8,
    "block_size": 32,
    "kv_cache_memory_bytes": 64 << 20,
    "enable_prefix_caching": True,
    "prefix_caching_hash_algo": "sha256_cbor",
    "seed": 0,
}
BLOCK_BYTES = 64 << 10
"""of the model of make_model.py, in float32 with blocks of 32 tokens: 8 in a page of 512 KiB"""


PORTS = itertools.count(20000)  # not those that the kernel chooses for connections
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def loopback() -> Tuple[str, int]:
    """Return an address and a port of 127.0.0.0/8 that no other process of this machine chooses."""
    pid = os.getpid()
    return f"127.{64 + (pid >> 16)}.{pid >> 8 & 255}.{pid & 255}", next(PORTS)


def tokens(seed: int, count: int) -> List[int]:
    """Return random tokens (seeded)."""
    chosen = random.Random(seed)
    return [chosen.randrange(3, 512) for _ in range(count)]


def model(folder: Path, *arguments: str) -> Path:
    """Write the model, if that was not done before. Other programs may do the same at the same time."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        try:
            command = [sys.executable, str(HERE / "make_model.py"), *arguments, str(draft)]
            subprocess.run(command, check=True, timeout=SECONDS)
            draft.rename(folder)
        except OSError:
            if not folder.is_dir():  # another program has not written it either
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return folder


def connector(directory: str, extra: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
    """Return the configuration of the connector."""
    return {
        "kv_connector": "GpoolConnector",
        "kv_connector_module_path": "gpool.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"directory": directory, **(extra or {})},
    }


@functools.lru_cache(maxsize=None)
def temporary_folder() -> str:
    """Make a folder for the files that vLLM's processes leave behind. It is removed when this process ends."""
    maker, folder = os.getpid(), tempfile.mkdtemp(prefix="gpool-vllm-")
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == maker else None)
    os.chmod(folder, 0o711)  # the front of a gpoold with a folder in it runs as another user
    return folder


def environment() -> Dict[str, str]:
    """Return the environment of vLLM's processes, which import the package and the stack dumps: startup/."""
    paths = [str(HERE / "startup"), str(ROOT / "client" / "python"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "GPOOL_LIBRARY": str(BUILD / "libgpool_lora.so"),
        **ENVIRONMENT,
        "TMPDIR": temporary_folder(),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


class Processes:
    """Processes of vLLM, which are one session of the kernel, with a log."""

    def __init__(self) -> None:
        self.log = Path(tempfile.mkstemp(prefix="gpool-engine-")[1])
        try:
            self.process = self._start()
        except BaseException:  # including those that signal handlers raise
            self.log.unlink()
            raise
        RUNNING.add(self)

    def _start(self) -> Any:
        """Start the first process, which leads the session: a Popen, or a Process of multiprocessing."""
        raise NotImplementedError

    def _wait(self) -> None:
        """Wait for the end of the first process."""
        raise NotImplementedError

    def pids(self) -> List[int]:
        """Return the processes of the engine."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if os.getsid(int(entry.name)) == self.process.pid:
                        found.append(int(entry.name))
                except OSError:
                    pass
        return found

    def cpu_seconds(self) -> float:
        """Return the CPU time of all processes."""
        ticks = 0
        for pid in self.pids():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
            except OSError:
                pass
        return ticks / os.sysconf("SC_CLK_TCK")

    def stacks(self) -> str:
        """Make all processes print the stacks of all threads, and return the log."""
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGUSR1)
            except OSError:
                pass
        time.sleep(DUMP_SECONDS)  # a process that hangs reports no end of its dump
        return self.text()[-30000:]

    def text(self) -> str:
        """Return the log of the engine."""
        return self.log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the engine."""
        for pid in self.pids():
            try:
                os.kill(pid, number)
            except OSError:
                pass

    def kill(self) -> None:
        """Kill all processes of the engine at once, and wait for their end."""
        self.process.kill()  # it might not lead its session yet
        while running := self._running():
            for descriptor in running:
                with contextlib.suppress(ProcessLookupError):  # it has ended in the meantime
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            for descriptor in running:
                select.select([descriptor], [], [])
                os.close(descriptor)
        self._wait()

    def _running(self) -> List[int]:
        """Return a descriptor for each process that has not ended."""
        found = []
        for pid in self.pids():
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            if select.select([descriptor], [], [], 0)[0]:
                os.close(descriptor)  # a zombie
            else:
                found.append(descriptor)
        return found

    def stop(self) -> None:
        """Kill the engine and delete its log; a second call does nothing."""
        self.kill()
        RUNNING.discard(self)
        self.log.unlink(missing_ok=True)


class Server(Processes):
    """`vllm serve` on a port of the loopback."""

    def __init__(
        self, path: Path, directory: Optional[str], extra: Optional[Dict[str, Any]] = None, **more: Any
    ) -> None:
        """Start a server.

        directory: the agent's runtime directory; None: stock vLLM.
        extra: kv_connector_extra_config. more: options of the command.
        """
        host, port = loopback()
        self.address = f"http://{host}:{port}"
        options = {**OPTIONS, "served_model_name": "m", **more}
        if directory is not None:
            options["kv_transfer_config"] = json.dumps(connector(directory, extra))
        del options["skip_tokenizer_init"]
        self._arguments = ["serve", str(path), "--host", host, "--port", str(port)]
        for name, value in options.items():
            self._arguments += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
        super().__init__()

    def _start(self) -> Any:
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.cli.main", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                start_new_session=True,
                preexec_fn=lambda: PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL),  # vLLM's processes end with this one
            )

    def _wait(self) -> None:
        self.process.wait(60)

    def ended(self) -> bool:
        """Return whether the server has ended."""
        return bool(self.process.poll() is not None)

    def get(self, path: str, body: Optional[Dict[str, Any]] = None) -> str:
        """Return the answer to a GET, or to a POST with `body`."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"})
        try:
            with OPENER.open(asked, timeout=SECONDS) as answer:
                return str(answer.read().decode())
        except TimeoutError:
            raise AssertionError(f"no answer within {SECONDS} s; stacks:\n{self.stacks()}") from None

    def ready(self) -> "Server":
        """Wait until the server answers."""
        until = time.monotonic() + SECONDS
        ended = os.pidfd_open(self.process.pid)
        try:
            while not select.select([ended], [], [], 0.2)[0]:
                try:
                    self.get("/health")
                    return self
                except OSError:  # it does not listen yet
                    if time.monotonic() > until:
                        raise AssertionError(f"no server within {SECONDS} s; stacks:\n{self.stacks()}") from None
        finally:
            os.close(ended)
        raise AssertionError(f"the server has ended: {self.text()[-6000:]}")

    def complete(self, prompts: List[List[int]], count: int) -> List[List[int]]:
        """Return the tokens that continue prompts."""
        body = {"model": "m", "prompt": prompts, "max_tokens": count, "temperature": 0}
        said = json.loads(self.get("/v1/completions", {**body, "ignore_eos": True, "return_token_ids": True}))
        return [choice["token_ids"] for choice in sorted(said["choices"], key=lambda choice: choice["index"])]
