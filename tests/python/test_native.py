"""The native module: its arguments and types, its counts under threads, and its references."""

from __future__ import annotations

import copy
import functools
import gc
import os
import subprocess
import sys
import threading
import tracemalloc
import unittest
import warnings
from typing import Any, Callable, List

from harness import BACKEND, AgentTest, gpool

from gpool import _native

ROUNDS = 2000  # of the test that looks for lost memory


def references(*objects: object) -> List[int]:
    return [sys.getrefcount(each) for each in objects]


class Arguments(AgentTest):
    def test_names_and_positions(self) -> None:
        alloc: Any = self.pool.alloc
        for call, text in (
            (lambda: alloc(), "alloc() is missing the required argument 'page_count'"),
            (lambda: alloc(1, 2, 3), "alloc() takes at most 2 positional arguments (3 given)"),
            (lambda: alloc(1, page_count=1), "alloc() got multiple values for argument 'page_count'"),
            (lambda: alloc(1, pages=1), "alloc() got an unexpected keyword argument 'pages'"),
            (lambda: alloc("1"), "page_count is '1', which is not an integer"),
            (lambda: alloc(1.0), "page_count is 1.0, which is not an integer"),
            (lambda: alloc(True), "page_count is True, which is not an integer"),
            (lambda: alloc(1, owner_id=True), "owner_id is True, which is not an integer"),
            (lambda: alloc(1, timeout_ms=True), "timeout_ms is True, which is not an integer"),
            (lambda: alloc(1, stream=1), "stream is 1, which is not a Stream"),
        ):
            with self.subTest(text), self.assertRaises(TypeError) as caught:
                call()
            self.assertEqual(str(caught.exception), text)

    def test_numbers_that_c_cannot_hold(self) -> None:
        alloc: Any = self.pool.alloc
        for call, text in (
            (lambda: alloc(-1), "page_count is -1; it must be from 1 to 64, the pages of the pool"),
            (lambda: alloc(2**32 + 1), "page_count is 4294967297; it must be from 1 to 64, the pages of the pool"),
            (lambda: alloc(1 << 70), "it must be from 1 to 64, the pages of the pool"),
            (lambda: alloc(1, owner_id=1 << 64), "owner_id is 18446744073709551616"),
            (lambda: alloc(1, timeout_ms=1 << 31), "timeout_ms is 2147483648; it must be from -1 to 2147483647"),
        ):
            with self.subTest(text), self.assertRaises(OverflowError) as caught:
                call()
            self.assertIn(text, str(caught.exception))
        with self.pool.reserve_range(2) as elastic:
            self.assertRaises(OverflowError, elastic.commit, 0, -1)
            self.assertRaises(OverflowError, elastic.reclaim, 1 << 32, 1)

    def test_names_and_numbers_of_sequences(self) -> None:
        with self.pool.stream() as stream, self.pool.create_kv_cache(1, 1, 64, stream, max_blocks=64) as made:
            cache: Any = made
            sequence = cache.allocate(tokens=20, owner_id=1 << 63, estimated_tokens=64, priority=3, continues=1)
            info = cache.sequence_info(sequence)
            self.assertEqual((info.tokens, info.blocks, info.owner_id, info.priority), (20, 4, 1 << 63, 3))
            slot = cache.append(sequence=sequence, tokens=2)
            self.assertEqual(cache.append(sequence), slot + 2)
            child = cache.fork(sequence=sequence)
            self.assertEqual(cache.table(sequence=child), cache.table(sequence)[:2])
            cache.free(sequence=child)
            for kind, call, text in (
                (TypeError, lambda: cache.allocate(), "allocate() is missing the required argument 'tokens'"),
                (TypeError, lambda: cache.allocate(1, 2), "allocate() takes at most 1 positional arguments (2 given)"),
                (TypeError, lambda: cache.free(), "free() is missing the required argument 'sequence'"),
                (TypeError, lambda: cache.free(sequence, 1), "free() takes at most 1 positional arguments (2 given)"),
                (TypeError, lambda: cache.fork(tokens=1), "fork() got an unexpected keyword argument 'tokens'"),
                (TypeError, lambda: cache.append("x"), "sequence is 'x', which is not an integer"),
                (TypeError, lambda: cache.append(sequence, 1.5), "tokens is 1.5, which is not an integer"),
                (OverflowError, lambda: cache.append(sequence, -1), "tokens is -1; it must be from 0 to 4294967295"),
                (OverflowError, lambda: cache.table(-1), "sequence is -1; it must be from 0 to 18446744073709551615"),
                (OverflowError, lambda: cache.allocate(1, priority=1 << 32), "priority is 4294967296; it must be "),
                (OverflowError, lambda: cache.allocate(1, estimated_tokens=-1), "estimated_tokens is -1; it must be "),
                (OverflowError, lambda: cache.allocate(1, owner_id=-1), "owner_id is -1; it must be from 0 to "),
            ):
                with self.subTest(text), self.assertRaises(kind) as caught:
                    call()
                self.assertIn(text, str(caught.exception))
            self.assertEqual((cache.stats().running, cache.handle.calls), (1, 0))

    def test_numbers_that_are_none_of_python(self) -> None:
        class Two:
            def __index__(self) -> int:
                return 2

        pages: Any = Two()
        with self.pool.alloc(pages) as block:
            self.assertEqual(block.page_count, 2)

    def test_integers_that_c_cannot_hold(self) -> None:
        """They are refused in all calls, of the native module and of ctypes, and in structures."""
        pool: Any = self.pool
        for call in (
            lambda: pool.reserve_range(1 << 32 | 1),
            lambda: pool.reserve_range(-1),
            lambda: pool.create_kv_cache(1 << 33 | 1, 1, 64, stream),
            lambda: cache.allocate(1 << 32 | 5),
            lambda: pool.create_object("o", expect_version=-1),
            lambda: pool.alloc(1, owner_id=1 << 64),
            lambda: pool.event(1 << 31),
        ):
            with self.pool.stream() as stream, self.pool.create_kv_cache(1, 1, 64, stream) as cache:
                self.assertRaisesRegex(OverflowError, r"^\w+ is -?\d+; it must be from -?\d+ to \d+$", call)
        with self.assertRaisesRegex(TypeError, "page_count is 1.5, which is not an integer"):
            pool.reserve_range(1.5)
        with self.assertRaisesRegex(TypeError, "page_count is True, which is not an integer"):
            pool.reserve_range(True)
        with self.assertRaisesRegex(TypeError, "owner_id is True, which is not an integer"):
            pool.create_sliced_range(1, 1, owner_id=True)
        with self.assertRaisesRegex(OverflowError, "salt is 18446744073709551616; it must be from 0 to "):
            pool.adapters(salt=(1, 1 << 64))

    def test_other_types(self) -> None:
        """Arguments of a wrong type or length are refused, and the error names them."""
        pool: Any = self.pool
        stream = pool.stream()
        cache = pool.create_kv_cache(1, 1, 64, stream)
        block, sliced, elastic = pool.alloc(1), pool.create_sliced_range(1, 1), pool.reserve_range(1)
        for call, kind, text in (
            (lambda: pool.open_object(b"a"), TypeError, "name is b'a', which is not a str"),
            (lambda: pool.find_objects("abc"), TypeError, "names is 'abc', which is not a sequence"),
            (lambda: pool.find_objects(["a", 1]), TypeError, "names[1] is 1, which is not a str"),
            (lambda: pool.create_kv_cache(1, 1, 64, None), TypeError, "stream is None, not a Stream"),
            (lambda: pool.adapters(salt=(1,)), ValueError, "salt has 1 numbers; it must have 2"),
            (lambda: pool.adapters(salt=5), TypeError, "salt is 5, which is not a tuple of 2 numbers"),
            (lambda: pool.adapters(warm=5), TypeError, "warm is 5, which is not a Pool"),
            (lambda: pool.adapters(5), TypeError, "cache_dir is 5, which is not a str"),
            (lambda: pool.fence_import("x" * 128), TypeError, "exported is 'xxxxxxxxxxxx...xxxxxxxxxxxxx', which is "),
            (lambda: pool.create_object("o", role=5), TypeError, "role is 5, which is not a Role"),
            (lambda: pool.open_object("o", role="r"), TypeError, "role is 'r', which is not a Role"),
            (lambda: pool.create_kv_cache(1, 1, 64, stream, model="m"), TypeError, "model is 'm', which is not bytes"),
            (lambda: gpool.KvGroup([5], 16), TypeError, "caches[0] is 5, which is neither a KvCache nor a function"),
            (lambda: gpool.KvGroup(5, 16), TypeError, "caches is 5, which is not a sequence"),
            (lambda: cache.copy_blocks(5), TypeError, "pairs is 5, which is not a sequence"),
            (lambda: cache.copy_blocks([(1,)]), TypeError, "pairs[0] is (1,), which is not a pair (from, to)"),
            (lambda: cache.can_batch([1, "x"]), TypeError, "tokens[1] is 'x', which is not an integer"),
            (lambda: cache.can_batch([1, -5]), OverflowError, "tokens[1] is -5; it must be from 0 to 4294967295"),
            (lambda: cache.can_batch(5), TypeError, "tokens is 5, which is not a sequence of integers"),
            (lambda: cache.prefix_find(gpool.KvPrefix(iter((1, 2**32)))), OverflowError, "ids[1] is 4294967296; it "),
            (lambda: cache.grow(cache.allocate(1), 1, most=0), gpool.Error, "most is 0; the minimum is 1"),
            (lambda: stream.wait(None), TypeError, "fence is None, which is not a Fence"),
            (lambda: cache.execute("x" * 144), TypeError, "order is 'xxxxxxxxxxxx...xxxxxxxxxxxxx', which is not byt"),
            (lambda: cache.prefix_find(5), TypeError, "prefix is 5, which is not a KvPrefix"),
            (lambda: cache.grow(1, policy=5), TypeError, "policy is 5, which is not a function"),
            (lambda: gpool.KvQuantError.of_writes("x"), TypeError, "data is 'x', which is not bytes"),
            (lambda: self.agent.pool(log=5), TypeError, "log is 5, which is not a function"),
            (lambda: block.view().write(5), TypeError, "data is 5, which is not bytes"),
            (lambda: block.view().write(b"", "x"), TypeError, "offset is 'x', which is not an integer"),
            (lambda: block.view().read("x"), TypeError, "offset is 'x', which is not an integer"),
            (lambda: sliced.view("x"), TypeError, "index is 'x', which is not an integer"),
            (lambda: elastic.publish(0, 1, "o", key="k", value="v"), TypeError, "value is 'v', which is not bytes"),
            (lambda: elastic.publish(0, 1, "o", key=5), TypeError, "key is 5, which is not a str"),
            (lambda: elastic.publish(0, 1, "o", follows=5), TypeError, "follows is 5, which is not an Object"),
        ):
            with self.subTest(text), self.assertRaises(kind) as caught:
                call()
            self.assertIn(text, str(caught.exception))
        block.free()

    def test_flags(self) -> None:
        flags = ("first_fit", "critical", "contiguous", "spill")
        for chosen in range(1 << len(flags)):
            options: Any = {name: bool(chosen >> bit & 1) for bit, name in enumerate(flags)}
            with self.subTest(options):
                self.pool.alloc(2, **options).free()
        with self.pool.alloc(60) as block:
            block.unpin()
            with self.assertRaises(gpool.NoRoom):
                self.pool.alloc(40, evict=False)
            block.pin()

    def test_only_the_package_makes_blocks(self) -> None:
        block: Any = gpool.Block
        self.assertRaisesRegex(TypeError, r"blocks are created by Pool.alloc\(\)", block)
        self.assertRaises(TypeError, object.__new__, block)
        self.assertRaises(TypeError, gpool.Pin)
        with self.pool.alloc(1) as made:
            self.assertRaises(TypeError, copy.copy, made)

    def test_what_is_not_initialized_is_refused(self) -> None:
        for kind, call in (
            (_native.Range, lambda made: made.commit(0, 1)),
            (_native.Range, lambda made: made.reclaim(0, 1)),
            (_native.Pool, lambda made: made.alloc(1)),
            (_native.Pool, lambda made: made._find([b"a"])),
            (_native.KvCache, lambda made: made.allocate(1)),
            (_native.KvCache, lambda made: made.append(1)),
            (_native.KvCache, lambda made: made.free(1)),
        ):
            with self.subTest(kind):
                self.assertRaises(AttributeError, call, kind())
        pool: Any = _native.Pool()
        with self.assertRaises(TypeError):
            pool.handle = 1
        self.assertRaises(TypeError, self.pool._find, [1])
        self.assertRaises(TypeError, self.pool._find, 1)
        self.assertRaises(TypeError, _native.Stream, 1, 1)
        self.assertRaises(TypeError, _native.Fence, self.pool, 1)
        self.assertRaises(ValueError, _native.Guard, 0, "nothing")
        self.assertRaises(TypeError, _native.Guard, 1, "an orphan", self.pool)
        setup: Any = _native.setup
        self.assertRaises(TypeError, setup, None, (int, gpool.Pin, gpool.Fence))
        self.assertRaises(KeyError, _native.bind, {})
        self.pool.alloc(1).free()  # the functions that were bound before are still bound


