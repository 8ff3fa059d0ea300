"""The connector with vLLM's scheduler and a computed function in place of a model: simulated.py.

Requirements: E1, E3.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import sys
import threading
import time
import unittest
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Set, Tuple
from unittest import mock

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "python")]

from simulated import BLOCK_TOKENS, SLOT, Engine, config_of, states_of, torch  # noqa: E402
from vllm.config import KVEventsConfig  # noqa: E402
from vllm.distributed.kv_events import BlockStored  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402

from harness import POOL, Agent, gpool  # noqa: E402

from gpool import _native  # noqa: E402
from gpool.vllm import _scheduler, _version, _worker, register  # noqa: E402
from gpool.vllm._balloon import Balloon, State  # noqa: E402
from gpool.vllm._messages import Action, Answer, Answers, Filled, Op, Orders, pack  # noqa: E402
from gpool.vllm._scheduler import NOTHING  # noqa: E402
from gpool.vllm._settings import pool_name, settings_of  # noqa: E402

PAGES, CHUNK_TOKENS = 64, 4 * BLOCK_TOKENS
SECONDS = int(os.environ.get("ENGINE_SECONDS", "600"))
SEEDS = int(os.environ.get("SEED", "1"))
BURST = {"max_num_seqs": 16, "max_num_batched_tokens": 256}
"""options with which a step computes the prompts of five requests of a burst"""


def tokens(seed: int, count: int) -> List[int]:
    chosen = random.Random(seed)
    return [chosen.randrange(509) for _ in range(count)]


Result = Tuple[int, Optional[gpool.Error]]
"""of Chunks.execute() for one operation"""
Call = Callable[[], Result]


class Planted:
    """A worker's chunks, with another effect of an action."""

    def __init__(
        self, chunks: Any, action: Optional[Action] = None, instead: Callable[[Call], Result] = lambda call: call()
    ) -> None:
        """instead: called in place of the operations of `action`, with a function that executes the operation."""
        self.chunks, self._action, self._instead = chunks, action, instead
        self.lost_chunks: List[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.chunks, name)

    def lost(self) -> List[int]:
        return self.lost_chunks

    def post(self, batch: object, _: Optional[List[Tuple[Any, ...]]]) -> None:
        self.chunks.post(batch, None)  # the worker's thread then calls execute()

    def execute(self, operations: List[Tuple[Any, ...]], timeout_ms: int) -> Result:
        for done, operation in enumerate(operations):

            def call(operation: Tuple[Any, ...] = operation) -> Result:
                return self.chunks.execute([operation], timeout_ms)  # type: ignore[no-any-return]

            succeeded, error = self._instead(call) if operation[0] == self._action else call()
            if not succeeded:
                return done, error
        return len(operations), None


def plant(engine: Engine, action: Action, instead: Callable[[Call], Result]) -> None:
    """Change the effect of an action in the workers of an engine, until unplant()."""
    for connector in engine.workers:
        connector._of_worker._chunks = Planted(connector._of_worker._chunks, action, instead)


def unplant(engine: Engine) -> None:
    for connector in engine.workers:
        connector._of_worker._chunks = getattr(connector._of_worker._chunks, "chunks", connector._of_worker._chunks)


class Simulated(unittest.TestCase):
    arguments: List[str] = []

    def setUp(self) -> None:
        self.agent = Agent(*self.arguments)
        self.addCleanup(self.agent.stop)
        self.engines: List[Engine] = []
        self.addCleanup(lambda: [engine.close() for engine in self.engines])

    def engine(self, **options: Any) -> Engine:
        self.engines.append(Engine(self.agent.directory, **options))
        return self.engines[-1]

    def used(self) -> int:
        """Return the number of pages that hold content which cannot be taken: not free, idle, or evictable."""
        with self.agent.pool() as pool:
            return pool.page_count - len(self.fill_pool(pool))

    def fill_pool(self, pool: Any) -> List[Any]:
        """Allocate all pages of the pool that can be taken."""
        blocks: List[Any] = []
        with contextlib.suppress(gpool.NoRoom):
            while True:
                blocks.append(pool.alloc(1))
        return blocks

    def balanced(self, engine: Engine) -> None:
        """The states of the chunks and the references of vLLM's blocks agree, in an idle engine."""
        balloon = engine.balloon
        for chunk in range(1, balloon.geometry.chunks):
            counts = {block.ref_cnt for block in balloon.blocks(chunk)}
            self.assertEqual(counts, {0} if balloon.state(chunk) == State.LIVE else {1}, (chunk, engine.describe()))
        self.assertFalse(balloon.busy)
        self.assertEqual(sum(map(balloon.count, State)), balloon.geometry.chunks)


