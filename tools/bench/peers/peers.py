#!/usr/bin/env python3
"""Measure gpool and the programs of other projects side by side, on the same workloads; `make bench-peers`.

usage: peers.py [--list] [--runs N] [-o table|json|markdown] [--document] [--from FILE]... [-q] [NAME...]

  NAME         workloads or peers to measure; default: all
  --list       print the workloads, and the peers with the reason if one is not installed
  --runs N     runs of each program; the median is printed (default 5)
  -o FORMAT    table, json (one object per line) or markdown
  --document   write the table into docs/benchmarks.md
  --from FILE  measure nothing; use the output of -o json of an earlier run
  -q           no progress

Every run is a process of its own. The programs of a workload run in turn, so the load of the machine affects all of
them. Those that use a GPU run on the double of NVIDIA's driver (tests/driver). "software" excludes the time in calls of
the double, which does not predict the time on a GPU. Calls are counted instead, and those with a published cost are
modeled (tests/driver/driver.c). Peers are other projects' own programs, in the versions that
tools/bench/peers/peers.txt and tools/build/engines.txt pin, never stand-ins.

On a machine with other load, run it at real-time priority (chrt -r 1).

Exit status: 0, even if peers are not installed; 1: a program failed; 2: usage.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
BUILD = ROOT / "build" / os.environ.get("CONFIG", "release")
PEERS = Path(os.environ.get("PEERS", ROOT / "build/peers"))
ENGINES = Path(os.environ.get("ENGINES", ROOT / "build/engines"))
DOUBLE = BUILD / "tests/driver"
PAGE = ROOT / "docs/benchmarks.md"
PART = re.compile(r"(<!-- bench-peers -->\n).*?(<!-- end -->)", re.S)
# The pool has the size that fits into the descriptors of a process on the double: two for each page.
POOL_MIB, CONTEXT_MIB, PAGE_MIB = 19 << 10, 256, 2
CREATE_US = 193  # a page's creation, as in tests/driver/driver.c
SHARED = "/dev/shm" if os.path.isdir("/dev/shm") else None


class Work(NamedTuple):
    text: str
    ours: str
    peers: tuple[str, ...]


GPU = ("torch", "torch-expandable", "rmm")
HEAP = ("jemalloc", "mimalloc")
WORKS = {
    "steady": Work("free one of 64 allocations of 2 to 128 MiB, and allocate it again", "gpool-cuda", GPU),
    **{
        f"random-{most}": Work(f"10,000 random allocations of up to {text}, at most 8,000 MiB live", "gpool-cuda", GPU)
        for most, text in (("1m", "1 MiB"), ("4m", "4 MiB"), ("64m", "64 MiB"), ("256m", "256 MiB"), ("1g", "1 GiB"))
    },
    "churn": Work(
        "75 GiB of random allocations of up to 256 MiB on a device of 19 GiB, at most 17.1 GiB live", "gpool-cuda", GPU
    ),
    "pages": Work("allocate 512 blocks of 512 KiB and free them, per block", "gpool-host", HEAP),
    "spans": Work("allocate 512 blocks of 4 KiB and free them, per block", "gpool-host", HEAP),
    "mixed": Work("100,000 random allocations of up to 64 KiB, at most 256 MiB live", "gpool-host", HEAP),
    "kv-long": Work(
        "allocate 8,192 KV blocks and free them, per block", "gpool-kv", ("vllm-pool", "vllm-manager", "kvcached")
    ),
    "kv-page": Work(
        "allocate a page of 16 KV blocks and free it", "gpool-kv", ("vllm-pool", "vllm-manager", "kvcached")
    ),
    "kv-serve": Work("serve 100 requests, 64 at a time, per token of the answers", "gpool-kv", ("vllm-manager",)),
}


class Program(NamedTuple):
    """How a subject is started; {work} is replaced."""

    text: str
    command: tuple[str, ...]
    needs: str = ""  # NAME.missing of peers.sh
    variables: dict[str, str] = {}
    device_mib: int = 0  # of the double's device; 0: no GPU
    agent: str = ""  # a key of AGENTS


def preload(library: str) -> dict[str, str]:
    return {"LD_PRELOAD": library}


python = str(ENGINES / "bin/python")
blocks = str(HERE / "blocks.py")
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "KVCACHED_LOG_LEVEL": "ERROR", "TRITON_DISABLE": "1"}
torch = (str(PEERS / "play-torch"), "{work}")
RUNTIME = {"LD_LIBRARY_PATH": str(DOUBLE)}
PROGRAMS = {
    "gpool-cuda": Program(
        "gpool_malloc_async()", (str(BUILD / "peers/play-gpool"), "{work}"), "", RUNTIME, POOL_MIB + 512, "cuda"
    ),
    "gpool-host": Program("blocks and spans of gpool", (str(BUILD / "peers/play-block"), "{work}"), agent="host"),
    "gpool-kv": Program(
        "a KV cache of gpool, from Python",
        (python, blocks, "gpool", "{work}"),
        "vllm",
        {**RUNTIME, "PYTHONPATH": str(ROOT / "client/python")},
        POOL_MIB + 512,
        "cuda",
    ),
    "torch": Program("CUDACachingAllocator", torch, "torch", RUNTIME, 80 << 10),
    "torch-expandable": Program(
        "CUDACachingAllocator with expandable segments",
        torch,
        "torch",
        {**RUNTIME, "PYTORCH_ALLOC_CONF": "expandable_segments:True"},
        80 << 10,
    ),
    "rmm": Program("pool_memory_resource", (str(PEERS / "play-rmm"), "{work}"), "rmm", RUNTIME, 80 << 10),
    "jemalloc": Program(
        "malloc()", (str(BUILD / "peers/play-heap"), "{work}"), "jemalloc", preload("libjemalloc.so.2")
    ),
    "mimalloc": Program(
        "malloc()", (str(BUILD / "peers/play-heap"), "{work}"), "mimalloc", preload("libmimalloc.so.2")
    ),
    "vllm-pool": Program("BlockPool", (python, blocks, "vllm-pool", "{work}"), "vllm", QUIET),
    "vllm-manager": Program("KVCacheManager", (python, blocks, "vllm-manager", "{work}"), "vllm", QUIET),
    "kvcached": Program(
        "KVCacheManager and its extension",
        (python, blocks, "kvcached", "{work}"),
        "kvcached",
        {
            **QUIET,
            **RUNTIME,
            **preload(str(DOUBLE / "libcudart-double.so")),
            "PYTHONPATH": str(PEERS / "kvcached"),
        },
        POOL_MIB + CONTEXT_MIB,
    ),
}
AGENTS = {
    "cuda": ("--pool", f"name=bench,backend=cuda,device=0,size={POOL_MIB}MiB,page_size={PAGE_MIB}MB,reserved=0"),
    "host": (
        *("--pool", "name=bench,backend=host,size=2GiB,page_size=512KB,reserved=0"),
        *("--set", "lease.keep_pages=4096", "--set", "lease.initial_pages=64"),
    ),
}


def missing(name: str) -> str:
    """Return why a program is not installed; "": it is."""
    program = PROGRAMS[name]
    reason = PEERS / f"{program.needs}.missing"
    if program.needs and reason.is_file():
        return reason.read_text().strip()
    if not Path(program.command[0]).exists():
        return f"{program.command[0]} does not exist; run: make bench-peers"
    return ""


class Failed(Exception):
    pass


class Agent:
    """A gpoold, on a machine of the double that its players share."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.variables = {"GPOOL_DIR": str(folder / "run"), "GPU_DOUBLE_DIR": str(folder)}
        environment = {**os.environ, **self.variables}
        if kind == "cuda":
            environment |= {**RUNTIME, "GPU_DOUBLE": f"memory={POOL_MIB + 512}m"}
        with open(folder / "log", "w") as log:
            self.process = subprocess.Popen(
                [str(BUILD / "gpoold"), "--foreground", "--dir", str(folder / "run"), *AGENTS[kind]],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.log = folder / "log"

    def wait(self) -> None:
        while "serving in" not in self.log.read_text():
            if self.process.poll() is not None:
                raise Failed("gpoold does not start: " + self.log.read_text()[-500:])
            time.sleep(0.05)

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


class Runner:
    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.agents: dict[str, Agent] = {}

    def folder(self) -> Path:
        path = tempfile.mkdtemp(prefix="gpool-peers-", dir=SHARED)
        self.stack.callback(shutil.rmtree, path, ignore_errors=True)
        os.chmod(path, 0o711)  # for the front, which is another user if gpoold is root
        return Path(path)

    def agent(self, kind: str) -> Agent:
        if kind not in self.agents:
            self.agents[kind] = agent = Agent(kind, self.folder())
            self.stack.callback(agent.close)
            agent.wait()
        return self.agents[kind]

    def run(self, name: str, work: str) -> dict[str, Any]:
        """Run a program once. Return its results, with `calls`: kind -> number, and `modeled`: their ms."""
        program = PROGRAMS[name]
        with ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix="gpool-peers-", dir=SHARED))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            counts = folder / "counts"
            environment = {**os.environ, "GPU_DOUBLE_DIR": str(folder), **program.variables}
            if program.device_mib:
                # Where memory runs out, all programs have the same amount.
                device = POOL_MIB + CONTEXT_MIB if work == "churn" and not program.agent else program.device_mib
                environment["GPU_DOUBLE"] = f"memory={device}m counts={counts}"
            if program.agent:
                environment |= self.agent(program.agent).variables
            done = subprocess.run(
                [word.format(work=work) for word in program.command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            if done.returncode or not lines:
                said = next((line for line in done.stderr.splitlines() if "what()" in line), done.stderr.strip()[-300:])
                raise Failed(f"{name} {work}: status {done.returncode}: {said[:300]}")
            result = json.loads(lines[-1])
            calls = [line.split() for line in counts.read_text().splitlines()] if counts.exists() else []
        result["calls"] = {call: int(number) for call, number, *_ in calls}
        result["modeled"] = sum(int(us) for _, _, us, *_ in calls) / 1e3
        return result


# Calls that allocate, map, free and order memory; the others query or change contexts.
KINDS = re.compile(r"cu(Mem(?!Get|Host).*|Event(Record|Query)|StreamWait.*|StreamWrite.*)$")


def kinds(result: dict[str, Any]) -> str:
    calls = {name: number for name, number in result["calls"].items() if KINDS.match(name)}
    return (
        ", ".join(f"{name} {number:,}" for name, number in sorted(calls.items(), key=lambda call: -call[1])) or "none"
    )


class Row(NamedTuple):
    work: str
    figure: str
    peer: str
    theirs: float
    ours: float
    calls: str = ""

    def winner(self) -> str:
        if abs(self.theirs - self.ours) <= 0.02 * max(self.theirs, self.ours):
            return "equal"
        more = self.figure.startswith("largest")  # otherwise less is better
        return "gpool" if (self.ours > self.theirs) == more else "peer"

    def ratio(self) -> str:
        return f"{self.theirs / self.ours:.2f}" if self.ours else "-"


def median_of(results: list[dict[str, Any]], read: Any) -> float:
    return statistics.median(read(result) for result in results)


def rows_of(work: str, peer: str, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[Row]:
    name = f"{theirs[0]['version']} {PROGRAMS[peer].text}"
    rows: list[Row] = []

    def add(figure: str, read: Any, calls: str = "") -> None:
        rows.append(Row(work, figure, name, median_of(theirs, read), median_of(ours, read), calls))

    add("software, ns", lambda result: result["ns"])
    if "peak_mib" in theirs[0]:
        add("memory held, MiB", lambda result: result["peak_mib"])
    if theirs[0].get("failed") or ours[0].get("failed"):
        add("failed allocations", lambda result: result["failed"])
    if "largest" in theirs[0]:
        add("largest request, share of the free memory", lambda result: result["largest"])
    if "steady_calls" in theirs[0]:
        add("driver calls for 1,000 pairs", lambda result: result["steady_calls"])
    elif theirs[0]["calls"]:
        add(
            "driver calls",
            lambda result: sum(number for call, number in result["calls"].items() if KINDS.match(call)),
            f"peer: {kinds(theirs[0])}; gpool: {kinds(ours[0])}",
        )
    if theirs[0]["modeled"] and "steady_calls" not in theirs[0]:
        # gpoold creates memory once, when it starts, so the player's calls do not include this time; a peer's calls do.
        creation = ours[0].get("peak_mib", 0) / PAGE_MIB * CREATE_US / 1e3
        rows.append(
            Row(
                work,
                "modeled driver time, ms, with the creation of the memory held",
                name,
                median_of(theirs, lambda result: result["modeled"]),
                median_of(ours, lambda result: result["modeled"]) + creation,
            )
        )
    return rows


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def cells(row: Row) -> list[str]:
    winner = row.winner()
    ahead = f"**peer**: {reason_of(row) or 'not explained'}" if winner == "peer" else winner
    return [row.work, row.peer, row.figure, number(row.theirs), number(row.ours), row.ratio(), ahead, row.calls]


# Why peers are ahead, explained on the page: workloads, figures, and the word that the page explains.
REASONS = (
    (r"random|churn", r"software|driver calls|modeled driver time", "pages"),
    (r"random-[14]m$", r"memory held", "rounding"),
    (r"random", r"memory held", "slack"),
)


def reason_of(row: Row) -> str:
    return next(
        (word for work, figure, word in REASONS if re.match(work, row.work) and re.match(figure, row.figure)), ""
    )


HEAD = ["workload", "peer", "figure", "peer's", "gpool's", "peer / gpool", "ahead", "calls by kind"]


def markdown(rows: list[Row], absent: dict[str, str], source: str) -> str:
    lines = [f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
    lines += [f"| {' | '.join(cells(row))} |" for row in rows]
    lines += ["", *(f"Not measured: {name}: {reason}." for name, reason in absent.items())]
    return "\n".join(lines).rstrip() + f"\n\n{source}\n"


def table(rows: list[Row], absent: dict[str, str], source: str) -> str:
    lines = [HEAD[:-1], *(cells(row)[:-1] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD) - 1)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
    text += [f"calls: {row.work}, {row.peer}: {row.calls}" for row in rows if row.calls]
    text += [f"not measured: {name}: {reason}" for name, reason in absent.items()]
    return "\n".join([*text, source])


def machine() -> str:
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    name = re.sub(r"\s+", " ", model[1]) if model else os.uname().machine
    return f"{os.cpu_count()} CPUs of {name}, Linux {os.uname().release.split('-')[0]}"


def source_of(runs: int, load: float) -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    ).stdout.strip()
    real_time = ", at real-time priority" if os.sched_getscheduler(0) != os.SCHED_OTHER else ""
    return (
        f"Medians of {runs} runs on {machine()}, on {datetime.date.today()}, commit {commit}, "
        f"with a load average of {load:.1f} to {os.getloadavg()[0]:.1f}{real_time}."
    )


def read_back(files: list[str]) -> tuple[list[Row], dict[str, str], str]:
    """Return the rows, the absent programs and the sources of earlier outputs in JSON."""
    rows: list[Row] = []
    absent: dict[str, str] = {}
    sources: dict[str, None] = {}
    for line in (line for file in files for line in Path(file).read_text().splitlines()):
        entry = json.loads(line)
        if "source" in entry:
            sources[entry["source"]] = None
        elif "missing" in entry:
            absent[entry["peer"]] = entry["missing"]
        else:
            rows.append(Row(**{key: entry[key] for key in Row._fields}))
    return rows, absent, " ".join(sources)


def measure(runner: Runner, works: dict[str, list[str]], runs: int, quiet: bool) -> tuple[list[Row], dict[str, str]]:
    rows: list[Row] = []
    absent: dict[str, str] = {}
    for work, peers in works.items():
        results: dict[str, list[dict[str, Any]]] = {}
        names = [WORKS[work].ours, *peers]
        for name in names:
            if reason := missing(name):
                absent[name] = reason
        present = [name for name in names if name not in absent]
        if WORKS[work].ours in absent or len(present) < 2:
            continue
        for run in range(runs):
            for name in list(present):
                if not quiet:
                    print(f"peers: {work}: run {run + 1} of {runs}: {name}", file=sys.stderr, flush=True)
                try:
                    results.setdefault(name, []).append(runner.run(name, work))
                except Failed as failed:
                    if name == WORKS[work].ours:
                        raise
                    absent[f"{name}, {work}"] = str(failed)
                    present.remove(name)
                    results.pop(name, None)
        for name in present[1:]:
            rows += rows_of(work, name, results[present[0]], results[name])
    return rows, absent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads or peers; default: all")
    parser.add_argument("--list", action="store_true", help="print workloads and peers")
    parser.add_argument("--runs", type=int, default=5, help="runs of each program (default 5)")
    parser.add_argument(
        "-o", dest="format", choices=("table", "json", "markdown"), default="table", help="output format"
    )
    parser.add_argument("--document", action="store_true", help="write the table into docs/benchmarks.md")
    parser.add_argument("--from", dest="files", action="append", metavar="FILE", help="use the JSON of an earlier run")
    parser.add_argument("-q", dest="quiet", action="store_true", help="no progress")
    options = parser.parse_args()
    peers = [name for name in PROGRAMS if not name.startswith("gpool")]
    if options.list:
        for work, (text, _, of) in WORKS.items():
            print(f"{work:12} {text}; {', '.join(of)}")
        for name in peers:
            reason = missing(name)
            print(f"{name:16} {PROGRAMS[name].text}{'; not installed: ' + reason if reason else ''}")
        return
    unknown = [name for name in options.names if name not in WORKS and name not in peers]
    if unknown or options.runs < 1:
        parser.error(f"no workload or peer is named '{unknown[0]}'" if unknown else "--runs must be at least 1")
    works = [name for name in options.names if name in WORKS] or list(WORKS)
    chosen = [name for name in options.names if name in peers] or peers
    plan = {work: [peer for peer in WORKS[work].peers if peer in chosen] for work in works}
    if options.files:
        rows, absent, source = read_back(options.files)
    else:
        load = os.getloadavg()[0]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # end the agents and remove the folders
        with ExitStack() as stack:
            try:
                runner = Runner(stack)
                rows, absent = measure(
                    runner, {work: of for work, of in plan.items() if of}, options.runs, options.quiet
                )
            except Failed as failed:
                sys.exit(f"peers.py: {failed}")
        source = source_of(options.runs, load)
    if options.format == "json":
        for row in rows:
            print(json.dumps({**row._asdict(), "ahead": row.winner()}))
        for name, reason in absent.items():
            print(json.dumps({"peer": name, "missing": reason}))
        print(json.dumps({"source": source}))
    else:
        print((markdown if options.format == "markdown" else table)(rows, absent, source))
    if options.document:
        part = markdown(rows, absent, source)
        PAGE.write_text(PART.sub(lambda match: match[1] + part + match[2], PAGE.read_text()))


main()
