#!/usr/bin/env python3
"""bench.py - compare vLLM on gpool with stock vLLM; `make bench-engines` runs it in build/engines.

usage: bench.py [--document] [overhead] [processes] [gain] [sharing]      default: all four

  overhead   throughput of one engine on gpool, of one that shares no prefixes, and of one with a connector that does
             nothing, compared with that of two equal stock engines, whose difference shows the precision; with a model
             of 3 MB, whose steps take 2 to 5 ms, and with one of 140 MB, whose steps take 20 to 40 ms. Each engine is
             one process, so that gpool's thread and the agent have a core. The engines get the same prompts, and
             execute steps for 0.1 s in turn, so that changes of the machine's speed affect all of them. Before, all
             memory of the pool is written once, and the stock engines have written most of their memory. The engines
             are started several times, because two equal engines can differ by 2 % until they end
  processes  throughput and CPU time of such engines in the processes that vLLM starts by default, of which two use
             a core each, even while they wait. One engine after the other answers all prompts of a round. On a machine
             with two cores, gpool's thread and the agent compete with these processes. The engines are started several
             times, too
  gain       two engines, of which in turn one, the other and both get a burst of requests: on one elastic pool, and
             with a fixed half of its memory each. Half of the prompts begin with one of some prefixes of random
             lengths, whichever engine gets them. The model is that of 140 MB; steps have at most 512 tokens, so that a
             burst is not one long step. Each engine is one process with a clock that advances with its steps. At any
             time only the engine whose clock is behind executes a step, so that the times do not depend on the number
             of cores, and hardly on other load
  sharing    the part of the tokens that the second one of two engines finds cached, compared with that of one engine
             that serves both. The engines get bursts of such requests in turn, and the memory holds all prefixes

  --document  write the tables into docs/benchmarks.md

Prints a table for each. All engines of a measurement exist at the same time and work in turn, so the load of the
machine affects all of them; the ratios are medians of the ratios of rounds. The figures are those of a small model on a
CPU.

Environment: ROUNDS (default 10; four times as many with the model of 3 MB); for overhead and processes: STARTS, number
of starts of the engines, over which the rounds are distributed (default 5); for gain: PAGES, pages of 512 KiB, each of
which has the 256 tokens of one request (default 24), and LOADS, requests in a burst (default "4 16 24": they need less
memory than a half has, more, and all of the pool); ENGINE_SECONDS.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, TypeVar

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python"), str(HERE.parents[1] / "tools" / "engines")]

import psutil  # noqa: E402
from engines import BUILD, Engine, model, tokens  # noqa: E402

from harness import ROOT, Agent  # noqa: E402

from gpool import NoRoom  # noqa: E402

# By default, glibc returns the memory of large tensors to the kernel after a step or does not, depending on what is
# next to them, so that the steps of one of two equal engines have thousands of page faults. vLLM recommends tcmalloc.
os.environ.update(MALLOC_TRIM_THRESHOLD_="4000000000", MALLOC_MMAP_THRESHOLD_="4000000000")

SETTLED = 1.2
"""seconds after which an engine that has answered uses no more CPU time: a worker of vLLM polls for one second"""
ROUNDS = int(os.environ.get("ROUNDS", "10"))
STARTS = int(os.environ.get("STARTS", "5"))
"""number of starts of the engines of `overhead` and `processes`"""
TURN = 0.1
"""seconds for which an engine of `overhead` executes steps before it is another one's turn"""
PAGE, PAGE_TOKENS = 512 << 10, 256  # tokens of the small model
PAGES = int(os.environ.get("PAGES", "24"))
SMALL, LARGE = ("engines-model",), ("engines-model-large", "--large")
"""models: the folder, and arguments of make_model.py"""
MODELS = (("3 MB", SMALL, 8, 4 * ROUNDS, 32), ("140 MB", LARGE, 1, ROUNDS, 16))
"""of overhead and processes: size, model, number of first rounds that warm up, rounds, and requests of a round"""
LOADS = [int(load) for load in os.environ.get("LOADS", "4 16 24").split()]
BURST, PROMPT, ANSWER = 16, 400, 60
GAIN_PROMPT, GAIN_ANSWER = 192, 64
STEP_TOKENS = 512
"""tokens of a step in gain: as a step becomes longer, the first tokens of its requests come later"""
PREFIXES, SHORTEST, UNIQUE = 40, 32, 16
"""number of prefixes that prompts share, minimum number of their tokens, and of the tokens that follow them"""
DOCUMENT = ROOT / "docs/benchmarks.md"


