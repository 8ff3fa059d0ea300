#!/usr/bin/env python3
"""Measure how the cost of each operation grows with pages, GPUs, sessions, threads, objects and adapters, and compare
it with its order.

usage: scaling.py BUILD [--points N] [--runs N] [--json FILE] [--document] [DIMENSION...]

BUILD is the folder of the programs. A DIMENSION is pages, gpus, sessions, threads, objects or adapters; the default is
all. Every point has a gpoold of its own, on the back end host with pages of 512 KiB that are never written. A figure is
the median of --runs samples. The order is the simplest of constant, log, linear, n log n and quadratic that fits the
points; a figure whose order is worse than expected is marked with `!`, and the exit status is 1. Threads are measured
by `gpool-bench threads`, because the interpreter runs one at a time; their order is computed from the points with at
least one thread for each processor.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import json
import math
import os
import platform
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Set, Tuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = 512 << 10
ATTACH_MS = 60000
PRCTL, PR_SET_PDEATHSIG = ctypes.CDLL(None).prctl, 1

# ---- the order of growth ----

ORDERS: Dict[str, Callable[[float], float]] = {
    "constant": lambda n: 0.0,
    "log": lambda n: math.log2(n + 1),
    "linear": lambda n: n,
    "n log n": lambda n: n * math.log2(n + 1),
    "quadratic": lambda n: n * n,
}
# chosen: the simplest order is taken whose relative error is at most this, or at most 1.2 times the least error.
NOISE = 0.25


def error_of(points: List[Tuple[int, float]], order: str) -> float:
    """Fit a + b * f(n), a and b not negative, by least squares of relative errors; return their root mean square."""
    f = ORDERS[order]
    rows = [(1 / t, f(n) / t) for n, t in points]
    xx, xy, yy = (
        sum(a * b for a, b in pairs)
        for pairs in ([(r[0], r[0]) for r in rows], [(r[0], r[1]) for r in rows], [(r[1], r[1]) for r in rows])
    )
    x, y = sum(r[0] for r in rows), sum(r[1] for r in rows)
    det = xx * yy - xy * xy
    fits = [(x / xx, 0.0)]
    if yy:
        fits.append((0.0, y / yy))
    if det > 1e-12 * xx * yy:
        fits.append(((x * yy - y * xy) / det, (y * xx - x * xy) / det))
    return min(
        math.sqrt(sum((a * r[0] + b * r[1] - 1) ** 2 for r in rows) / len(rows)) for a, b in fits if a >= 0 and b >= 0
    )


def order_of(points: List[Tuple[int, float]]) -> str:
    errors = {order: error_of(points, order) for order in ORDERS}
    enough = max(NOISE, 1.2 * min(errors.values()))
    return next(order for order in ORDERS if errors[order] <= enough)


def growth_of(dimension: str, points: List[Tuple[int, float]]) -> str:
    """The time of threads falls, or grows with the processors that share a cache line, until each has a thread."""
    busy = len(os.sched_getaffinity(0)) if dimension == "threads" else 0
    return order_of([point for point in points if point[0] >= busy] or points)


# ---- an agent ----


class Agent:
    """A gpoold with one pool, which serves when the constructor returns."""

    adapters: "gpool.Adapters"  # of the points of adapters
    running: Set[Agent] = set()

    def __init__(self, build: Path, pages: int, *settings: str, pool: str = "", gpus: int = 1) -> None:
        Agent.running.add(self)
        self.build, self.base = build, Path(tempfile.mkdtemp(prefix="gpool-scaling-"))
        self.base.chmod(0o755)
        self.directory = str(self.base / "run")
        size = f"size={pages * PAGE // 1024}KiB,page_size=512KB,reserved=0{pool}"
        pools = [word for i in range(gpus) for word in ("--pool", f"name=p{i},backend=host,device={i},{size}")]
        sets = [word for setting in settings for word in ("--set", setting)]
        with (self.base / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [str(build / "gpoold"), "--foreground", "--dir", self.directory, *pools, *sets],
                stdout=log,
                stderr=log,
                env={**os.environ, "GPOOL_HOST_MEMORY": str(pages * PAGE), "GPOOL_HOST_DEVICES": str(gpus)},
                preexec_fn=lambda: PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        self.pool().close()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.base)
        Agent.running.discard(self)

    def pool(self, **options: object) -> "gpool.Pool":
        return gpool.Pool(directory=self.directory, timeout_ms=ATTACH_MS, **options)  # type: ignore[arg-type]

    def program(self, name: str, *arguments: str) -> str:
        command = [str(self.build / name), "--dir", self.directory, *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def decider(self) -> int:
        """Return the process id of the agent's process that decides, which the keeper restarts."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return next(
            int(child) for child in children if Path(f"/proc/{child}/comm").read_text().strip() == "gpoold-agent"
        )


