"""An engine for tests, in a process that the fork server has forked; it answers requests that it receives through a
pipe. Or a command of vLLM, in such a process.

The first answer is "ready". {"prompts": [[token, ...], ...], "tokens": N} is answered by {"answers": [([token, ...],
cached tokens), ...], "seconds": S, "transfers": [...]}; "adapter" next to "tokens" has the arguments of a LoRARequest,
and "transfers" the kv_transfer_params of each prompt. {"burst": [[token, ...], ...], "tokens": N, "alone": B}: see
burst(). {"call": NAME, "arguments": [...]} calls a method of vllm.LLM; the answer is {"error": TEXT}, which is empty
unless it has failed. {"metric": NAME} is answered by {"value": N}.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, Dict, List, Tuple

# The modules that the processes of an engine import, once for all engines: the fork server imports this module.
import vllm.v1.engine.core
import vllm.v1.executor.multiproc_executor
import vllm.v1.worker.cpu_worker  # noqa: F401
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.lora.request import LoRARequest
from vllm_process import PR_SET_PDEATHSIG, PRCTL


def main(pipe: Connection, options: Dict[str, Any], log: str) -> None:
    """Start an engine, and answer until the other end of the pipe is closed.

    options: of vllm.LLM, and "environment": variables of vLLM's.
    """
    _detach(log)
    try:
        _answer_all(pipe, options)
    except EOFError:  # the other end of the pipe was closed
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os.killpg(0, signal.SIGKILL)  # the end of this process alone would wait for the others


def command(arguments: List[str], log: str) -> None:
    """Run the command `vllm`."""
    _detach(log)
    PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL)  # the fork server ends with the program that has started it
    sys.argv = ["vllm", *arguments]
    try:
        from vllm.entrypoints.cli.main import main as run

        run()
    except BaseException:
        traceback.print_exc()
    finally:
        os.killpg(0, signal.SIGKILL)


def _detach(log: str) -> None:
    """Lead a session, write all output to a file, and let vLLM fork its processes."""
    os.setsid()
    with open(log, "wb") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method=None: fork  # type: ignore[assignment, misc]


def _answer_all(pipe: Connection, options: Dict[str, Any]) -> None:
    os.environ.update(options.pop("environment", {}))
    transfer = options.pop("kv_transfer_config", None)
    if transfer:
        options["kv_transfer_config"] = KVTransferConfig(**transfer)
    engine = LLM(**options)
    pipe.send("ready")
    try:
        while True:
            asked = pipe.recv()
            pipe.send(burst(engine, pipe, asked) if "burst" in asked else answer(engine, asked))
    finally:
        engine.llm_engine.engine_core.shutdown()


def answer(engine: LLM, asked: Dict[str, Any]) -> Dict[str, Any]:
    """Return the answer to what was received."""
    if "call" in asked:
        try:
            getattr(engine, asked["call"])(*asked["arguments"])
            return {"error": ""}
        except Exception as failed:
            return {"error": repr(failed)}
    if "metric" in asked:
        return {"value": sum(each.value for each in engine.get_metrics() if each.name == asked["metric"])}
    parameters = [
        SamplingParams(
            temperature=0,
            max_tokens=asked["tokens"],
            ignore_eos=True,
            detokenize=False,
            extra_args=transfer and {"kv_transfer_params": transfer},
        )
        for transfer in asked["transfers"] or [None] * len(asked["prompts"])
    ]
    begin = time.monotonic()
    prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
    adapter = LoRARequest(*asked["adapter"]) if asked["adapter"] else None
    answers = engine.generate(prompts, parameters, use_tqdm=False, lora_request=adapter)
    return {
        "answers": [(list(each.outputs[0].token_ids), each.num_cached_tokens) for each in answers],
        "seconds": time.monotonic() - begin,
        "transfers": [each.kv_transfer_params for each in answers],
    }


def burst(engine: LLM, pipe: Connection, asked: Dict[str, Any]) -> Tuple[float, List[Tuple[float, int, int]]]:
    """Answer requests that arrive at once; the engine must be in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0).

    The engine has a clock, which advances by the duration of its steps; if asked["alone"] is true, less the time in
    which this thread was ready to run but another one had the processor. Before a step, this function sends the time of
    the clock, and waits for permission from the other end of the pipe: a number of seconds, for which it executes
    steps, at least one. Several engines that this end permits in turn share a core, and the time of one does not
    include the others.

    Returns the time of the last token, and, for each request, the time of its first token, the number of steps to it,
    and its cached tokens.
    """
    parameters = SamplingParams(temperature=0, max_tokens=asked["tokens"], ignore_eos=True, detokenize=False)
    for number, prompt in enumerate(asked["burst"]):
        engine.llm_engine.add_request(str(number), {"prompt_token_ids": prompt}, parameters)
    scheduler = engine.llm_engine.engine_core.engine_core.scheduler
    first: Dict[int, Tuple[float, int, int]] = {}
    clock, last, until, steps = 0.0, 0.0, 0.0, 0
    while scheduler.has_requests():
        if clock >= until:
            pipe.send(clock)
            until = clock + pipe.recv()
        begin, ready = time.monotonic(), ready_seconds()
        outputs = engine.llm_engine.step()
        clock += time.monotonic() - begin - (ready_seconds() - ready if asked["alone"] else 0)
        steps += 1
        for output in outputs:
            if output.outputs[0].token_ids:
                last = clock
                first.setdefault(int(output.request_id), (clock, steps, output.num_cached_tokens))
    return last, [first[number] for number in range(len(first))]


def ready_seconds() -> float:
    """Return the total time in which this thread was ready to run but did not run."""
    with open("/proc/thread-self/schedstat") as stat:
        return int(stat.read().split()[1]) / 1e9