class Row(NamedTuple):
    """A row of the table."""

    measured: str
    engines: str
    value: str
    details: str
    ratio: float
    """to the first row of the measurement, or to the mean of two stock engines"""


def machine() -> str:
    """Describe the machine and its load."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {os.cpu_count()} cores, Linux {platform.release()}, load average {os.getloadavg()[0]:.1f} before"


def progress(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)


def ratio(found: List[float], base: List[float]) -> float:
    """Return the median of the ratios of rounds."""
    return statistics.median(one / two for one, two in zip(found, base))


class Way:
    """Engines that divide memory in one way: stock ones, or those on an agent of their own."""

    def __init__(
        self, which: Tuple[str, ...], pages: int, count: int, extra: Optional[Dict[str, Any]], **options: Any
    ) -> None:
        """Start the engines. extra: kv_connector_extra_config; None: stock engines, each with a part of the memory."""
        folder, *arguments = which
        self.pages = pages
        size = f"size={pages * PAGE >> 10}KiB,page_size={PAGE >> 10}KB"
        self.agent = Agent(pool=f"name=p0,backend=host,{size},reserved=0")
        self.engines: List[Engine] = []
        options.setdefault("kv_cache_memory_bytes", pages * PAGE // (count if extra is None else 1))
        directory = None if extra is None else self.agent.directory
        for _ in range(count):
            self.engines.append(Engine(model(BUILD / folder, *arguments), directory, extra, **options))

    def ready(self) -> None:
        for engine in self.engines:
            engine.ready()

    def touch(self) -> "Way":
        """Write all pages of the pool: the first write to a page of host memory takes much more time than others."""
        with self.agent.pool() as pool:
            blocks: List[Any] = []
            try:
                while len(blocks) < self.pages:
                    blocks.append(pool.alloc(1))
            except NoRoom:
                pass
            for block in blocks:
                block.view().write(bytes(PAGE))
                block.unpin()
                block.free()
        return self

    def stop(self) -> None:
        for engine in self.engines:
            engine.end()
        self.agent.stop()


Result = TypeVar("Result")


def measured(make: Dict[str, Callable[[], Way]], measure: Callable[[Dict[str, Way]], Result]) -> Result:
    """Start the engines of all ways, and return what `measure` returns for them."""
    ways: Dict[str, Way] = {}
    try:
        for name, make_one in make.items():
            ways[name] = make_one()
        for way in ways.values():
            way.ready()
        return measure(ways)
    finally:
        for way in ways.values():
            way.stop()


def in_turn(ways: Dict[str, Way], round_: str) -> List[str]:
    """Return the names of the ways in an order that depends on the round, so that no way always follows the same."""
    return random.Random(round_).sample(list(ways), len(ways))


def overhead() -> List[Row]:
    """Measure the throughput of engines that have a core in turn; their other threads and gpoold have the others."""
    rows: List[Row] = []
    one_process = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    for what, which, warm, rounds, requests in MODELS:
        made = ways(which, environment=one_process)
        stock, again = "stock vLLM", "stock vLLM, another engine"
        made = {stock: made[stock], again: made[stock], **made}
        rates: Dict[str, List[float]] = {name: [] for name in made}
        for start, mine in rounds_of_starts(rounds):
            measured(made, partial(measure_turns, f"{what}, start {start}", warm, mine, requests, rates))
        base = [(one + two) / 2 for one, two in zip(rates[stock], rates[again])]
        rows += rate_rows("throughput, tokens/s", what, rates, ".0f", base)
    return rows


def rounds_of_starts(rounds: int) -> Iterator[Tuple[int, int]]:
    """Yield the number of each start of the engines, from 1, and that of its rounds, which are at least one."""
    for start in range(STARTS):
        mine = rounds * (start + 1) // STARTS - rounds * start // STARTS
        if mine:
            yield start + 1, mine


def measure_turns(
    what: str, warm: int, rounds: int, requests: int, rates: Dict[str, List[float]], engines: Dict[str, Way]
) -> None:
    """Add the throughput of each engine in each round, up to the last token, to `rates`."""
    separate(engines)
    for number in range(warm + rounds):
        prompts = [tokens(1000 * number + each, 200) for each in range(requests)]
        working = {
            name: way for name, way in engines.items() if way.engines[0].begin(prompts, ANSWER, False) is not None
        }
        turn = 0
        while working:
            for name in in_turn(working, f"{what} {number} {turn}"):
                if working[name].engines[0].step(TURN) is None:
                    del working[name]
            turn += 1
        if number >= warm:
            for name, way in engines.items():
                rates[name].append(requests * ANSWER / way.engines[0].last)
            found = ", ".join(f"{name}: {rates[name][-1]:.0f}" for name in engines)
            progress(f"overhead, model of {what}, round {number - warm + 1}, tokens/s: {found}")


def separate(engines: Dict[str, Way]) -> None:
    """Bind the threads that execute steps to one core, and the other threads of engines and agents to the others."""
    *others, core = sorted(os.sched_getaffinity(0))
    if not others:
        return
    for way in engines.values():
        mine = way.engines[0].pids()
        for process in [psutil.Process(pid) for pid in (*mine, way.agent.process.pid)]:
            for each in (process, *process.children(recursive=True)):
                for thread in each.threads():
                    steps = each.pid in mine and thread.id == each.pid
                    with contextlib.suppress(ProcessLookupError):  # the thread has ended
                        os.sched_setaffinity(thread.id, [core] if steps else others)


def processes() -> List[Row]:
    """Measure the throughput and the CPU time of engines in the processes that vLLM starts by default."""
    rows: List[Row] = []
    for what, which, warm, rounds, requests in MODELS:
        made = ways(which)
        rates: Dict[str, List[float]] = {name: [] for name in made}
        used: Dict[str, List[float]] = {name: [] for name in made}
        for start, mine in rounds_of_starts(rounds):
            measured(made, partial(measure_rounds, f"{what}, start {start}", warm, mine, requests, rates, used))
        rows += rate_rows("throughput, tokens/s", what, rates, ".0f", rates["stock vLLM"])
        rows += rate_rows("CPU time of a round, s", what, used, ".2f", used["stock vLLM"])
    return rows


def measure_rounds(
    what: str,
    warm: int,
    rounds: int,
    requests: int,
    rates: Dict[str, List[float]],
    used: Dict[str, List[float]],
    engines: Dict[str, Way],
) -> None:
    """Add the throughput and the CPU time of each round to `rates` and `used`."""
    for number in range(warm + rounds):
        prompts = [tokens(1000 * number + each, 200) for each in range(requests)]
        for name in in_turn(engines, f"{what} {number}"):
            engine = engines[name].engines[0]
            time.sleep(SETTLED)
            begin = engine.cpu_seconds()
            answers, seconds = engine.timed(prompts, ANSWER)
            if number >= warm:
                rates[name].append(sum(len(answer.tokens) for answer in answers) / seconds)
                used[name].append(engine.cpu_seconds() - begin)
                round_ = f"round {number - warm + 1}"
                progress(f"processes, model of {what}, {round_}: {name}: {rates[name][-1]:.0f} tokens/s")


def ways(which: Tuple[str, ...], **options: Any) -> Dict[str, Callable[[], Way]]:
    """Return the engines of overhead and processes; options: of all of them."""
    empty = {"kv_connector": "EmptyConnector", "kv_connector_module_path": "empty_connector", "kv_role": "kv_both"}

    def way(extra: Optional[Dict[str, Any]], **more: Any) -> Callable[[], Way]:
        return lambda: Way(which, 512, 1, extra, kv_cache_memory_bytes=256 * PAGE, **options, **more).touch()

    return {
        "stock vLLM": way(None),
        "a connector that does nothing": way(None, kv_transfer_config=empty),
        "gpool": way({}),
        "gpool, prefixes not shared": way({"share": False}),
    }


def rate_rows(value: str, what: str, found: Dict[str, List[float]], form: str, base: List[float]) -> List[Row]:
    """Return the rows of a value of the rounds with a model; `base`: the values that the ratios refer to."""
    return [
        Row(
            f"{value}, model of {what}",
            name,
            f"{statistics.median(each):{form}}",
            f"{min(each):{form}} to {max(each):{form}}",
            ratio(each, base),
        )
        for name, each in found.items()
    ]


def bursts(number: int, size: int, length: int = PROMPT) -> Tuple[List[List[int]], List[List[int]]]:
    """Return the prompts of a round for both engines; either may be empty."""
    chosen = random.Random(number)
    made: List[List[List[int]]] = []
    for engine in range(2):
        prompts = []
        for each in range(size):
            unique = tokens(100000 * (number + 1) + 1000 * engine + each, length)
            if each % 2:
                seed = chosen.randrange(PREFIXES)
                prefix = tokens(seed, random.Random(seed).randint(SHORTEST, length - UNIQUE))
                unique[: len(prefix)] = prefix
            prompts.append(unique)
        made.append(prompts if number % 3 in (engine, 2) else [])
    return made[0], made[1]


class Played:
    """The results of the rounds of a way."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.times: List[List[float]] = []  # to the first token, by burst
        self.steps: List[int] = []
        self.cached = self.asked = 0
        self.preemptions = -self._preemptions()

    def _preemptions(self) -> float:
        return sum(engine.metric("vllm:num_preemptions") for engine in self.way.engines)

    def play(self, number: int, size: int) -> None:
        """Send bursts, and let the engines make their steps in the order of their clocks until all are answered."""
        clocks: Dict[Engine, float] = {}
        working = [each for each in zip(self.way.engines, bursts(number, size, GAIN_PROMPT)) if each[1]]

        def heard(engine: Engine, clock: Optional[float]) -> None:
            clocks.pop(engine, None)
            if clock is not None:
                clocks[engine] = clock

        for engine, prompts in working:
            heard(engine, engine.begin(prompts, GAIN_ANSWER))
        while clocks:
            engine = min(clocks, key=lambda each: clocks[each])
            heard(engine, engine.step())
        self.times.append([clock for engine, _ in working for clock, _, _ in engine.firsts])
        self.steps += [steps for engine, _ in working for _, steps, _ in engine.firsts]
        self.cached += sum(cached for engine, _ in working for _, _, cached in engine.firsts)
        self.asked += sum(len(prompt) for _, prompts in working for prompt in prompts)

    def rounds(self) -> List[float]:
        """Return the mean time of each round, in which one engine, the other and both get a burst."""
        return [statistics.mean(sum(self.times[first : first + 3], [])) for first in range(0, len(self.times), 3)]

    def row(self, what: str, name: str, first: "Played") -> Row:
        times, rounds = sorted(sum(self.times, [])), self.rounds()
        ratios = [mine / theirs for mine, theirs in zip(rounds, first.rounds())]
        details = (
            f"ratios {min(ratios):.3f} to {max(ratios):.3f}; p99 {times[int(len(times) * 0.99)] * 1000:.0f} ms; "
            f"{statistics.mean(self.steps):.1f} steps; {self.preemptions + self._preemptions():.0f} preemptions; "
            f"{100 * self.cached / self.asked:.1f} % of the tokens cached"
        )
        return Row(what, name, f"{statistics.median(rounds) * 1000:.0f}", details, statistics.median(ratios))


