#!/usr/bin/env python3
"""bench.py - measure vLLM on gpool beside stock vLLM; `make bench-engines` runs it in build/engines.

usage: bench.py [overhead] [gain] [sharing]

  overhead   throughput and CPU time of one engine on gpool, of one that shares no prefixes, and of one stock engine,
             which work in turn on the same prompts
  gain       two engines, of which in turn one, the other and both get a burst of requests: on one elastic pool, and
             with a fixed half of its memory each; and one engine with all of the memory, which gets the requests of
             both. Half of the prompts begin with one of some prefixes of random lengths, whichever engine gets them
  sharing    the part of the tokens that the second one of two engines finds cached, beside that of one engine that
             serves both. The engines get bursts of such requests in turn, and the memory holds all prefixes

Environment: ROUNDS (default 5); for gain and sharing: BLOCK, tokens of a block (default 32: a page has 8 blocks; with
256 it has one, as with large models on a GPU); for gain: PAGES, pages of 512 KiB (default 48); ENGINE_SECONDS. The
figures are those of a small model on a CPU.
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python"), str(HERE.parents[1] / "tools" / "engines")]

from engines import BUILD, Engine, model, tokens  # noqa: E402

from harness import Agent  # noqa: E402

ROUNDS = int(os.environ.get("ROUNDS", "5"))
BLOCK = int(os.environ.get("BLOCK", "32"))
PAGE, PAGE_TOKENS = 512 << 10, 256
PAGES = int(os.environ.get("PAGES", "48"))
BURST, PROMPT, ANSWER = 16, 400, 60
PREFIXES, SHORTEST, LONGEST = 40, 32, 384
"""prefixes that prompts share, and their lengths in tokens"""


def machine() -> str:
    """Describe the machine and its load."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"


def overhead() -> None:
    """Print the throughput of each engine, and the medians of the rounds' ratios to the stock engine."""
    agent = Agent(pool=f"name=p0,backend=host,size=128MiB,page_size={PAGE >> 10}KB,reserved=0")
    path = model(BUILD / "engines-model")
    engines = {
        "stock": Engine(path, None),
        "gpool": Engine(path, agent.directory),
        "gpool, not shared": Engine(path, agent.directory, {"share": False}),
    }
    try:
        rates: Dict[str, List[float]] = {name: [] for name in engines}
        used: Dict[str, List[float]] = {name: [] for name in engines}
        for number in range(-1, ROUNDS):  # the first one warms up
            prompts = [tokens(1000 * number + each, 200) for each in range(32)]
            for name in sorted(engines, reverse=number % 2 == 0):
                engine = engines[name]
                if number < 0:
                    engine.ready()
                begin = engine.cpu_seconds()
                answers, seconds = engine.timed(prompts, ANSWER)
                if number >= 0:
                    rates[name].append(sum(len(answer.tokens) for answer in answers) / seconds)
                    used[name].append(engine.cpu_seconds() - begin)
        for name, found in rates.items():
            ratio = statistics.median(one / two for one, two in zip(found, rates["stock"]))
            cpu = statistics.median(one / two for one, two in zip(used[name], used["stock"]))
            print(
                f"  {name}: {statistics.median(found):.0f} tokens/s, from {min(found):.0f} to {max(found):.0f}; "
                f"{ratio:.3f} of stock, with {cpu:.3f} of its CPU time; medians of {ROUNDS} rounds"
            )
    finally:
        for engine in engines.values():
            engine.stop()
        agent.stop()


def bursts(number: int) -> Tuple[List[List[int]], List[List[int]]]:
    """Return the prompts of a round for both engines; either may be empty."""
    chosen = random.Random(number)
    made: List[List[List[int]]] = []
    for engine in range(2):
        prompts = []
        for each in range(BURST):
            unique = tokens(100000 * (number + 1) + 1000 * engine + each, PROMPT)
            if each % 2:
                seed = chosen.randrange(PREFIXES)
                prefix = tokens(seed, random.Random(seed).randint(SHORTEST, LONGEST))
                unique[: len(prefix)] = prefix
            prompts.append(unique)
        made.append(prompts if number % 3 in (engine, 2) else [])
    return made[0], made[1]


