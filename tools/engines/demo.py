#!/usr/bin/env python3
"""demo.py - two models, each served by `vllm serve`, share one pool; `make demo-engines` runs it in build/engines.

usage: demo.py [--seconds N] [--rate X] [--pool-pages N] [--limit N] [--report FILE] [-o table|json]

The requests of two recorded traces arrive at the two servers, first with one pool for both, then with a fixed half of
its memory for each. In the second quarter of the time no requests arrive for the first server, in the third quarter
none for the second one; the other server then gets its requests of both quarters. Before its idle time, the first
server is killed and started again. The models are small, with random weights.

A page with the memory of both over time, times to the first token, preemptions and hit rates is written. Exit status:
0; 1 if a server has failed, if answers of the two runs differ, or at the limit; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import csv
import http.client
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import page
from vllm_process import BUILD, OPENER, PR_SET_PDEATHSIG, PRCTL, ROOT, RUNNING, SECONDS, Server, model, tokens

NAMES = ("code", "conv")
TRACES = ROOT / "tools" / "demo" / "traces"
TRACE_SECONDS = 90
PAGE_BYTES = 512 << 10
LONGEST = 1024
PART = 4
"""the recorded numbers of tokens of contexts and answers are divided by this number"""
RECENT = 8
"""every fourth prompt begins with one of the last RECENT prompts"""
PROGRESS_SECONDS, SAMPLE_SECONDS = 5, 1
CONSISTENT_TRIES = 5
"""maximum number of times that the pages are read until no page is counted twice"""
OPTIONS: Dict[str, Any] = {"max_num_seqs": 16, "max_model_len": LONGEST, "enable_prompt_tokens_details": True}


class Failed(Exception):
    """The demonstration cannot continue."""


class Request(NamedTuple):
    """A request of a trace."""

    number: int
    arrival_s: float
    prompt: List[int]
    answer: int


class Outcome(NamedTuple):
    """The answer to a request."""

    ttft_s: float
    tokens: List[int]
    cached: int
    delayed: bool
    """its server was killed or started meanwhile"""


def log(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)


def shifted(engine: int, at: float, seconds: float) -> float:
    """Return the arrival time with idle times: see the usage."""
    quarter = seconds / 4
    if not quarter <= at < 3 * quarter:
        return at
    return (2 - engine) * quarter + (at - quarter) / 2


def requests(engine: int, seconds: float, rate: float) -> List[Request]:
    """Return the requests for a server. rate: of the requests in the trace, this part."""
    first = min(_rows(name)[0][0] for name in NAMES)
    chosen, made = random.Random(engine), []
    for number, (at, context, answer) in enumerate(_rows(NAMES[engine])):
        arrival = (at - first) * seconds / TRACE_SECONDS
        if arrival >= seconds or int(number * rate) == int((number + 1) * rate):
            continue
        length = max(1, min(context // PART, LONGEST - max(1, answer // PART) - 1))
        prefix = made[-chosen.randrange(1, RECENT + 1)].prompt if len(made) % 4 == 3 and len(made) >= RECENT else []
        prompt = (prefix + tokens(1000003 * engine + number, length))[:length]
        made.append(Request(number, shifted(engine, arrival, seconds), prompt, max(1, answer // PART)))
    return made


def _rows(name: str) -> List[Any]:
    with (TRACES / f"azure_{name}.csv").open() as file:
        return [
            (
                datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp(),
                int(row["ContextTokens"]),
                int(row["GeneratedTokens"]),
            )
            for row in csv.DictReader(file)
        ]


class Daemon:
    """A gpoold with one pool."""

    def __init__(self, folder: Path, pages: int) -> None:
        self.directory = str(folder / "run")
        pool = f"name=p0,backend=host,size={pages * PAGE_BYTES >> 10}KiB,page_size={PAGE_BYTES >> 10}KB,reserved=0"
        command = [str(BUILD / "gpoold"), "--foreground", "--dir", self.directory, "--pool", pool]
        self.log = folder / "log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                start_new_session=True,  # Ctrl-C is for this program
                preexec_fn=lambda: PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        until = time.monotonic() + SECONDS
        while self.poolctl("status") is None:
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise Failed(f"gpoold does not start: {self.log.read_text()}")

    def poolctl(self, *verb: str) -> Optional[Dict[str, Any]]:
        """Return the answer of poolctl; None: no agent answers, or the check found an error."""
        command = [str(BUILD / "poolctl"), "--dir", self.directory, "--timeout", "60", "--output", "json", *verb]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return dict(json.loads(done.stdout)) if done.returncode == 0 else None

    def stop(self) -> None:
        """End the daemon."""
        self.process.terminate()
        self.process.wait(60)


def stop_servers() -> None:
    """End all servers."""
    for each in list(RUNNING):
        each.stop()


class Engine:
    """A model and its server, which may be killed and started again."""

    def __init__(self, number: int, directory: Optional[str], kv_bytes: int) -> None:
        self.number, self.name = number, NAMES[number]
        self._model = model(BUILD / f"engines-model-{self.name}", "--seed", str(number + 1))
        self._directory, self._kv_bytes = directory, kv_bytes
        self.up = threading.Event()
        self.preemptions = 0.0
        self.killed_at = self.restarted_at = 0.0
        self._start()

    def _start(self) -> None:
        extra = {"name": self.name}
        self.server = Server(self._model, self._directory, extra, kv_cache_memory_bytes=self._kv_bytes, **OPTIONS)
        self._started_at = time.monotonic()

    def ready(self) -> bool:
        """Return whether the server answers. Raises Failed: it has ended, or does not start in time."""
        if self.up.is_set():
            return True
        if self.server.ended():
            raise Failed(f"the server of '{self.name}' has ended: {self.server.text()[-6000:]}")
        try:
            self.server.get("/health")
        except OSError:  # it does not listen yet
            if time.monotonic() > self._started_at + SECONDS:
                raise Failed(f"no server of '{self.name}' within {SECONDS} s: {self.server.stacks()}") from None
            return False
        self.restarted_at = time.monotonic()
        self.up.set()
        return True

    def kill(self) -> None:
        """Kill the server, and begin to start it again."""
        self.preemptions += self.metric("vllm:num_preemptions_total")
        self.up.clear()
        self.killed_at = time.monotonic()
        self.server.stop()
        self._start()

    @property
    def restarted(self) -> bool:
        """Return whether the server was killed and answers again."""
        return self.killed_at > 0 and self.up.is_set()

    def metric(self, name: str) -> float:
        """Return the value of a metric of the server; 0: there is none, or the server does not answer now."""
        try:
            text = self.server.get("/metrics") if self.up.is_set() else ""
        except (OSError, http.client.HTTPException):
            return 0
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    def ask(self, request: Request) -> Outcome:
        """Return the answer to a request, which is sent again if the server was killed."""
        begin, delayed = time.monotonic(), not self.up.is_set()
        while True:
            self.up.wait()
            server = self.server
            try:
                return self._stream(server, request, begin, delayed)
            except (OSError, http.client.HTTPException, ValueError) as error:  # of an incomplete line
                if self.up.is_set() and server is self.server:
                    raise Failed(f"the server of '{self.name}' has failed: {error!r}") from error
                delayed = True

    def _stream(self, server: Server, request: Request, begin: float, delayed: bool) -> Outcome:
        body = {
            "model": "m",
            "prompt": request.prompt,
            "max_tokens": request.answer,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        asked = urllib.request.Request(
            server.address + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        first, answer, cached = 0.0, [], 0
        with OPENER.open(asked, timeout=SECONDS) as lines:
            for line in lines:
                text = line.decode().strip().removeprefix("data: ")
                if text == "[DONE]":
                    return Outcome(first, answer, cached, delayed)
                said = json.loads(text) if text else {}
                for choice in said.get("choices", []):
                    first = first or time.monotonic() - begin
                    answer += choice.get("token_ids") or []
                cached = ((said.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens") or cached
        raise ConnectionError("the answer is not complete")


class Run:
    """Both traces, on one pool (shared) or on fixed halves."""

    def __init__(self, shared: bool, arguments: argparse.Namespace) -> None:
        self.shared, self.arguments = shared, arguments
        self.name = "shared pool" if shared else "two halves"
        self.requests = [requests(engine, arguments.seconds, arguments.rate) for engine in range(2)]
        self.outcomes: List[Dict[int, Outcome]] = [{}, {}]
        self.samples: List[Dict[str, Any]] = []
        self.failure: Optional[Exception] = None
        self.seconds = 0.0
        self._begin = 0.0
        self._pids: Dict[int, int] = {}  # the engines of processes, including those that were killed

    def go(self) -> "Run":
        """Start the servers, send all requests, and end the servers."""
        size = self.arguments.pool_pages * PAGE_BYTES
        with tempfile.TemporaryDirectory(prefix="gpool-demo-") as folder:
            Path(folder).chmod(0o755)  # gpoold's front runs as another user and must be able to enter
            daemon = None
            try:
                if self.shared:
                    daemon = Daemon(Path(folder), self.arguments.pool_pages)
                directory, kv_bytes = (daemon.directory, size) if daemon else (None, size // 2)
                self._serve([Engine(number, directory, kv_bytes) for number in range(2)], daemon)
                if daemon and daemon.poolctl("check") is None:
                    raise Failed("poolctl check has found an error")
            finally:
                stop_servers()
                if daemon:
                    daemon.stop()
        return self

    def _serve(self, engines: List[Engine], daemon: Optional[Daemon]) -> None:
        log(f"{self.name}: starting two servers")
        while not all(engine.ready() for engine in engines):
            time.sleep(0.2)
        self._begin = time.monotonic()
        threads = [
            threading.Thread(target=self._one, args=(engine, request), daemon=True)
            for engine in engines
            for request in self.requests[engine.number]
        ]
        for thread in threads:
            thread.start()
        said = 0.0
        while self.failure is None and (any(each.is_alive() for each in threads) or not engines[0].restarted):
            now = self._sample(engines, daemon)
            if now["time_s"] >= said:
                said = now["time_s"] + PROGRESS_SECONDS
                memory = ", ".join(f"{each.name} {now['needed'][each.number]:.0f}" for each in engines)
                done = f"{sum(map(len, self.outcomes))} of {len(threads)} requests answered"
                log(f"{self.name}: {now['time_s']:.0f} s, {done}; pages needed: {memory}")
            if not engines[0].killed_at and now["time_s"] >= 0.9 * self.arguments.seconds / 4:
                log(f"{self.name}: killing the server of '{engines[0].name}', and starting it again")
                engines[0].kill()
            engines[0].ready()
            time.sleep(SAMPLE_SECONDS)
        if self.failure is not None:
            raise self.failure
        self.seconds = time.monotonic() - self._begin
        self.killed_s = engines[0].killed_at - self._begin
        self.restarted_s = engines[0].restarted_at - self._begin
        self.preemptions = sum(each.preemptions + each.metric("vllm:num_preemptions_total") for each in engines)

    def _one(self, engine: Engine, request: Request) -> None:
        time.sleep(max(0, self._begin + request.arrival_s - time.monotonic()))
        try:
            self.outcomes[engine.number][request.number] = engine.ask(request)
        except Exception as error:
            self.failure = error

    def _sample(self, engines: List[Engine], daemon: Optional[Daemon]) -> Dict[str, Any]:
        """Append the pages of both engines, by state, and the number of unanswered requests, and return them."""
        now: Dict[str, Any] = {kind: [0.0, 0.0] for kind in page.BANDS}
        now["time_s"] = time.monotonic() - self._begin
        arrived = sum(request.arrival_s <= now["time_s"] for each in self.requests for request in each)
        now["unanswered"] = max(0, arrived - sum(map(len, self.outcomes)))
        if daemon:
            now.update(self._pages(daemon))
        else:
            for served in engines:
                share = served.metric("vllm:kv_cache_usage_perc")
                now["needed"][served.number] = share * self.arguments.pool_pages / 2
        self.samples.append(now)
        return now

    def _pages(self, daemon: Daemon) -> Dict[str, List[float]]:
        """Return the pages of both engines, by state."""
        for _ in range(CONSISTENT_TRIES):
            found: Dict[str, List[float]] = {kind: [0.0, 0.0] for kind in page.BANDS}
            for client in (daemon.poolctl("clients") or {"clients": []})["clients"]:
                if client["name"] in NAMES:
                    engine = self._pids[client["pid"]] = NAMES.index(client["name"])
                    for kind in page.BANDS:
                        found[kind][engine] += client[f"{kind}_pages"]
            for each in (daemon.poolctl("objects") or {"objects": []})["objects"]:  # published prefixes
                found["needed" if each["pins"] else "offered"][self._pids.get(each["pid"], 0)] += each["pages"]
            if sum(map(sum, found.values())) <= self.arguments.pool_pages:
                break  # otherwise a page was published between the two requests, and was counted twice
        return found

    def delayed(self) -> Set[Tuple[int, int]]:
        """Return the requests that the kill delayed, by engine and number."""
        return {
            (engine, number)
            for engine, outcomes in enumerate(self.outcomes)
            for number, outcome in outcomes.items()
            if outcome.delayed
        }

    def figures(self, omitted: Set[Tuple[int, int]]) -> Dict[str, Any]:
        """Return the results as numbers. omitted: requests that the times to the first token do not include, the same
        for both runs.
        """
        outcomes = [outcome for each in self.outcomes for outcome in each.values()]
        times = sorted(
            outcome.ttft_s
            for engine, each in enumerate(self.outcomes)
            for number, outcome in each.items()
            if (engine, number) not in omitted
        )
        asked = sum(len(request.prompt) for each in self.requests for request in each)
        delayed = [
            (len(request.prompt), self.outcomes[0][request.number].cached)
            for request in self.requests[0]
            if self.outcomes[0][request.number].delayed
        ]
        return {
            "seconds": self.seconds,
            "requests": len(outcomes),
            "ttft_mean_s": statistics.mean(times),
            "ttft_p50_s": times[len(times) // 2],
            "ttft_p99_s": times[int(len(times) * 0.99)],
            "timed_requests": len(times),
            "delayed_requests": len(delayed),
            "restart_s": self.restarted_s - self.killed_s,
            "preemptions": self.preemptions,
            "hit_rate": sum(outcome.cached for outcome in outcomes) / asked,
            "hit_rate_after_restart": sum(cached for _, cached in delayed) / max(1, sum(size for size, _ in delayed)),
            "needed_pages": [statistics.mean(each["needed"][engine] for each in self.samples) for engine in range(2)],
        }


def parse() -> argparse.Namespace:
    """Return the arguments."""
    description = (__doc__ or "").partition("\n\n")[2]
    parser = argparse.ArgumentParser(
        description=description.partition("\n\n")[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    number = {"type": float, "metavar": "N"}
    parser.add_argument("--seconds", default=90.0, help="time in which the requests arrive (90)", **number)
    parser.add_argument("--rate", default=0.5, help="part of the traces' requests, 0.05 to 1 (0.5)", **number)
    parser.add_argument("--pool-pages", default=32, type=int, metavar="N", help="pages of 512 KiB in the pool (32)")
    parser.add_argument("--limit", default=1200, type=int, metavar="N", help="longest time for all, in seconds (1200)")
    parser.add_argument("--report", default=str(BUILD / "demo-engines.html"), metavar="FILE", help="the page to write")
    parser.add_argument("-o", "--output", default="table", choices=("table", "json"))
    arguments = parser.parse_args()
    least = 2 * (LONGEST // 32 * 64 * 1024 // PAGE_BYTES + 1)
    if not 0.05 <= arguments.rate <= 1:
        parser.error(f"--rate {arguments.rate:g} must be from 0.05 to 1")
    if arguments.pool_pages < least:
        parser.error(f"--pool-pages {arguments.pool_pages} must be at least {least}: a half must hold one long request")
    if not 8 <= arguments.seconds <= 3600:
        parser.error(f"--seconds {arguments.seconds:g} must be from 8 to 3600")
    if arguments.limit < 1:
        parser.error(f"--limit {arguments.limit} must be at least 1")
    return arguments


def too_late(limit: int) -> None:
    """End the demonstration at the limit."""
    raise Failed(f"not done within {limit} s; --limit sets the limit")


def ended(*_: object) -> None:
    """End the demonstration after SIGTERM as after Ctrl-C."""
    raise KeyboardInterrupt


def main() -> int:
    arguments = parse()
    signal.signal(signal.SIGALRM, lambda *_: too_late(arguments.limit))
    signal.signal(signal.SIGTERM, ended)
    signal.alarm(arguments.limit)
    try:
        runs = [Run(shared, arguments).go() for shared in (True, False)]
    except KeyboardInterrupt:
        return 130
    except (Failed, AssertionError) as failed:
        log(f"demo.py: {failed}")
        return 1
    finally:
        signal.alarm(0)
        stop_servers()  # if a signal has ended that before
    differing = sum(
        runs[0].outcomes[engine][number].tokens != outcome.tokens
        for engine in range(2)
        for number, outcome in runs[1].outcomes[engine].items()
    )
    frame = {
        "command": " ".join(["tools/engines/demo.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "machine": f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}",
        "names": NAMES,
        "pages": arguments.pool_pages,
        "page_bytes": PAGE_BYTES,
        "differing": differing,
        "part": PART,
        "seconds": arguments.seconds,
    }
    delayed = runs[0].delayed() | runs[1].delayed()
    figures = [run.figures(delayed) for run in runs]
    page.write(Path(arguments.report), frame, runs, figures)
    if arguments.output == "json":
        print(json.dumps({**frame, "report": arguments.report, "shared": figures[0], "halves": figures[1]}, indent=1))
    else:
        for row in page.rows(figures):
            print(f"  {row[0]:<60} {row[1]:>14} {row[2]:>14}")
        print(f"{differing} answers differ between the runs; report: {arguments.report}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
