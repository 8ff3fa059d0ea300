"""An engine with vLLM's scheduler and block pool and the connector, and a computed function in place of a model.

The "KV content" of a token is a hash of all tokens up to it, and the next token depends on that hash alone. Each step
checks the content of all earlier tokens of its requests, at the places in the block tables. This detects each block
that is lost, mixed up, or used too early, in thousands of steps per second.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client" / "python"))
os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="WARNING")

import torch  # noqa: E402
from make_model import CONFIG  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.config import KVTransferConfig, VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.utils.hashing import sha256_cbor  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

from gpool.vllm import GpoolConnector  # noqa: E402

BLOCK_TOKENS, BLOCK_BYTES = 16, 128 << 10  # 4 blocks in a page of 512 KiB
SLOT = BLOCK_BYTES // BLOCK_TOKENS // 8  # of a token, in words
MASK = (1 << 62) - 1


def mix(state: int, token: int) -> int:
    """Return the hash of a prefix that `token` continues."""
    return ((state ^ (token + 1)) * 0x9E3779B97F4A7C15 + 0x1234567) & MASK


def states_of(tokens: List[int]) -> List[int]:
    """Return the KV content of each token."""
    found, state = [], 7
    for token in tokens:
        state = mix(state, token)
        found.append(state)
    return found


def answer_of(prompt: List[int], count: int) -> List[int]:
    """Return the tokens that an engine must generate."""
    state, made = states_of(prompt)[-1], []
    for _ in range(count):
        made.append(state % 509)
        state = mix(state, made[-1])
    return made


@functools.lru_cache(None)
def _model() -> str:
    import json

    folder = tempfile.mkdtemp(prefix="gpool-model-")
    atexit.register(shutil.rmtree, folder)
    (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
    return folder


def config_of(directory: Optional[str], extra: Dict[str, Any], **arguments: Any) -> VllmConfig:
    """Return vLLM's configuration of an engine on the agent in `directory`; None: of stock vLLM."""
    transfer = directory and KVTransferConfig(
        kv_connector="GpoolConnector",
        kv_connector_module_path="gpool.vllm",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={"directory": directory, **extra},
    )
    options: Dict[str, Any] = {
        "model": _model(),
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "block_size": BLOCK_TOKENS,
        "max_model_len": 512,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "kv_cache_memory_bytes": 1 << 30,  # not used: the number of blocks is an argument
        "enable_prefix_caching": True,
        "prefix_caching_hash_algo": "sha256_cbor",
        "kv_transfer_config": transfer or None,
        "enforce_eager": True,
    }
    options.update(arguments)
    return EngineArgs(**options).create_engine_config()