def play(engines: List[Engine]) -> Tuple[List[float], float]:
    """Send all bursts; return the times to the first token, in order, and the part of the tokens that was cached."""
    times: List[float] = []
    cached = asked = 0
    for number in range(3 * ROUNDS):
        each = list(bursts(number))
        if len(engines) == 1:
            each = [each[0] + each[1]]
        working = [(engine, prompts) for engine, prompts in zip(engines, each) if prompts]
        for engine, prompts in working:
            engine.ask(prompts, ANSWER)
        for engine, prompts in working:
            answers = engine.answers()
            times += engine.first_token_s
            cached += sum(answer.cached for answer in answers)
            asked += sum(map(len, prompts))
    return sorted(times), cached / asked


def gain() -> None:
    """Print the times to the first token, preemptions and hit rate of each way to divide the memory."""
    path = model(BUILD / "engines-model")
    pool = f"name=p0,backend=host,size={PAGES * PAGE >> 10}KiB,page_size={PAGE >> 10}KB,reserved=0"
    for name, count, share in (
        ("fixed halves", 2, None),
        ("elastic pool", 2, False),
        ("elastic pool, shared prefixes", 2, True),
        ("one engine that serves both", 1, None),
    ):
        agent = Agent(pool=pool)
        options: Dict[str, Any] = {"disable_log_stats": False, "max_num_seqs": 2 * BURST // count, "block_size": BLOCK}
        if share is None:
            options["kv_cache_memory_bytes"] = PAGES * PAGE // count
            engines = [Engine(path, None, **options) for _ in range(count)]
        else:
            options.update(kv_cache_memory_bytes=PAGES * PAGE, extra={"share": share})
            engines = [Engine(path, agent.directory, **options) for _ in range(count)]
        try:
            for engine in engines:
                engine.ready()
            times, hits = play(engines)
            preemptions = sum(engine.metric("vllm:num_preemptions") for engine in engines)
            print(
                f"  {name}: time to first token {statistics.mean(times) * 1000:.0f} ms, "
                f"p99 {times[int(len(times) * 0.99)] * 1000:.0f} ms; {preemptions:.0f} preemptions; "
                f"{100 * hits:.1f} % of the tokens cached",
                flush=True,
            )
        finally:
            for engine in engines:
                engine.stop()
            agent.stop()


def sharing() -> None:
    """Print the hit rates of the second engine, and of one engine for the same requests."""
    path = model(BUILD / "engines-model")
    pages = 2 * ROUNDS * BURST * -(-(PROMPT + ANSWER) // PAGE_TOKENS) + 16  # 16: what running requests need besides
    rates: List[float] = []
    expected: List[List[Any]] = []
    for name, count in (("one engine that serves both", 1), ("second engine, shared prefixes", 2)):
        agent = Agent(pool=f"name=p0,backend=host,size={pages * PAGE >> 10}KiB,page_size={PAGE >> 10}KB,reserved=0")
        options: Dict[str, Any] = {"max_num_seqs": BURST, "block_size": BLOCK, "kv_cache_memory_bytes": pages * PAGE}
        engines = [Engine(path, agent.directory if count > 1 else None, **options) for _ in range(count)]
        try:
            found: List[List[Any]] = []
            cached = asked = 0
            for engine in engines:
                engine.ready()
            for number in range(2 * ROUNDS):
                prompts = bursts(3 * number + number % 2)[number % 2]
                answers = engines[number % count].generate(prompts, ANSWER)
                found.append([answer.tokens for answer in answers])
                if number % 2:
                    cached += sum(answer.cached for answer in answers)
                    asked += sum(map(len, prompts))
        finally:
            for engine in engines:
                engine.stop()
            agent.stop()
        rates.append(cached / asked)
        expected = expected or found
        if found != expected:
            sys.exit("the answers of two engines differ from those of one")
        print(f"  {name}: {100 * rates[-1]:.2f} % of the tokens cached", flush=True)
    print(f"  ratio {rates[1] / rates[0]:.3f}; all answers are identical")


def main() -> None:
    print(machine())
    for name in sys.argv[1:] or ["overhead", "gain", "sharing"]:
        print(name, flush=True)
        {"overhead": overhead, "gain": gain, "sharing": sharing}[name]()


if __name__ == "__main__":
    main()