def gain() -> List[Row]:
    """Measure the times to the first token, preemptions and hit rate of each way to divide the memory."""

    def way(extra: Optional[Dict[str, Any]]) -> Callable[[], Way]:
        options = {"max_num_seqs": max(LOADS), "max_num_batched_tokens": STEP_TOKENS, "disable_log_stats": False}
        alone = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        return lambda: Way(LARGE, PAGES, 2, extra, environment=alone, **options)

    return measured(
        {
            "fixed halves": way(None),
            "elastic pool": way({"share": False}),
            "elastic pool, shared prefixes": way({}),
        },
        measure_gain,
    )


def measure_gain(ways: Dict[str, Way]) -> List[Row]:
    rows: List[Row] = []
    for name in ways:
        for number in range(3):  # the first bursts warm up
            Played(ways[name]).play(1000000 + number, max(LOADS))
    for load in LOADS:
        played = {name: Played(way) for name, way in ways.items()}
        for number in range(3 * ROUNDS):
            for name in in_turn(ways, f"{load} {number}"):
                played[name].play(300 * load + number, load)
                mean = statistics.mean(played[name].times[-1])
                progress(f"gain, bursts of {load}, burst {number + 1}: {name}: {mean:.3f} s")
        what = f"time to the first token, bursts of {load}, ms"
        rows += [each.row(what, name, played["fixed halves"]) for name, each in played.items()]
    return rows