class Engine:
    """A simulated engine.

    directory: the agent's runtime directory; None: stock vLLM.
    workers: number of ranks, each with its own range.
    """

    def __init__(
        self,
        directory: Optional[str],
        blocks: int = 256,
        workers: int = 1,
        extra: Optional[Dict[str, Any]] = None,
        **more: Any,
    ) -> None:
        self.config = config_of(directory, extra or {}, **more)
        init_none_hash(sha256_cbor)
        self.hasher = get_request_block_hasher(BLOCK_TOKENS, sha256_cbor)
        kv = _kv_config(blocks)
        self.config.cache_config.num_gpu_blocks = blocks
        self.config.parallel_config.world_size = workers
        self.config.parallel_config.tensor_parallel_size = workers
        self.workers: List[GpoolConnector] = []
        self.memory: List[torch.Tensor] = []
        with set_current_vllm_config(self.config):
            for rank in range(workers):
                self.config.parallel_config.rank = rank
                worker = directory and GpoolConnector(self.config, KVConnectorRole.WORKER, kv)
                with worker.get_mem_pool_context() if worker else contextlib.nullcontext():
                    buffer = torch.zeros(blocks * BLOCK_BYTES, dtype=torch.int8, device="cpu")
                if worker:
                    worker.register_kv_caches({"layer": buffer.view(blocks, BLOCK_BYTES)})
                    self.workers.append(worker)
                self.memory.append(buffer.view(torch.int64).view(blocks, BLOCK_TOKENS, SLOT))
            self.config.parallel_config.rank = 0
            try:
                self.scheduler = Scheduler(
                    self.config, kv, StructuredOutputManager(self.config), BLOCK_TOKENS, BLOCK_TOKENS, log_stats=False
                )
            except ValueError:  # the engine is refused
                for each in self.workers:
                    each.shutdown()
                raise
        self.connector: GpoolConnector = self.scheduler.connector
        self.balloon = self.connector._of_scheduler.balloon if directory else None
        self.aggregator = KVOutputAggregator(workers)
        self.answers: Dict[str, List[int]] = {}
        self.cached: Dict[str, int] = {}
        self.prompts: Dict[str, Tuple[List[int], int]] = {}
        self.known: Dict[str, List[int]] = {}
        self.sent: Set[str] = set()  # ended requests whose blocks another connector has sent
        self.waits = True  # each step waits for its operations, as if the forward pass took more time than they do
        self.steps = self.empty = 0
        self.wrong: List[str] = []

    # ---- requests ----

    def add(self, name: str, prompt: List[int], count: int) -> None:
        self.prompts[name] = (prompt, count)
        self.scheduler.add_request(self._request(name, prompt, count))

    def _request(self, name: str, prompt: List[int], count: int) -> Request:
        parameters = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        parameters._eos_token_id = None
        return Request(name, list(prompt), parameters, None, block_hasher=self.hasher)

    def hashes(self, prompt: List[int]) -> List[bytes]:
        """Return vLLM's hashes of the full blocks of a prompt."""
        return list(self._request("", prompt, 1).block_hashes)

    def run(self, limit: int = 20000) -> None:
        """Step until all requests are answered and the engine is idle."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(f"not idle after {limit} steps: {self.describe()}")

    def describe(self) -> str:
        from gpool.vllm._balloon import State

        counts = {state.name: self.balloon.count(state) for state in State if self.balloon.count(state)}
        return (
            f"{counts}, {self.balloon.pool.get_num_free_blocks()} free blocks, {len(self.scheduler.running)} running, "
            f"{len(self.scheduler.waiting)} waiting, counters {self.balloon.counters.counts}, "
            f"workers {[worker._of_worker.counters.counts for worker in self.workers]}"
        )

    def check(self) -> None:
        """Assert that all requests were answered, with the right tokens, from the right memory."""
        assert not self.wrong, self.wrong[:3]
        for name, (prompt, count) in self.prompts.items():
            assert self.answers.get(name) == answer_of(prompt, count), f"{name}: {self.answers.get(name)}"

    # ---- steps ----

    def step(self) -> bool:
        if not self.scheduler.has_requests():
            return False
        output = self.scheduler.schedule()
        self.steps += 1
        self.empty += not output.total_num_scheduled_tokens
        results = [self._execute(rank, output) for rank in range(len(self.memory))]
        result = self.aggregator.aggregate(results) if len(results) > 1 else results[0]
        for made in self.scheduler.update_from_output(output, result).values():
            for one in made.outputs:
                self.answers.setdefault(one.request_id, []).extend(one.new_token_ids)
        return True

    def _execute(self, rank: int, output: Any) -> ModelRunnerOutput:
        worker = self.workers[rank] if self.workers else None
        if worker:
            worker.handle_preemptions(output.kv_connector_metadata)
            worker.bind_connector_metadata(output.kv_connector_metadata)
        names = list(output.num_scheduled_tokens)
        tokens = [self._forward(rank, name, output.num_scheduled_tokens[name]) for name in names]
        about = self._after(worker) if worker else None
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=tokens,
            kv_connector_output=about,
        )

    def _after(self, worker: GpoolConnector) -> KVConnectorOutput:
        """Call a worker's connector after the forward pass, as vLLM does."""
        worker.wait_for_save()
        if self.waits:
            worker._of_worker.wait()
        about = KVConnectorOutput(
            finished_sending=set(self.sent),
            invalid_block_ids=worker.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=worker.build_connector_worker_meta(),
        )
        if about.invalid_block_ids:
            self.wrong.clear()  # this step's content is computed again
        worker.clear_connector_metadata()
        self.sent.clear()
        return about

    def _forward(self, rank: int, name: str, count: int) -> List[int]:
        """Check the content of a request's earlier tokens, write that of the next `count`; return its next token."""
        request = self.scheduler.requests[name]
        end = request.num_computed_tokens
        begin = end - count
        if name not in self.cached:
            self.cached[name] = begin
        tokens = list(request.all_token_ids)
        states = torch.tensor(states_of(tokens[:end]), dtype=torch.int64)
        blocks = torch.tensor(self.scheduler.kv_cache_manager.get_block_ids(name)[0])
        place = torch.arange(end)
        at = (blocks[place // BLOCK_TOKENS], place % BLOCK_TOKENS)
        memory = self.memory[rank]
        for word in (0, SLOT // 2, SLOT - 1):
            found = memory[at[0][:begin], at[1][:begin], word]
            bad = (found != states[:begin] + word).nonzero()
            if len(bad):
                first = int(bad[0])
                self.wrong.append(
                    f"step {self.steps}, rank {rank}: {len(bad)} of {begin} tokens of {name}, from token {first} in "
                    f"block {int(at[0][first])}: {int(found[first]):#x} and not {int(states[first]) + word:#x}; "
                    f"chunk {self.balloon.state(self.balloon.chunk_of(int(at[0][first]))).name}"
                )
            memory[at[0][begin:], at[1][begin:], word] = states[begin:] + word
        return [int(states[-1]) % 509] if end >= request.num_tokens else []

    def close(self) -> None:
        """End the engine's sessions, as its processes' end would."""
        self.memory.clear()
        if self.connector:
            self.connector.shutdown()
        for worker in self.workers:
            worker.shutdown()


def _kv_config(blocks: int) -> KVCacheConfig:
    spec = FullAttentionSpec(
        block_size=BLOCK_TOKENS,
        num_kv_heads=1,
        head_size=BLOCK_BYTES // BLOCK_TOKENS // 8,
        dtype=torch.float32,
    )
    return KVCacheConfig(
        num_blocks=blocks,
        kv_cache_tensors=[KVCacheTensor(blocks * BLOCK_BYTES, ["layer"], BLOCK_BYTES, BLOCK_BYTES)],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        kv_cache_layout="BLHNC",
        hash_block_size=BLOCK_TOKENS,
    )