class Counts(AgentTest):
    def test_calls_and_references_are_balanced(self) -> None:
        """Each call ends its count and its references, whether it succeeds or fails."""
        pool, handle = self.pool, self.pool.handle
        other = self.agent.pool()
        abroad = other.stream(host_signaled=True)
        foreign = abroad.record()
        elastic = pool.reserve_range(4)
        stream = pool.stream(host_signaled=True)
        signaled = stream.record()
        signaled.signal()
        fence = stream.record()
        cache = pool.create_kv_cache(1, 1, 64, pool.stream(), max_blocks=64, max_sequences=4, watermark_blocks=0)
        preempted = cache.allocate(16)
        cache.preempt(preempted)

        def refused(call: Callable[[], object], *kinds: Any) -> None:
            with self.assertRaises(kinds or gpool.Error):
                call()

        def turn() -> None:
            with pool.alloc(2, timeout_ms=1) as block, block.pin() as same:
                self.assertIs(same, block)
                block.touch()
                self.assertGreater(block.address, 0)
                refused(lambda: block.unpin(after=foreign))
                block.pin().block.unpin(after=signaled)
            refused(block.free, gpool.Stale)
            refused(lambda: pool.alloc(65, timeout_ms=0))
            refused(lambda: pool.alloc(1, priority=9))
            refused(lambda: pool.alloc(1, stream=abroad))
            refused(lambda: elastic.decommit(0, 1, after=foreign))
            elastic.commit(0, 2, timeout_ms=1)
            elastic.offer(0, 1)
            self.assertEqual(elastic.reclaim(0, 3), b"\1\1\0")
            elastic.decommit(0, 2, after=signaled)
            for call in (
                lambda: elastic.commit(4, 1),
                lambda: elastic.decommit(4, 1),
                lambda: elastic.offer(0, 1),
                lambda: elastic.reclaim(4, 1),
            ):
                refused(call)
            sequence = cache.allocate(20, owner_id=7)
            self.assertEqual(cache.append(sequence) + 1, cache.append(sequence, 2))
            child = cache.fork(sequence)
            self.assertEqual(cache.table(child), cache.table(sequence))
            cache.free(child)
            cache.free(sequence)
            for call in (cache.free, cache.append, cache.fork, cache.table):
                refused(functools.partial(call, sequence), gpool.Stale)
                refused(functools.partial(call, 7))
                refused(functools.partial(call, -1), OverflowError)
            refused(lambda: cache.append(preempted), gpool.Preempted)
            refused(lambda: cache.allocate(1 << 31))
            refused(lambda: cache.allocate(1, owner_id=-1), OverflowError)
            self.assertFalse(fence.done)
            refused(lambda: fence.wait(0), gpool.TimedOut)
            signaled.wait()
            del call

        turn()
        gc.collect()
        things = (pool, handle, elastic, elastic.handle, stream, fence, signaled, cache, cache.handle)
        before = references(*things)
        for _ in range(50):
            turn()
        gc.collect()
        self.assertEqual(references(*things), before)
        self.assertEqual((handle.calls, handle.held, elastic.handle.calls, cache.handle.calls), (0, 0, 0, 0))
        fence.signal()
        elastic.close()
        other.close()

    def test_calls_of_a_cache_keep_no_memory(self) -> None:
        """A lost reference to a number or a list would add at least 32 bytes in each round."""
        with self.pool.create_kv_cache(1, 1, 64, self.pool.stream(), max_blocks=512, watermark_blocks=0) as cache:
            cache.allocate(300 * 16)  # the numbers of later blocks are no small integers, which Python keeps

            def turn() -> None:
                sequence = cache.allocate(1000, owner_id=1 << 40)
                cache.append(sequence, 20)
                cache.free(cache.fork(sequence))
                self.assertEqual(len(cache.table(sequence)), 64)
                cache.free(sequence)
                self.assertRaises(gpool.Stale, cache.append, sequence)

            turn()
            tracemalloc.start()
            try:
                turn()
                gc.collect()
                before = tracemalloc.get_traced_memory()[0]
                for _ in range(ROUNDS):
                    turn()
                gc.collect()
                self.assertLess(tracemalloc.get_traced_memory()[0] - before, 8 * ROUNDS)
            finally:
                tracemalloc.stop()

    def test_blocks_in_a_cycle_are_found(self) -> None:
        pool: Any = self.agent.pool()
        pool.kept = [pool.alloc(3), pool.stream(host_signaled=True).record(), pool.reserve_range(2)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del pool
            gc.collect()
        self.pool.alloc(64, timeout_ms=600000).free()

    def test_a_pool_closes_between_calls_of_threads_and_never_under_one(self) -> None:
        """Threads call until they find the pool closed, while another thread closes it as soon as it can."""
        for _ in range(10):
            pool = self.agent.pool()
            elastic = pool.reserve_range(4)
            cache = pool.create_kv_cache(1, 1, 64, pool.stream(), max_blocks=64, watermark_blocks=0)
            failed: List[BaseException] = []
            threads = [
                threading.Thread(target=self.work, args=(pool, elastic, cache, number, failed)) for number in range(3)
            ]
            for thread in threads:
                thread.start()
            while not pool.closed:
                try:
                    pool.close()
                except gpool.Busy:
                    pass
            self.assertRaises(gpool.Closed, pool.alloc, 1)
            self.assertRaises(gpool.Closed, elastic.commit, 0, 1)
            self.assertRaises(gpool.Closed, cache.allocate, 1)
            for thread in threads:
                thread.join()
            self.assertEqual(failed, [])
            self.assertEqual(pool.handle.calls, 0)

    @staticmethod
    def work(
        pool: gpool.Pool, elastic: gpool.Range, cache: gpool.KvCache, number: int, failed: List[BaseException]
    ) -> None:
        try:
            stream = pool.stream(host_signaled=True)
            for _ in range(30):
                pool.alloc(1, timeout_ms=600000).free()
                elastic.commit(number, 1, timeout_ms=600000)
                elastic.decommit(number, 1)
                sequence = cache.allocate(20)
                cache.append(sequence)
                cache.free(cache.fork(sequence))
                cache.free(sequence)
                fence = stream.record()
                fence.signal()
                fence.wait()
        except gpool.Closed:
            pass
        except BaseException as error:
            failed.append(error)

    def test_an_error_of_a_warning_does_not_end_the_program(self) -> None:
        program = (
            "import sys, warnings, gpool\n"
            "warnings.simplefilter('error')\n"
            f"with gpool.Pool(directory={self.agent.directory!r}) as pool:\n"
            "    pool.alloc(1)\n"
            "    pool.alloc(1).free()\n"
            "print('ended')\n"
        )
        ran = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.assertEqual((ran.returncode, ran.stdout), (0, "ended\n"), ran.stderr)
        self.assertIn("was deleted while pinned", ran.stderr)


class Constants(unittest.TestCase):
    def test_a_constant_ignores_its_arguments_and_holds_its_value(self) -> None:
        value = object()
        before = references(value)
        function = _native.constant(value)
        for _ in range(100):
            self.assertIs(function(), value)
            self.assertIs(function(1, [2], three=3), value)
        self.assertNotEqual(references(value), before)
        del function
        self.assertEqual(references(value), before)


class Forks(AgentTest):
    def test_every_object_of_the_parent_is_refused(self) -> None:
        block = self.pool.alloc(1)
        elastic = self.pool.reserve_range(2)
        stream = self.pool.stream(host_signaled=True)
        fence = stream.record()
        cache = self.pool.create_kv_cache(1, 1, 64, self.pool.stream(), max_blocks=64)
        sequence = cache.allocate(1)
        calls = (
            lambda: self.pool.alloc(1),
            block.pin,
            block.unpin,
            block.free,
            lambda: block.address,
            lambda: elastic.commit(0, 1),
            lambda: elastic.reclaim(0, 1),
            stream.record,
            fence.wait,
            fence.signal,
            lambda: fence.done,
            lambda: cache.allocate(1),
            *(functools.partial(call, sequence) for call in (cache.append, cache.fork, cache.free, cache.table)),
            self.pool.handle.__enter__,
            self.pool.handle.hold,
        )
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for call in calls:
                    self.assertRaises(gpool.Forked, call)
                if BACKEND == "cuda":
                    self.assertRaisesRegex(gpool.Error, "cannot be used in a forked child", self.agent.pool)
                    os._exit(0)
                with self.agent.pool() as mine:
                    mine.alloc(1, timeout_ms=600000).free()
                grandchild = os.fork()
                if grandchild == 0:
                    self.assertRaises(gpool.Forked, mine.alloc, 1)
                    os._exit(0)
                status = os.waitpid(grandchild, 0)[1]
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        fence.signal()
        block.free()
        elastic.close()
        cache.close()


if __name__ == "__main__":
    unittest.main()