class OneEngine(Simulated):
    def test_it_grows_shrinks_and_holds_nothing_when_idle(self) -> None:
        engine = self.engine()
        self.assertEqual(self.used(), 1)
        common = tokens(0, 200)
        for turn in range(3):
            for number in range(20):
                engine.add(f"{turn}.{number}", common[: number * 10] + tokens(number, 50 + number), 30)
            engine.step()
            engine.step()
            engine.step()
            self.assertGreater(engine.workers[0]._of_worker.range.info().committed_pages, 8)
            engine.run()
            engine.check()
            self.balanced(engine)
            self.assertEqual(self.used(), 1)
        self.assertGreater(sum(engine.cached.values()), 2000)
        self.assertGreater(engine.balloon.counters.counts["lost_chunks"], 0)  # what used() has evicted

    def test_cached_pages_that_are_kept_are_used_again(self) -> None:
        engine = self.engine(extra={"share": False})
        engine.add("a", tokens(1, 400), 5)
        engine.run()
        self.assertEqual(engine.balloon.count(State.OFFERED), 7)
        engine.add("b", tokens(1, 400), 5)
        engine.run()
        engine.check()
        self.assertEqual(engine.cached["b"], 384)
        self.assertEqual(self.used(), 1)  # takes them
        engine.add("c", tokens(1, 400), 5)
        engine.run()
        engine.check()
        self.assertEqual(engine.cached["c"], 0)
        self.balanced(engine)

    def test_prompts_get_chunks_of_their_own(self) -> None:
        for share in (True, False):
            with self.subTest(share=share):
                engine = self.engine(extra={"share": share})
                for name in "ab":
                    engine.add(name, tokens(ord(name), 100), 60)
                while len(engine.cached) < 2:
                    engine.step()
                tables = [engine.scheduler.kv_cache_manager.get_block_ids(name)[0] for name in "ab"]
                used = [{engine.balloon.chunk_of(block) for block in blocks[:7]} for blocks in tables]
                self.assertEqual(used[0] & used[1], set())
                engine.run()
                engine.check()

    def test_a_burst_of_requests_gets_its_memory_at_once(self) -> None:
        engine = self.engine()
        for number in range(8):
            engine.add(str(number), tokens(number, 60), 2)
        while len(engine.cached) < 8:
            self.assertTrue(engine.step())
        self.assertLessEqual(engine.steps, 3, engine.describe())
        engine.run()
        engine.check()
        self.balanced(engine)

    def test_a_queue_of_requests_takes_the_steps_of_stock_vllm(self) -> None:
        steps, commits = {}, {}
        agent = Agent(pool=POOL.replace("32MiB", "128MiB"))  # the pressure stays low
        self.addCleanup(agent.stop)
        for kind, extra in (("stock", None), ("shared", {}), ("not shared", {"share": False})):
            engine = Engine(None if extra is None else agent.directory, extra=extra)
            for number in range(32):
                engine.add(str(number), tokens(number, CHUNK_TOKENS - 14), 15)
            engine.run()
            engine.check()
            steps[kind] = engine.steps - engine.empty
            if extra is not None:
                counts = engine.workers[0]._of_worker.counters.counts
                commits[kind] = counts["commit"] + counts.get("renew", 0)
                engine.close()
        self.assertEqual(steps, dict.fromkeys(steps, steps["stock"]))
        self.assertLessEqual(max(commits.values()), 48, commits)  # the prompts need 32, and the ends of the answers

    def test_the_first_tokens_of_a_burst_need_the_steps_of_stock_vllm(self) -> None:
        agent = Agent(pool=POOL.replace("32MiB", "128MiB"))  # the pressure stays low
        self.addCleanup(agent.stop)
        for share in (True, False):
            for size in (1, 4, 16):
                stock, gpool_ = (
                    self.first_steps(Engine(directory, extra={"share": share} if directory else None, **BURST), size)
                    for directory in (None, agent.directory)
                )
                for name, steps in gpool_.items():  # one step at the beginning commits the memory
                    self.assertLessEqual(steps, stock[name] + 1, (share, size, gpool_, stock))

    def first_steps(self, engine: Engine, size: int) -> Dict[str, int]:
        """Return the numbers of steps to the first tokens of requests that arrive at once, and close the engine."""
        found: Dict[str, int] = {}
        for number in range(size):
            engine.add(str(number), tokens(100 * size + number, 50), 20)
        while engine.step():
            for name in engine.answers:
                found.setdefault(name, engine.steps)
        engine.check()
        engine.close()
        return found

    def test_the_first_request_of_an_engine_that_does_not_share_waits_for_no_commit(self) -> None:
        engine = self.engine(extra={"share": False})
        for number in range(3):  # the engine keeps one chunk, whose first block is vLLM's null block
            engine.add(str(number), tokens(number, 2 * BLOCK_TOKENS), 20)
            engine.step()
            self.assertEqual(len(engine.answers.get(str(number), [])), 1, engine.describe())
            engine.run()
        engine.check()
        self.balanced(engine)

    def test_a_request_continues_a_prefix_in_the_chunk_that_is_never_released(self) -> None:
        """The cached blocks of the first chunk are among vLLM's free blocks, but the request takes them, too."""
        for share, full in ((False, False), (False, True), (True, True)):
            with self.subTest(share=share, full=full), self.agent.pool() as other:
                engine = self.engine(extra={"share": share})
                blocks = self.fill_pool(other) if full else []
                engine.add("a", tokens(1, 20), 20)
                engine.run(100)
                self.assertFalse(engine.balloon._is_empty(0), engine.describe())
                self.assertEqual(engine.balloon.count(State.OUT), engine.balloon.geometry.chunks - 1)
                engine.add("b", tokens(1, 20) + engine.answers["a"] + tokens(2, 24), 5)
                for _ in range(20 if full else 0):
                    engine.step()  # its growth is refused
                for block in blocks:
                    block.free()
                engine.run(100)
                engine.check()
                self.assertEqual(engine.cached["b"], 2 * BLOCK_TOKENS)
                engine.close()

    def test_most_steps_have_no_work_and_the_others_do_the_same_work(self) -> None:
        agent = Agent(pool=POOL.replace("32MiB", "128MiB"))  # the pressure stays low
        self.addCleanup(agent.stop)
        for share in (True, False):
            with self.subTest(share=share):
                engines = [Engine(agent.directory, extra={"share": share}) for _ in range(2)]
                traces = []
                for seed, engine in enumerate(engines):
                    scheduler = engine.connector._of_scheduler
                    with contextlib.ExitStack() as stack:
                        if seed:
                            stack.enter_context(mock.patch.object(scheduler, "_quiet_steps", return_value=0))
                        build = stack.enter_context(mock.patch.object(scheduler, "_build", wraps=scheduler._build))
                        traces.append(self.trace(engine, 1000 * seed))
                    engine.check()
                    self.balanced(engine)
                    self.assertEqual(build.call_count > engine.steps / 2, bool(seed), (build.call_count, engine.steps))
                    engine.close()
                self.assertEqual(*traces)

    def test_all_chunks_are_searched_after_some_time_whatever_steps_have_work(self) -> None:
        for prompt in range(20, 24):
            engine = self.engine()
            settle = mock.Mock(wraps=engine.balloon.settle)
            engine.add("a", tokens(1, prompt), 150)
            with (
                mock.patch.object(_scheduler, "LOOK_AT_ALL_STEPS", 50),
                mock.patch.object(engine.balloon, "settle", settle),
            ):
                engine.run()
            self.assertIn(sum(len(call.args) > 2 and call.args[2] for call in settle.call_args_list), (2, 3))

    def test_a_worker_ends_although_a_signal_handler_has_ended_a_step_between_two_instructions(self) -> None:
        for difference in (-1, 1):  # in the number of batches
            engine = self.engine()
            engine.add("a", tokens(1, 20), 5)
            engine.run()
            worker = engine.workers[0]._of_worker
            worker._running += difference
            worker.close()
            self.assertFalse(worker._thread.is_alive())
            self.assertIsNone(worker._chunks.take(False))

    def test_answers_alone_need_no_work(self) -> None:
        engine = self.engine()
        scheduler = engine.connector._of_scheduler
        engine.add("a", tokens(1, 20), 100)
        while not scheduler._quiet:
            self.assertTrue(engine.step())
        scheduler.hear(Answers({10**6: Answer(1, 0)}))
        self.assertGreater(scheduler._quiet, 0)
        engine.balloon.grow(engine.balloon.pool.get_num_free_blocks() + 1)
        scheduler.hear(Answers())
        self.assertEqual(scheduler._quiet, 0)  # the next step sends the operation
        engine.run()
        engine.check()

    def test_a_burst_is_not_examined_beyond_what_can_run(self) -> None:
        for share in (True, False):
            with self.subTest(share=share):
                engine = self.engine(extra={"share": share})
                for number in range(40):  # eight can run
                    engine.add(str(number), tokens(number, 60), 4)
                with mock.patch.object(Balloon, "claim", autospec=True, side_effect=Balloon.claim) as claim:
                    engine.step()
                self.assertLessEqual(claim.call_count, 10)
                engine.run()
                engine.check()
                self.balanced(engine)

    def test_one_more_chunk_than_needed_is_kept_while_requests_run(self) -> None:
        engine = self.engine(extra={"share": False})
        engine.add("a", tokens(1, 20), 100)
        for _ in range(10):
            engine.step()
        engine.balloon.grow(engine.balloon.pool.get_num_free_blocks() + 5)  # two chunks more than needed
        for _ in range(40):
            engine.step()
        self.assertEqual(engine.balloon.count(State.LIVE), 3, engine.describe())  # the request uses two
        engine.run()
        engine.check()
        self.balanced(engine)

    def test_memory_that_repeated_requests_need_is_kept(self) -> None:
        for share in (True, False):
            with self.subTest(share=share):
                engine = self.engine(extra={"share": share})
                for number in range(40):  # eight run at a time, and end together
                    engine.add(str(number), tokens(number, 40), 23)
                batches = self.batches_while_requests_wait(engine)
                self.assertNotIn("LEAVE", sum(batches, []), batches)
                engine.run()
                engine.check()
                self.balanced(engine)

    def test_a_request_after_a_burst_gets_only_its_own_memory(self) -> None:
        for share in (True, False):
            with self.subTest(share=share):
                engine = self.engine(extra={"share": share})
                for number in range(16):
                    engine.add(str(number), tokens(number, 40), 23)
                engine.run()
                engine.add("one", tokens(99, 70), 10)  # 80 tokens, 2 chunks
                batches = self.batches_while_requests_wait(engine)
                self.assertEqual(batches[0], ["COMMIT", "COMMIT"], batches)
                engine.run()
                engine.check()
                self.balanced(engine)

    def batches_while_requests_wait(self, engine: Engine) -> List[List[str]]:
        """Step until all requests run. Return the operations of each step that has some."""
        batches: List[List[str]] = []
        take_ops = Balloon.take_ops

        def note(balloon: Balloon) -> List[Op]:
            ops = take_ops(balloon)
            if ops:
                batches.append([op.action.name for op in ops])
            return ops

        with mock.patch.object(Balloon, "take_ops", note):
            while engine.scheduler.waiting:
                engine.step()
        return batches

    def trace(self, engine: Engine, seed: int) -> List[Any]:
        """Let requests arrive, end, and be aborted; return the state of the engine's memory after each step."""
        found = []
        for number in range(12):  # four of them wait
            engine.add(str(number), tokens(seed + number, 20 + 7 * (number % 2)), 70 if number % 3 else 100)
        while engine.step():
            if engine.steps == 40:
                engine.add("late", tokens(seed + 100, 90), 30)
            if engine.steps == 50:
                engine.scheduler.finish_requests("0", RequestStatus.FINISHED_ABORTED)
                del engine.prompts["0"]
            balloon = engine.balloon
            states = [(balloon.state(chunk), balloon.is_shared(chunk)) for chunk in range(balloon.geometry.chunks)]
            found.append((engine.steps, states, balloon.pool.get_num_free_blocks(), dict(balloon.counters.counts)))
        return found

    def test_layers_and_messages_cost_nothing_without_operations(self) -> None:
        connector = self.engine().workers[0]
        connector.bind_connector_metadata(NOTHING)
        self.assertFalse(connector.has_connector_metadata())  # vLLM then calls no function for each layer
        for orders in (NOTHING, Orders([Op(1, Action.COMMIT, 2)], 20, (7, 8)), Orders([], 20)):
            self.assertEqual(pickle.loads(pickle.dumps(orders)), orders)

    def test_a_full_cache_gives_a_burst_its_memory_at_once(self) -> None:
        for share in (True, False):
            with self.subTest(share=share):
                engine = self.engine(blocks=64, extra={"share": share})
                for number in range(8):
                    engine.add(f"old{number}", tokens(number, 130), 2)
                    engine.run()
                self.assertLessEqual(engine.balloon.count(State.OUT), 4 + share, engine.describe())  # a burst needs 8
                begin = engine.steps
                for number in range(8):
                    engine.add(str(number), tokens(100 + number, 60), 2)
                while not all(str(number) in engine.cached for number in range(8)):
                    self.assertTrue(engine.step())
                self.assertLessEqual(engine.steps - begin, 4, engine.describe())
                engine.run()
                engine.check()
                self.balanced(engine)

    def test_blocks_that_another_connector_sends_are_given_back_afterwards(self) -> None:
        for share in (True, False):
            with self.subTest(share=share):
                engine = self.engine(extra={"share": share})
                connector = engine.connector
                ended = connector.request_finished_all_groups

                def delayed(request: Any, blocks: Any, ended: Any = ended) -> Tuple[bool, None]:
                    ended(request, blocks)
                    return True, None

                with mock.patch.object(connector, "request_finished_all_groups", delayed):
                    engine.add("a", tokens(1, 300), 5)
                    while len(engine.answers.get("a", [])) < 5:
                        engine.step()
                for _ in range(5):  # idle but for the blocks that are being sent
                    self.assertTrue(engine.step())
                self.assertGreaterEqual(self.used(), 6)
                engine.sent.add("a")
                engine.run()
                self.balanced(engine)
                self.assertEqual(self.used(), len(self.engines))

    def test_new_pages_are_zeroed(self) -> None:
        with self.agent.pool() as pool, pool.alloc(PAGES - 2) as block:
            block.view().write(b"\xff" * ((PAGES - 2) * pool.page_bytes))  # NaN in each type
        engine = self.engine()
        engine.add("a", tokens(1, 100), 50)
        for _ in range(40):
            engine.step()
            worker = engine.workers[0]._of_worker
            for page in range(worker.geometry.pages):
                if worker.range.page_state(page) == gpool.PageState.COMMITTED:
                    self.assertFalse((worker._bytes(page).view(dtype=_worker.torch.int64) == -1).any())
        engine.run()
        engine.check()

    def test_a_request_that_does_not_fit_is_refused_at_the_start(self) -> None:
        with self.assertRaisesRegex(ValueError, "--max-model-len 16384 needs 257 pages, and pool 'p0' has 64"):
            self.engine(blocks=2048, max_model_len=16384)
        with self.assertRaisesRegex(
            ValueError, r"--max-model-len 2048 needs 66 pages \(33 for each of 2 ranks\), and pool 'p0' has 64"
        ):
            self.engine(blocks=2048, max_model_len=2048, workers=2)
        self.engine(blocks=2048, max_model_len=2048)

    def test_an_engine_without_a_size_of_its_cache_is_refused(self) -> None:
        for size in (None, 0):
            with self.assertRaisesRegex(ValueError, "--kv-cache-memory-bytes is not set or 0; set it to the maximum"):
                self.engine(kv_cache_memory_bytes=size)

    def test_the_pool_of_each_rank_is_checked_at_the_start(self) -> None:
        small = POOL.replace("p0", "small").replace("32MiB", "16MiB")
        other = POOL.replace("p0", "other").replace("512KB", "1MB")
        self.agent = Agent("--pool", small, "--pool", other)
        self.addCleanup(self.agent.stop)
        options: Dict[str, Any] = {"blocks": 2048, "workers": 2}
        for pools in (["p0", "small"], ["small", "p0"]):
            with self.assertRaisesRegex(
                ValueError, "--max-model-len 2048 needs 33 pages, and pool 'small' has 32; lower --max-model-len"
            ):
                self.engine(extra={"pool": pools}, max_model_len=2048, **options)
        with self.assertRaisesRegex(
            ValueError, "'p0' has pages of 524288 bytes and .*'other' has pages of 1048576 bytes.* the same page_size"
        ):
            self.engine(extra={"pool": ["p0", "other"]}, **options)
        self.engine(extra={"pool": ["p0", "small"]}, max_model_len=1984, **options).close()
        self.engines.pop()

    def test_an_engine_without_room_for_its_first_chunk_names_the_pool(self) -> None:
        with self.agent.pool() as pool, pool.alloc(PAGES):
            with self.assertRaisesRegex(
                gpool.NoRoom, "the first chunk of the KV cache needs 1 page of pool 'p0', which has 64: .*larger pool"
            ):
                self.engine()

    def test_reset(self) -> None:
        engine = self.engine()
        engine.add("a", tokens(1, 300), 5)
        engine.run()
        self.assertTrue(engine.connector.reset_cache())
        engine.run()
        engine.add("b", tokens(1, 300), 5)
        engine.run()
        engine.check()
        # vLLM's own reset counts the blocks that are in use, and so do its metrics.
        engine.add("c", tokens(2, 300), 40)
        for _ in range(10):
            engine.step()
        self.assertGreater(engine.balloon.pool.get_usage(), 0)
        self.assertTrue(engine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True))
        self.assertEqual(engine.balloon.pool.get_usage(), 0)
        engine.run()
        engine.check()
        self.assertEqual(engine.balloon.pool.get_usage(), 0)
        # The objects are still published, and are mapped again.
        self.assertEqual(engine.cached["b"], 300 // BLOCK_TOKENS * BLOCK_TOKENS)
        self.balanced(engine)


class Sharing(Simulated):
    def test_blocks_whose_hash_is_known_one_step_late_are_published(self) -> None:
        """With asynchronous scheduling, vLLM schedules a step before it knows the token that fills a block in it."""
        for late in (False, True):
            engine = self.engine()
            engine.add("a", tokens(late, BLOCK_TOKENS), 2 * CHUNK_TOKENS - BLOCK_TOKENS + 4)
            noted = self.noted_late(engine, late)
            self.assertEqual(noted, set(range(1, 1 + 2 * CHUNK_TOKENS // BLOCK_TOKENS)))
            self.assertEqual(engine.balloon.counters.counts, {"published_chunks": 2}, late)

    def noted_late(self, engine: Engine, late: bool) -> Set[int]:
        """Run an engine that learns the hash of each full block in the next step; return the full blocks."""
        sharing = engine.connector._of_scheduler._sharing
        original, noted = sharing.note, set()

        def note(request: Any, done: int, blocks: List[int]) -> None:
            place = done // BLOCK_TOKENS
            first = late and done % BLOCK_TOKENS == 0 and place not in noted
            noted.add(place)
            unknown = [request.block_hashes.pop()] if first else []
            original(request, done, blocks)
            request.block_hashes.extend(unknown)

        with mock.patch.object(sharing, "note", note):
            engine.run()
        return noted

    def test_a_prefix_outlives_its_engine_and_is_not_copied(self) -> None:
        prompt = tokens(1, 450)
        first = self.engine()
        first.add("a", prompt, 5)
        first.run()
        self.assertEqual(first.balloon.counters.counts, {"published_chunks": 7})
        with self.agent.pool() as pool:
            self.assertEqual(sum(info.pages for info in pool.objects()), 7)
        second = self.engine(blocks=512)
        second.add("b", prompt, 20)
        second.run()
        second.check()
        self.assertEqual(second.cached["b"], 7 * CHUNK_TOKENS)
        self.assertEqual(second.balloon.counters.counts["mapped_chunks"], 7)
        with self.agent.pool() as pool:
            self.assertEqual(sum(info.pages for info in pool.objects()), 8)  # the end of the second answer
        first.close()
        self.engines.remove(first)
        third = self.engine()
        third.add("c", prompt[:300] + tokens(2, 100), 20)
        third.run()
        third.check()
        self.assertEqual(third.cached["c"], 300 // BLOCK_TOKENS * BLOCK_TOKENS)
        self.balanced(third)

    def test_the_end_of_a_prefix_is_found(self) -> None:
        first, second = self.engine(), self.engine()
        for blocks in range(1, 10):
            prompt = tokens(blocks, blocks * BLOCK_TOKENS + 5)
            first.add(str(blocks), prompt, 5)
            first.run()
            second.add(str(blocks), prompt, 5)
            second.run()
            second.check()
            self.assertEqual(second.cached[str(blocks)], blocks * BLOCK_TOKENS)

    def test_what_is_published_last_is_offered_in_the_same_step(self) -> None:
        for workers in (1, 2):
            for refused in (False, True):
                engine = self.engine(workers=workers)
                engine.add("a", tokens(1, 300), 5)
                while len(engine.answers.get("a", [])) < 5:
                    engine.step()
                if refused:
                    plant(engine, Action.PUBLISH, lambda call: (0, gpool.NoRoom(28, "planted")))
                engine.step()  # the first one after the end of the request; the engine may now be stopped
                unplant(engine)
                self.assertEqual(self.used(), workers)
                engine.add("b", tokens(1, 300), 5)
                engine.run()
                engine.check()
                self.assertEqual(engine.cached["b"], 0)
                self.balanced(engine)
                engine.close()
                self.engines.remove(engine)

    def test_engines_of_other_models_find_nothing(self) -> None:
        first = self.engine()
        first.add("a", tokens(1, 300), 5)
        first.run()
        for other in ({"dtype": "bfloat16"}, {"seed": 1, "load_format": "dummy"}, {"max_model_len": 496}):
            second = self.engine(**other)
            second.add("b", tokens(1, 300), 5)
            second.run()
            second.check()
            self.assertEqual(second.cached["b"], 0)

    def test_a_false_object_under_a_right_name_is_refused(self) -> None:
        first = self.engine()
        first.add("a", tokens(1, 200), 5)
        first.run()
        with self.agent.pool() as pool:
            names = [info.name for info in pool.objects()]
            for name in names:
                pool.delete_object(name)
            first.close()
            self.engines.remove(first)
            for name in names:
                with pool.create_object(
                    name, gpool.ObjectClass.MUTABLE if name == names[0] else gpool.ObjectClass.PINNABLE
                ) as made:
                    made.alloc(1)
                    made.publish()
        second = self.engine()
        second.add("b", tokens(1, 200), 5)
        second.run()
        second.check()
        self.assertEqual(second.cached["b"], 0)

    def test_an_object_with_false_metadata_is_refused(self) -> None:
        first = self.engine()
        first.add("a", tokens(1, 200), 5)
        first.run()
        name_hash = first.hashes(tokens(1, 200))[0]
        digest = first.workers[0]._of_worker._namespace.digest
        with self.agent.pool() as pool:
            names = [info.name for info in pool.objects()]
            first.close()
            self.engines.remove(first)
            name = next(name for name in names if name.endswith(name_hash.hex()))
            other = (Filled(0, bytes(32)), None, None, None)
            far = (Filled(0, name_hash), Filled(1 << 31, name_hash), Filled(7, bytes(32)), None)
            for number, (value, cached) in enumerate(
                (
                    (b"", 0),
                    (digest, 0),
                    (digest + b"x", 0),
                    (digest + pack(far + far), 0),
                    (digest + pack(other), 0),
                    (digest + pack(far), BLOCK_TOKENS),  # contains the block, but the blocks after it do not exist
                )
            ):
                with self.subTest(value=value):
                    for info in list(pool.objects()):
                        pool.delete_object(info.name)
                    with pool.reserve_range(1) as memory:
                        memory.commit(0, 1)
                        self.fill(memory, tokens(1, 200))
                        memory.publish(0, 1, name, key=_worker.METADATA_KEY, value=value).close()
                        engine = self.engine()
                        engine.add(str(number), tokens(1, 200), 5)
                        engine.run()
                        engine.check()
                        self.assertEqual(engine.cached[str(number)], cached)
                        self.balanced(engine)
                        engine.close()
                        self.engines.remove(engine)

    def fill(self, memory: Any, prompt: List[int]) -> None:
        """Write the content of a prompt's first block."""
        words = torch.from_dlpack(memory.view("int64")).view(-1, BLOCK_TOKENS, SLOT)
        states = torch.tensor(states_of(prompt[:BLOCK_TOKENS]))
        for word in (0, SLOT // 2, SLOT - 1):
            words[0, :, word] = states + word

    def test_two_engines_find_what_one_would(self) -> None:
        found = {}
        for kind, count in (("stock", 1), ("gpool", 2)):
            engines = [self.engine() if kind == "gpool" else Engine(None) for _ in range(count)]
            found[kind] = 0
            for number in range(24):
                chosen = random.Random(number)
                prefix = tokens(chosen.randrange(6), 150)[: chosen.randrange(20, 150)]
                engine = engines[number % count]
                engine.add(str(number), prefix + tokens(100 + number, 40), 10)
                engine.run()
                engine.check()
                found[kind] += engine.cached[str(number)]
        self.assertGreater(found["stock"], 24 * BLOCK_TOKENS)
        self.assertGreaterEqual(found["gpool"], 0.98 * found["stock"])

    def test_an_engine_finds_what_another_one_is_still_using(self) -> None:
        first, second = self.engine(), self.engine()
        first.add("a", tokens(1, 200), 200)
        while "a" not in first.cached:
            first.step()
        first.step()
        second.add("b", tokens(1, 200), 5)
        second.run()
        self.assertEqual(second.cached["b"], 200 // CHUNK_TOKENS * CHUNK_TOKENS)
        first.run()
        first.check()
        second.check()

    def test_events_of_mapped_blocks_have_their_tokens(self) -> None:
        first = self.engine()
        first.add("a", tokens(1, 200), 5)
        first.run()
        second = self.engine(kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"))
        prompt = tokens(1, 100) + tokens(2, 50)
        published: List[Any] = []
        with mock.patch.object(second.scheduler.kv_event_publisher, "publish", published.append):
            second.add("b", prompt, 5)
            second.run()
        second.check()
        self.assertEqual(second.cached["b"], 100 // BLOCK_TOKENS * BLOCK_TOKENS)
        stored = [event for batch in published for event in batch.events if isinstance(event, BlockStored)]
        self.assertEqual(stored[0].token_ids, prompt[:BLOCK_TOKENS])
        for event in stored:
            self.assertEqual(len(event.token_ids), len(event.block_hashes) * BLOCK_TOKENS)

    def test_blocks_that_are_lost_in_use_are_computed_again(self) -> None:
        first = self.engine()
        first.add("a", tokens(1, 300), 5)
        first.run()
        second = self.engine()
        second.add("b", tokens(1, 300), 40)
        while "b" not in second.cached:
            second.step()
        self.assertEqual(second.cached["b"], 300 // BLOCK_TOKENS * BLOCK_TOKENS)
        worker = second.workers[0]._of_worker
        chunks = Planted(worker._chunks)
        chunks.lost_chunks = [sorted(chunks.pinned())[1]]
        with mock.patch.object(worker, "_check_at", 0.0), mock.patch.object(worker, "_chunks", chunks):
            second.step()
        self.assertEqual(second.balloon.counters.counts["lost_in_use"], 1)
        self.assertEqual(chunks.pinned(), [])
        second.run()
        second.check()
        self.balanced(second)

    def test_engines_compete_for_a_small_pool(self) -> None:
        for workers in (1, 2):
            for seed in range(SEEDS * 10, SEEDS * 10 + 3):
                for waits in (True, False):
                    with self.subTest(workers=workers, seed=seed, waits=waits):
                        self.compete(workers, seed, waits)

    def compete(self, workers: int, seed: int, waits: bool = True) -> List[Engine]:
        chosen = random.Random(seed)
        common = [tokens(100 * seed + place, chosen.randrange(50, 420)) for place in range(4)]
        engines = [self.engine(workers=workers) for _ in range(2)]
        for engine in engines:
            engine.waits = waits
        work: List[List[Tuple[List[int], int]]] = [[], []]
        for mine in work:
            for number in range(40):
                prefix = chosen.choice(common)
                prompt = prefix[: chosen.randrange(len(prefix))] + tokens(number, chosen.randrange(1, 100))
                mine.append((prompt[:430], chosen.randrange(1, 60)))
        number = 0
        until = time.monotonic() + SECONDS
        while any(work) or any(engine.scheduler.has_requests() for engine in engines):
            self.assertLess(time.monotonic(), until, [engine.describe() for engine in engines])
            for engine, mine in zip(engines, work):
                if mine and chosen.random() < 0.3:
                    number += 1
                    engine.add(str(number), *mine.pop())
                for _ in range(chosen.randrange(4)):
                    engine.step()
        for engine in engines:
            engine.check()
            self.balanced(engine)
        self.agent.poolctl("check")
        for engine in engines:
            engine.close()
            self.engines.remove(engine)
        return engines

    def two_engines(self, workers: int, waits: bool) -> List[Engine]:
        """Return engines of which one at a time has room for its requests. Their steps do not wait for memory."""
        self.enterContext(mock.patch.object(_scheduler, "PATIENCE_MS", 1))
        self.agent = Agent(pool=POOL.replace("32MiB", f"{10 * workers * 512}KiB"))
        self.addCleanup(self.agent.stop)
        engines = [self.engine(workers=workers) for _ in range(2)]
        for seed, engine in enumerate(engines):
            engine.waits = waits
            for number in range(2):
                engine.add(str(number), tokens(10 * seed + number, 430), 30)
        return engines

    def alternate(self, engines: List[Engine]) -> None:
        """Answer all requests. Few rounds of steps compute no token."""
        for _ in range(200):  # 120 tokens
            if sum(engine.step() for engine in engines) == 0:
                break
        for engine in engines:
            engine.check()
            self.balanced(engine)
        self.assertEqual(self.used(), sum(len(engine.workers) for engine in engines))  # the chunks that they keep
        while self.engines:
            self.engines.pop().close()

    def test_engines_that_need_the_same_memory_get_it_in_turn_at_any_speed(self) -> None:
        for workers in (1, 2):
            for waits in (True, False):
                with self.subTest(workers=workers, waits=waits):
                    self.alternate(self.two_engines(workers, waits))

    def test_memory_that_is_reserved_for_an_aborted_request_is_given_back(self) -> None:
        for others in (True, False):
            engines = self.two_engines(2, True)
            schedulers = [engine.connector._of_scheduler for engine in engines]
            for _ in range(100):
                if any(scheduler._chosen for scheduler in schedulers):
                    break
                for engine in engines:
                    engine.step()
            place = [bool(scheduler._chosen) for scheduler in schedulers].index(True)
            names = [schedulers[place]._chosen] if others else list("01")
            engines[place].scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)
            for name in names:
                del engines[place].prompts[name]
            self.alternate(engines)
            self.assertFalse(any(scheduler._reservations.numbers for scheduler in schedulers))

    def test_a_reservation_counts_on_cached_content_only_once(self) -> None:
        engine = self.engine(extra={"share": False})
        self.enterContext(mock.patch.object(_scheduler, "PATIENCE_MS", 1))
        engine.add("a", tokens(1, 4 * CHUNK_TOKENS), 1)
        engine.run()
        with self.agent.pool() as other:
            blocks = [other.alloc(1) for _ in range(PAGES - 5)]  # all except the engine's
            engine.add("b", tokens(1, 4 * CHUNK_TOKENS) + tokens(2, 150), 5)
            for _ in range(50):
                engine.step()
            scheduler = engine.connector._of_scheduler
            self.assertTrue(scheduler._stuck and scheduler._whole, engine.describe())
            for block in blocks:
                block.free()
        engine.run(100)
        engine.check()
        self.balanced(engine)
        self.assertEqual(self.used(), 1)

    def limit(self, pool: gpool.Pool, pages: int) -> None:
        """Set the quota of a session; 0: none."""
        self.agent.poolctl("limit", "--session", str(pool.session), "--limit", f"{pages} pages")

    def stuck_engine(self) -> Tuple[Engine, List[Any]]:
        """Return an engine with a request that needs seven pages, and the blocks of a process that leave four."""
        self.enterContext(mock.patch.object(_scheduler, "PATIENCE_MS", 1))
        engine = self.engine(extra={"share": False})
        other = self.agent.pool()
        self.addCleanup(other.close)
        blocks = [other.alloc(1) for _ in range(PAGES - 5)]
        engine.add("a", tokens(1, 430), 5)
        return engine, blocks

    def test_a_quota_of_the_scheduler_does_not_stop_the_workers(self) -> None:
        engine, blocks = self.stuck_engine()
        scheduler = engine.connector._of_scheduler
        self.limit(scheduler._pools[0], 4)
        while not scheduler._stuck:
            engine.step()
        for block in blocks:
            block.free()
        with self.assertLogs("vllm.gpool", "WARNING") as logs:
            engine.run(100)
        self.assertRegex(
            logs.output[0],
            rf"quota of the session is reached: 7 needed, 0 of 4 .*session {scheduler._pools[0].session}.*not reserved",
        )
        self.assertEqual(len(logs.output), 1)
        engine.check()
        self.balanced(engine)

    def test_a_quota_of_a_worker_that_is_too_small_for_a_request_is_logged(self) -> None:
        engine, blocks = self.stuck_engine()
        worker = engine.workers[0]._of_worker
        self.limit(worker.pool, 6)
        while not engine.connector._of_scheduler._stuck:
            engine.step()
        for block in blocks:
            block.free()
        with self.assertLogs("vllm.gpool", "WARNING") as logs:
            for _ in range(100):
                engine.step()
        self.assertRegex(logs.output[0], r"rank 0 cannot .* in session \d+: .*quota.*1 needed, 6 of 6")
        self.assertEqual(len(logs.output), 1)
        self.limit(worker.pool, 0)
        engine.run(100)
        engine.check()
        self.balanced(engine)

    def test_the_forward_pass_does_not_wait_for_operations(self) -> None:
        engine = self.engine()
        engine.add("a", tokens(1, CHUNK_TOKENS - 4), 24)
        while "a" not in engine.answers:
            engine.step()  # the chunk that the answer needs is committed, too
        engine.waits = False
        done = threading.Event()

        def delayed(call: Call) -> Result:
            if not done.is_set():
                self.assertIsNot(threading.current_thread(), threading.main_thread())
            done.wait()
            return call()

        plant(engine, Action.PUBLISH, delayed)
        while len(engine.answers.get("a", [])) < 24:
            engine.step()
        self.assertEqual(engine.balloon.count(State.PUBLISHING), 1, engine.describe())
        done.set()
        engine.run()
        engine.check()
        self.assertEqual(engine.balloon.counters.counts["published_chunks"], 2)
        self.balanced(engine)

    def test_an_error_of_an_operation_ends_the_engine(self) -> None:
        engine = self.engine()
        engine.add("a", tokens(1, CHUNK_TOKENS), 20)
        plant(engine, Action.PUBLISH, mock.Mock(side_effect=KeyError("planted")))
        with self.assertRaisesRegex(KeyError, "planted"):
            engine.run()

    def test_the_simulation_finds_errors(self) -> None:
        def without_reclaim(*arguments: Any) -> Planted:
            return Planted(original_chunks(*arguments), Action.RECLAIM, lambda call: (1, None))

        def shifted(worker: Any, packed: bytes) -> Any:
            content = original(worker, packed)
            return content[1:] + content[:1]

        original, original_chunks = _worker.Worker._content, _native.Chunks
        for where, name, planted in (
            (_native, "Chunks", without_reclaim),
            (_worker.Worker, "_content", shifted),
        ):
            with self.subTest(name), mock.patch.object(where, name, planted):
                with self.assertRaises((AssertionError, gpool.Error)):
                    for seed in range(5):
                        self.compete(1, seed)
            while self.engines:
                self.engines.pop().close()


class Statistics(unittest.TestCase):
    def test_beside_other_connectors(self) -> None:
        register()  # as vLLM does in each process
        register()
        counts = {"GpoolConnector": {"mapped_chunks": 2}}
        self.assertEqual(MultiConnector.build_kv_connector_stats(counts).reduce(), counts)


class Refusals(unittest.TestCase):
    def test_another_version_of_vllm(self) -> None:
        import vllm

        with mock.patch.object(vllm, "__version__", "0.33.1"):
            with self.assertRaisesRegex(ImportError, r"works with vLLM 0\.32, and this is vLLM 0\.33\.1"):
                _version.check_version()
        for version in ("0.32.0+cpu", "0.32.5", "0.32"):
            with mock.patch.object(vllm, "__version__", version):
                _version.check_version()
        for version in ("0.320.0", "1.32", "dev"):
            with mock.patch.object(vllm, "__version__", version):
                self.assertRaises(ImportError, _version.check_version)

    def test_settings(self) -> None:
        self.assertEqual(settings_of({"pool": ["a", "b"], "share": False}).pool, ["a", "b"])
        self.assertEqual(pool_name(settings_of({"pool": ["a", "b"]}), 1), "b")
        for extra, text in (
            ({"pools": "a"}, "unknown key 'pools'; GpoolConnector has .*tenant"),
            ({"share": 1}, "'share' is 1; it must be true or false"),
            ({"attach_timeout_ms": True}, "'attach_timeout_ms' is True; it must be a number"),
            ({"pool": 1}, "'pool' is 1; it must be a text or a list of texts or null"),
            ({"pool": [1]}, "must contain names"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                settings_of(extra)  # type: ignore[arg-type]
        with self.assertRaisesRegex(ValueError, "lists 1 pool, and rank 1 needs one"):
            pool_name(settings_of({"pool": ["a"]}), 1)

    def test_no_agent(self) -> None:
        with self.assertRaises(gpool.NotFound):
            Engine("/nonexistent", extra={"attach_timeout_ms": 10})

    def test_configuration(self) -> None:
        self.assertEqual(config_of("/x", {}).kv_transfer_config.kv_role, "kv_both")


if __name__ == "__main__":
    unittest.main()