def sharing() -> List[Row]:
    """Measure the hit rates of the second engine, and of one engine for the same requests."""
    pages = 2 * ROUNDS * BURST * -(-(PROMPT + ANSWER) // PAGE_TOKENS) + 16  # 16: for running requests
    options = {"max_num_seqs": BURST}
    return measured(
        {
            "one engine that serves both": lambda: Way(SMALL, pages, 1, None, **options),
            "the second of two engines, shared prefixes": lambda: Way(SMALL, pages, 2, {}, **options),
        },
        measure_sharing,
    )


def measure_sharing(ways: Dict[str, Way]) -> List[Row]:
    rates: Dict[str, float] = {}
    expected: List[List[Any]] = []
    for name, way in ways.items():
        found: List[List[Any]] = []
        cached = asked = 0
        for number in range(2 * ROUNDS):
            prompts = bursts(3 * number + number % 2, BURST)[number % 2]
            answers = way.engines[number % len(way.engines)].generate(prompts, ANSWER)
            found.append([answer.tokens for answer in answers])
            if number % 2:
                cached += sum(answer.cached for answer in answers)
                asked += sum(map(len, prompts))
            progress(f"sharing, round {number + 1}: {name}")
        rates[name] = cached / asked
        expected = expected or found
        if found != expected:
            sys.exit("the answers of two engines differ from those of one")
    first = next(iter(rates.values()))
    what = "tokens found in the cache, %"
    return [Row(what, name, f"{100 * rate:.2f}", "answers are identical", rate / first) for name, rate in rates.items()]


def table(rows: List[Row], described: str) -> str:
    """Return the table, and what it was measured on."""
    lines = ["| measured | engines | value | details | ratio |", "| --- | --- | --- | --- | --- |"]
    last = ""
    for row in rows:
        what = row.measured if row.measured != last else ""
        last = row.measured
        lines.append(f"| {what} | {row.engines} | {row.value} | {row.details} | {row.ratio:.3f} |")
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, stdout=subprocess.PIPE, text=True).stdout.strip() or "unknown"
    return "\n".join(lines) + (
        f"\n\nMeasured on {described}, on {datetime.date.today()}, commit {commit}, with ROUNDS={ROUNDS}.\n"
    )


def write(name: str, text: str) -> None:
    """Write the table of a measurement into the documentation."""
    part = re.compile(rf"(<!-- bench-engines {name} -->\n).*?(<!-- end -->)", re.S)
    found, count = part.subn(lambda match: match[1] + text + match[2], DOCUMENT.read_text())
    if not count:
        sys.exit(f"bench.py: {DOCUMENT} has no place for the table of '{name}'")
    DOCUMENT.write_text(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--document", action="store_true", help="write the tables into docs/benchmarks.md")
    arguments = parser.parse_args()
    for name in set(arguments.names) - set(MEASUREMENTS):
        parser.error(f"there is no measurement '{name}'")
    for name in arguments.names or MEASUREMENTS:
        described = machine()
        text = table(MEASUREMENTS[name](), described)
        print(text, flush=True)
        if arguments.document:
            write(name, text)


MEASUREMENTS: Dict[str, Callable[[], List[Row]]] = {
    "overhead": overhead,
    "processes": processes,
    "gain": gain,
    "sharing": sharing,
}

if __name__ == "__main__":
    main()