def timed(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return milliseconds. Work that waits for no other thread is measured by thread_time(), which excludes other load
    of the machine."""
    begin = clock()
    work()
    return (clock() - begin) * 1000


# ---- figures of a running agent ----


def attach(agent: Agent) -> float:
    made: List[gpool.Pool] = []
    took = timed(lambda: made.append(agent.pool()))
    made[0].close()
    return took


def refill(agent: Agent) -> float:
    """The first allocation of a new session: a request to the agent, and the mapping."""
    with agent.pool() as pool:
        return timed(lambda: pool.alloc(1).free())


def restart(agent: Agent) -> float:
    """From SIGKILL of the agent until it has answered a request."""
    with agent.pool() as pool:
        before = agent.decider()

        def replace() -> None:
            os.kill(before, signal.SIGKILL)
            made = pool.create_object("scaling/restart")
            made.alloc(1)
            made.publish()
            made.close()

        took = timed(replace)
        pool.delete_object("scaling/restart")
        return took


def status(agent: Agent) -> float:
    return timed(lambda: agent.program("poolctl", "status"))


def scrape(agent: Agent) -> float:
    return timed(lambda: agent.program("gpool-exporter", "--once"))


def evict(agent: Agent) -> float:
    """Evict 16 pages of a session that has half of the pool in unpinned blocks."""
    with agent.pool() as pool:
        share = max(1, pool.page_count // 32)
        for block in [pool.alloc(share) for _ in range(16)]:
            block.unpin()
        return timed(lambda: agent.program("poolctl", "evict", "16"))


def spawn(program: str, *arguments: str) -> subprocess.Popen:
    """Start a Python program, and wait until it prints a line. It ends when its standard input is closed."""
    child = subprocess.Popen([sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout and child.stdout.readline(), "a process has failed"
    return child


def reap(child: subprocess.Popen) -> None:
    assert child.stdin and child.stdout
    child.stdin.close()
    child.stdout.close()
    child.wait()


VICTIM = """
import sys, gpool
pool = gpool.Pool(directory=sys.argv[1], timeout_ms=60000)
held = [pool.alloc(int(sys.argv[2])) for _ in range(8)]
print("ready", flush=True)
sys.stdin.read()
"""


def death(agent: Agent) -> float:
    """From SIGKILL of a process with half of the pool until another process can allocate most of the pool."""
    with agent.pool() as pool:
        share = max(1, pool.page_count // 16)
        victim = spawn(VICTIM, agent.directory, str(share))

        def free_all() -> None:
            victim.kill()
            victim.wait()
            pool.alloc(share * 12, timeout_ms=ATTACH_MS).free()

        took = timed(free_all)
        reap(victim)
        return took


def publish(agent: Agent) -> float:
    with agent.pool() as pool:
        made = pool.create_object("scaling/one")
        made.alloc(1)
        took = timed(made.publish)
        made.close()
        pool.delete_object("scaling/one")
        return took


def look_up(agent: Agent) -> float:
    """1,000 look-ups of a name, the first one that was published."""
    with agent.pool() as pool:
        names = ["scaling/0"] * 1000
        return timed(lambda: pool.find_objects(names))


# ---- adapters ----

PLAIN = str(ROOT / "tests" / "fixtures" / "adapters" / "plain")


def register(agent: Agent) -> float:
    made: List[gpool.Adapter] = []
    took = timed(lambda: made.append(agent.adapters.register("another", PLAIN)), time.thread_time)
    made[0].unregister()
    return took


def find(agent: Agent) -> float:
    """1,000 look-ups of the adapter that was registered first."""
    return timed(lambda: [agent.adapters.find("adapter/0") for _ in range(1000)], time.thread_time)


def acquire(agent: Agent) -> float:
    """1,000 acquisitions of a resident adapter."""
    adapter = agent.adapters.find("adapter/0")
    adapter.acquire().release()
    return timed(lambda: [adapter.acquire().release() for _ in range(1000)], time.thread_time)


def load(agent: Agent) -> float:
    """Acquire an adapter that is not in the pool, from its files."""
    adapter = agent.adapters.find("adapter/0")
    adapter.acquire().release()
    adapter.unload()
    return timed(lambda: adapter.acquire().release())


def adapter_stats(agent: Agent) -> float:
    return timed(agent.adapters.stats, time.thread_time)


Figure = Callable[[Agent], float]
Table = Dict[str, Tuple[Figure, str]]  # the figure, and its expected order


def pages_points(build: Path, most: int) -> Iterator[Tuple[int, Agent, Callable[[], None]]]:
    for exponent in range(6, 23, 2)[:most]:
        yield 2**exponent, Agent(build, 2**exponent), lambda: None


GPU_PAGES = 98304  # 192 GiB in pages of 2 MiB


def gpus_points(build: Path, most: int) -> Iterator[Tuple[int, Agent, Callable[[], None]]]:
    """Half of each pool is in blocks of a session."""
    for count in [1, 2, 4, 8][:most]:
        agent = Agent(build, GPU_PAGES, gpus=count)
        pools = [agent.pool(pool=f"p{i}") for i in range(count)]
        for pool in pools:
            for _ in range(16):
                pool.alloc(GPU_PAGES // 32)

        def end(pools: List[gpool.Pool] = pools) -> None:
            for pool in pools:
                pool.close()

        yield count, agent, end


CREW = """
import sys, gpool
pools = [gpool.Pool(directory=sys.argv[1], timeout_ms=60000) for _ in range(int(sys.argv[2]))]
held = [pool.alloc(8) for pool in pools]
print("ready", flush=True)
sys.stdin.read()
"""
CREW_SESSIONS = 14  # a process may have 16


def sessions_points(build: Path, most: int) -> Iterator[Tuple[int, Agent, Callable[[], None]]]:
    for count in [1, 4, 16, 64, 256][:most]:
        agent = Agent(build, 1 << 14, "limits.sessions=400", "limits.user_sessions=100")
        crew = [
            spawn(CREW, agent.directory, str(min(CREW_SESSIONS, count - i))) for i in range(0, count, CREW_SESSIONS)
        ]

        def end(crew: List[subprocess.Popen] = crew) -> None:
            for member in crew:
                reap(member)

        yield count, agent, end


MOST_OBJECTS = 60000
DESCRIPTORS_LEFT = 1000  # of gpoold, in addition to one for each object


def descriptors() -> int:
    """Return the number of descriptors that a process may have; root can raise it."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_OBJECTS + DESCRIPTORS_LEFT,) * 2)
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def objects_points(build: Path, most: int) -> Iterator[Tuple[int, Agent, Callable[[], None]]]:
    limit = descriptors() - DESCRIPTORS_LEFT
    if limit < MOST_OBJECTS:
        print(f"{limit} objects are measured instead of {MOST_OBJECTS}: the hard limit of descriptors permits no more")
    for count in [1, 10, 100, 1000, 10000, min(limit, MOST_OBJECTS)][:most]:
        agent = Agent(build, 1 << 17, pool=",objects=65000")
        pool = agent.pool()
        for i in range(count):
            made = pool.create_object(f"scaling/{i}")
            made.alloc(1)
            made.publish()
            made.close()
        yield count, agent, pool.close


def adapters_points(build: Path, most: int) -> Iterator[Tuple[int, Agent, Callable[[], None]]]:
    """Each adapter has its own name; all have the same files."""
    for count in [1, 10, 100, 1000, 10000, 100000][:most]:
        agent = Agent(build, 1 << 10)
        pool = agent.pool()
        agent.adapters = pool.adapters()
        for i in range(count):
            agent.adapters.register(f"adapter/{i}", PLAIN)
        yield count, agent, pool.close


def threads_results(build: Path, most: int, runs: int) -> Dict[str, List[Tuple[int, float]]]:
    """Return the results of gpool-bench, in milliseconds for 1,000 operations."""
    results: Dict[str, List[Tuple[int, float]]] = {name: [] for name in DIMENSIONS["threads"][1]}
    counts = [1, 2, 4, 8, 16, 32, 64][:most]
    names = [f"threads_{name}_{count}" for count in counts for name in results]
    command = [str(build / "gpool-bench"), "-o", "json", "--runs", str(runs), *names]
    for line in subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines():
        figure = json.loads(line)
        _, name, count = figure["bench"].split("_")
        results[name].append((int(count), figure["median"] / 1000))
    return results


def unused(_: Agent) -> float:
    raise AssertionError("gpool-bench measures threads")


DIMENSIONS: Dict[str, Tuple[Callable[[Path, int], Iterator[Tuple[int, Agent, Callable[[], None]]]], Table]] = {
    "pages": (
        pages_points,
        {
            "attach": (attach, "linear"),
            "refill": (refill, "linear"),
            "evict": (evict, "linear"),
            "death": (death, "linear"),
            "restart": (restart, "linear"),
            "status": (status, "linear"),
            "scrape": (scrape, "linear"),
        },
    ),
    "gpus": (
        gpus_points,
        {
            "attach": (attach, "constant"),
            "refill": (refill, "constant"),
            "restart": (restart, "linear"),
            "status": (status, "linear"),
            "scrape": (scrape, "linear"),
        },
    ),
    "sessions": (
        sessions_points,
        {
            "attach": (attach, "constant"),
            "refill": (refill, "constant"),
            "restart": (restart, "linear"),
            "status": (status, "linear"),
            "scrape": (scrape, "linear"),
            "publish": (publish, "constant"),
        },
    ),
    "threads": (lambda build, most: iter(()), dict.fromkeys(("alloc", "pin", "malloc"), (unused, "constant"))),
    "adapters": (
        adapters_points,
        {
            "register": (register, "constant"),
            "find": (find, "constant"),
            "acquire": (acquire, "constant"),
            "load": (load, "constant"),
            # linear in operations; beyond the caches each takes three times as long
            "stats": (adapter_stats, "n log n"),
        },
    ),
    "objects": (
        objects_points,
        {
            "attach": (attach, "constant"),
            "publish": (publish, "log"),
            "look_up": (look_up, "constant"),
            "restart": (restart, "linear"),
            "status": (status, "linear"),
            "scrape": (scrape, "linear"),
        },
    ),
}


def measure(build: Path, dimension: str, points: int, runs: int) -> Dict[str, List[Tuple[int, float]]]:
    made, table = DIMENSIONS[dimension]
    if dimension == "threads":
        return threads_results(build, points, runs)
    results: Dict[str, List[Tuple[int, float]]] = {name: [] for name in table}
    for n, agent, end in made(build, points):
        with agent:
            for name, (figure, _) in table.items():
                results[name].append((n, statistics.median(figure(agent) for _ in range(runs))))
            end()
    return results


def show(dimension: str, results: Dict[str, List[Tuple[int, float]]]) -> bool:
    """Print the table of a dimension, in milliseconds. Return true if no figure is worse than expected."""
    names, good = list(ORDERS), True
    sizes = [n for n, _ in next(iter(results.values()))]
    print(f"{dimension:<10}" + "".join(f"{n:>10}" for n in sizes) + "  order      expected")
    for name, points in results.items():
        order, expected = growth_of(dimension, points), DIMENSIONS[dimension][1][name][1]
        worse = names.index(order) > names.index(expected)
        good &= not worse
        cells = "".join(f"{t:>10.3g}" for _, t in points)
        print(f"{name:<10}{cells}  {order:<10} {expected}{' !' if worse else ''}")
    print(flush=True)
    return good


BARS = "▁▂▃▄▅▆▇█"
DOCUMENT = ROOT / "docs/benchmarks.md"
PART = re.compile(r"(<!-- bench-scaling -->\n).*?(<!-- end -->)", re.S)


def drawn(times: List[float]) -> str:
    """Draw times as bars. The height of a bar is the logarithm of the time relative to the shortest one; a full bar
    represents at least 1,000 times that."""
    least = min(times)
    scale = (len(BARS) - 1) / math.log(max(1000, max(times) / least))
    return "".join(BARS[round(math.log(time_ / least) * scale)] for time_ in times)


def document(results: Dict[str, Dict[str, List[Tuple[int, float]]]], runs: int) -> str:
    """Return a table for each dimension, and what they were measured on."""
    text = ""
    for dimension, figures in results.items():
        sizes = [n for n, _ in next(iter(figures.values()))]
        text += f"| {dimension} | " + " | ".join(f"{n:,}" for n in sizes) + " | growth | order | expected |\n"
        text += "| --- |" + " ---: |" * len(sizes) + " --- | --- | --- |\n"
        for name, points in figures.items():
            cells = " | ".join(f"{time_:.3g}" if time_ < 1000 else f"{time_:,.0f}" for _, time_ in points)
            orders = f"{growth_of(dimension, points)} | {DIMENSIONS[dimension][1][name][1]}"
            text += f"| `{name}` | {cells} | `{drawn([time_ for _, time_ in points])}` | {orders} |\n"
        text += "\n"
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, stdout=subprocess.PIPE, text=True).stdout.strip() or "unknown"
    machine = f"{os.cpu_count()} CPUs, Linux {platform.release()}"
    return f"{text}Medians of {runs} runs on {machine}, on {datetime.date.today()}, commit {commit}.\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how costs grow. Times are in milliseconds.")
    parser.add_argument("build", type=Path)
    parser.add_argument("dimensions", nargs="*", metavar="DIMENSION", help=", ".join(DIMENSIONS))
    parser.add_argument("--points", type=int, default=99, help="only the first points of each dimension")
    parser.add_argument("--runs", type=int, default=15, help="samples of each figure")
    parser.add_argument("--json", type=Path, help="also write the medians to a file")
    parser.add_argument("--document", action="store_true", help="also write the tables into docs/benchmarks.md")
    arguments = parser.parse_intermixed_args()
    for name in set(arguments.dimensions) - set(DIMENSIONS):
        parser.error(f"there is no dimension '{name}'; there are {', '.join(DIMENSIONS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    results = {}
    good = True
    try:
        for dimension in arguments.dimensions or DIMENSIONS:
            results[dimension] = measure(arguments.build.resolve(), dimension, arguments.points, arguments.runs)
            good &= show(dimension, results[dimension])
    finally:
        for agent in list(Agent.running):
            agent.stop()
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.document:
        text = document(results, arguments.runs)
        DOCUMENT.write_text(PART.sub(lambda match: match[1] + text + match[2], DOCUMENT.read_text()))
    return 0 if good else 1


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "client/python"))
    os.environ["PYTHONPATH"] = str(ROOT / "client/python")
    import gpool

    sys.exit(main())
