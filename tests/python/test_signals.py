"""Signals while the main thread waits in a call, with a real agent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import traceback
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, Iterator, List, Set, Tuple

from harness import PACKAGE, ROOT, AgentTest, array_of, gpool

from gpool import _native

PLAIN = ROOT / "tests" / "fixtures" / "adapters" / "plain"


class Handled(Exception):
    """The exception that a handler raises."""


def calls_of_the_package() -> Set[str]:
    """Return the functions of the library that the package calls, by ctypes or in its module in C."""
    sources = [path for path in Path(PACKAGE, "gpool").rglob("*.py") if path.name != "_abi.py"]
    found: Set[str] = set()
    for path in (*sources, *(ROOT / "client" / "python" / "native").glob("*.[ch]")):
        text = path.read_text()
        found.update(re.findall(r"(?:library\(\)\.|lib\.|call\()(gpool_\w+)", text))
        for prefix, variable in re.findall(r'getattr\(library\(\), f"(gpool_\w+){(\w+)}"\)', text):
            caller = {"verb": "_call", "what": "_register"}[variable]
            found.update(prefix + name for name in re.findall(caller + r'\("(\w+)"', text))
    return found


def calls_with_checks() -> Set[str]:
    """Return the functions of the library whose documented errors include -EINTR: gpool_wait_check()."""
    found: Set[str] = set()
    for path in (ROOT / "client" / "gpool").glob("*.h"):
        for comment, name in re.findall(
            r"/\*((?:(?!\*/).)*)\*/\n(?:struct [^;]*;\n)?GPOOL_API [^;(]*?(gpool_\w+)\(", path.read_text(), re.S
        ):
            if "-EINTR" in comment.partition("Return:")[2]:
                found.add(name)
    return found


@contextlib.contextmanager
def stopped(process: int) -> Iterator[None]:
    """Stop a process."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def while_it_waits(do: Callable[[], object]) -> threading.Thread:
    """Return a thread that calls this once the main thread waits in the library."""

    def look() -> None:
        while not _native.waits():
            pass
        do()

    thread = threading.Thread(target=look)
    thread.start()
    return thread


# A program that exports an event, which it signals when it has read a line.
EXPORTER = """
import sys
sys.path.insert(0, sys.argv[1])
from harness import gpool
with gpool.Pool(directory=sys.argv[2]) as pool, pool.stream(host_signaled=True) as timeline, pool.stream() as stream:
    fence = timeline.record()
    stream.wait(fence)
    print(stream.record().export(event=True).hex(), flush=True)
    sys.stdin.readline()
    fence.signal()
"""

PER_THREAD = 2  # CU_STREAM_PER_THREAD
KV_STAGES = 8  # client/kv/kv.h

# The functions of the library that can wait without a limit, and the test in which Ctrl-C ends their wait.
WAITS = {
    "gpool_alloc": "test_allocating",
    "gpool_close": "test_closing_a_pool",
    "gpool_discard": "test_freeing_spilled_content",
    "gpool_event_next": "test_waiting_for_an_event",
    "gpool_fence_wait": "test_waiting_for_a_fence",
    "gpool_kv_destroy": "test_closing_a_cache",
    "gpool_kv_execute": "test_resuming_a_sequence",
    "gpool_kv_group_resume": "test_resuming_a_sequence",
    "gpool_kv_prefix_share": "test_sharing_a_prefix",
    "gpool_kv_resume": "test_resuming_a_sequence",
    "gpool_kv_sync": "test_copying_tables",
    "gpool_lora_acquire": "test_acquiring_an_adapter",
    "gpool_lora_acquire_async": "test_acquiring_an_adapter",
    "gpool_lora_wait_layer": "test_acquiring_an_adapter",  # the same wait, for fewer parts of the load
    "gpool_object_alloc": "test_allocating",
    "gpool_open": "test_waiting_for_an_agent",
    "gpool_pin": "test_restoring_spilled_content",
    "gpool_range_commit": "test_allocating",
    "gpool_range_create": "test_allocating",
    "gpool_range_destroy": "test_closing_ranges",
    "gpool_reservation_create": "test_allocating",
    "gpool_role_acquire": "test_waiting_for_a_role",
    "gpool_sleep": "test_going_to_sleep",
    "gpool_sliced_range_destroy": "test_closing_a_sliced_range",
    "gpool_sliced_range_grow": "test_allocating",
    "gpool_stream_close": "test_closing_a_stream",
    "gpool_stream_open": "test_opening_a_stream_after_a_thread_with_work",
    "gpool_wake": "test_waking",
}
# The other functions that the package calls, without `gpool_`. They end by themselves: they wait for an answer of the
# agent for at most 10 s, for the agent's decision about a page (pins.timeout), for a lock, or not at all.
ENDS = """
    address asleep copy device_info fence_close fence_done fence_export fence_import fence_record fence_signal
    fill free free_after kv_address kv_allocate kv_append kv_can_allocate kv_can_batch kv_compact kv_copy_blocks
    kv_create kv_fork kv_free kv_group_allocate kv_group_append kv_group_can_allocate kv_group_create_members
    kv_group_destroy kv_group_fork kv_group_free kv_group_grow kv_group_oom_info kv_group_preempt kv_group_span
    kv_grow kv_host_reserve kv_layout kv_offload kv_offload_info kv_oom_info kv_preempt kv_prefetch
    kv_prefix_allocate kv_prefix_evict kv_prefix_find kv_prefix_publish kv_prefix_tree kv_quant_error
    kv_sequence_info kv_stats kv_table kv_waiting kv_write last_error loan_end lora_create lora_destroy
    lora_find lora_info lora_last_error lora_prefetch lora_register lora_register_arrays lora_register_buffer
    lora_release lora_restrict lora_stats lora_target_name lora_unload lora_unregister lora_weights
    object_address object_close object_create object_delete object_entry object_find object_get object_info
    object_next object_open object_pin object_publish object_set object_unpin object_unpin_after oom_info
    page_bytes page_count pressure range_capture range_decommit range_info range_map range_offer range_open
    range_publish range_reclaim range_reserve range_resolve range_unmap release_unused reservation_release
    reservation_use role_check role_info role_release session sliced_range_create sliced_range_info
    sliced_range_shrink span_alloc span_free stats stream_native stream_wait touch unpin unpin_after version
    wait_check
""".split()
# Functions that return -EINTR only if the agent does not answer, because the package does not let them wait for pages.
NO_PAGES = {"gpool_kv_allocate", "gpool_kv_append", "gpool_reservation_release", "gpool_touch", "gpool_lora_create"}


def while_it_is_closed(pool: gpool.Pool, do: Callable[[], object]) -> threading.Thread:
    """Return a thread that calls this once another thread detaches from the pool."""

    def look() -> None:
        while not pool.closed:
            pass
        do()

    thread = threading.Thread(target=look)
    thread.start()
    return thread


def main_stack() -> List[str]:
    """Return the names of the functions that the main thread is in."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    return [entry.name for entry in traceback.extract_stack(frame)]


class Signals(AgentTest):
    @contextlib.contextmanager
    def unfinished_work(self) -> Iterator[Tuple[gpool.Stream, gpool.Fence]]:
        """Open a stream that waits for a fence, which the program must signal."""
        with self.pool.stream(host_signaled=True) as timeline, self.pool.stream() as stream:
            fence = timeline.record()
            stream.wait(fence)
            try:
                yield stream, fence
            finally:
                fence.signal()

    def interrupt(self, call: Callable[[], object]) -> None:
        """Check that Ctrl-C ends the call, which would never end otherwise."""
        thread = while_it_waits(lambda: os.kill(os.getpid(), signal.SIGINT))
        with self.assertRaises(KeyboardInterrupt):
            call()
        thread.join()

    def test_allocating(self) -> None:
        with self.pool.alloc(64):
            self.interrupt(lambda: self.pool.alloc(1, timeout_ms=-1))
            self.interrupt(lambda: self.pool.create_range(1, gpool.ObjectClass.EPHEMERAL, timeout_ms=-1))
            with self.pool.create_object("o") as draft:
                self.interrupt(lambda: draft.alloc(1, timeout_ms=-1))
            with self.pool.reserve_range(4) as elastic:
                self.interrupt(lambda: elastic.commit(0, 2, timeout_ms=-1))
            with self.pool.create_sliced_range(2, 4, 1) as sliced:
                self.interrupt(lambda: sliced.grow(1, timeout_ms=-1))
            self.interrupt(lambda: self.pool.create_reservation(1, timeout_ms=-1))
        self.pool.alloc(64, timeout_ms=-1).free()  # no earlier request has taken pages

    def test_waking(self) -> None:
        with self.pool.reserve_range(4) as elastic, self.agent.pool() as other:
            elastic.commit(0, 2)
            self.pool.sleep()
            with other.alloc(64):
                self.interrupt(lambda: self.pool.wake(-1))
                self.assertTrue(self.pool.asleep)
            self.pool.wake(-1)
            self.assertEqual(elastic.info().committed_pages, 2)

    def test_waiting_for_a_role(self) -> None:
        with self.agent.pool() as other, other.acquire_role("writer"):
            self.interrupt(lambda: self.pool.acquire_role("writer"))
            self.assertRaises(gpool.TimedOut, self.pool.acquire_role, "writer", 1)
        self.pool.acquire_role("writer").release()  # it is no longer a standby

    def test_asking_a_stopped_agent_for_a_role(self) -> None:
        with self.stopped_agent():
            self.interrupt(lambda: self.pool.acquire_role("writer"))
        self.pool.acquire_role("writer").release()

    def test_a_handler_during_a_log_function(self) -> None:
        def log(level: int, line: str) -> None:
            os.kill(os.getpid(), signal.SIGINT)  # the handler runs before the next line

        with self.agent.pool(log=log) as pool:
            # Each failed wait for an agent is logged by this thread.
            with self.stopped_agent(), self.assertRaises(KeyboardInterrupt):
                pool.acquire_role("writer")

    def test_waiting_for_an_event(self) -> None:
        self.interrupt(self.pool.event)
        while True:  # events before the agent receives the subscription are not delivered
            self.pool.acquire_role("reported").release()
            try:
                while self.pool.event(100).kind != gpool.EventKind.ROLE_FREED:
                    pass
                break
            except gpool.TimedOut:
                pass

    def test_waiting_for_a_fence(self) -> None:
        with self.pool.stream(host_signaled=True) as stream:
            fence = stream.record()
            self.interrupt(fence.wait)
            fence.signal()
            fence.wait()

    def test_closing_a_stream(self) -> None:
        with self.pool.stream(host_signaled=True) as timeline:
            stream, fence = self.pool.stream(), timeline.record()
            stream.wait(fence)
            self.interrupt(stream.close)
            self.assertFalse(stream.closed)
            fence.signal()
            stream.close()
            self.assertTrue(stream.closed)

    def test_closing_ranges(self) -> None:
        with self.pool.reserve_range(4) as elastic, self.pool.create_range(2, gpool.ObjectClass.EPHEMERAL) as whole:
            elastic.commit(0, 2)
            array_of(elastic.view(shape=16))[:] = 7
            with self.unfinished_work() as (_, fence):
                self.interrupt(elastic.close)
                self.interrupt(whole.close)
                self.assertFalse(elastic.handle.closed or whole.handle.closed)
                self.assertEqual(elastic.info().committed_pages, 2)
                self.assertTrue((array_of(elastic.view(shape=16)) == 7).all())
                fence.signal()
                elastic.close()
                whole.close()
                self.assertTrue(elastic.handle.closed and whole.handle.closed)

    def test_closing_a_sliced_range(self) -> None:
        for read_ahead in (0, 2):
            made = self.pool.create_sliced_range(2, 4, 1, read_ahead=read_ahead)
            with self.subTest(read_ahead), made as sliced, self.unfinished_work() as (_, fence):
                sliced.grow(2)
                self.interrupt(sliced.close)
                self.assertFalse(sliced.handle.closed)
                sliced.shrink(1)
                sliced.grow(3)
                fence.signal()
                sliced.close()
                self.assertTrue(sliced.handle.closed)

    def test_closing_a_cache(self) -> None:
        for options in ({}, {"prefixes": True, "pool_blocks": 32}):
            with self.subTest(options), self.pool.stream() as own:
                cache = self.pool.create_kv_cache(2, 8, 128, own, max_blocks=64, watermark_blocks=0, **options)
                with cache, self.unfinished_work() as (_, fence):
                    sequence = cache.allocate(100)
                    self.interrupt(cache.close)
                    self.assertFalse(cache.handle.closed)
                    cache.append(sequence, 20)
                    self.assertEqual(cache.sequence_info(sequence).tokens, 120)
                    fence.signal()
                    cache.close()
                    self.assertTrue(cache.handle.closed)

    def test_copying_tables(self) -> None:
        with self.unfinished_work() as (stream, fence):
            with self.pool.create_kv_cache(1, 1, 16, stream, max_blocks=64, watermark_blocks=0) as cache:
                for _ in range(KV_STAGES):  # until each part of host memory has a copy that has not ended
                    cache.allocate(1)
                    cache.sync()
                cache.allocate(1)
                self.interrupt(cache.sync)
                fence.signal()
                cache.sync()

    def test_going_to_sleep(self) -> None:
        with self.pool.reserve_range(4) as elastic, self.unfinished_work() as (_, fence):
            elastic.commit(0, 2)
            self.interrupt(self.pool.sleep)
            self.assertFalse(self.pool.asleep)
            elastic.commit(2, 1)  # the gate is open
            fence.signal()
            self.pool.sleep()
            self.assertTrue(self.pool.asleep)
            self.pool.wake()
            self.assertEqual(elastic.info().committed_pages, 3)

    def test_opening_a_stream_after_a_thread_with_work(self) -> None:
        """The next opened stream waits for the default stream of a thread that has ended."""
        with self.pool.stream(host_signaled=True) as timeline:
            fence = timeline.record()
            thread = threading.Thread(target=lambda: self.pool.stream(PER_THREAD).wait(fence))
            thread.start()
            thread.join()
            self.interrupt(self.pool.stream)
            fence.signal()
            self.pool.stream().close()

    def test_closing_a_pool(self) -> None:
        self.check_closing(lambda _: os.kill(os.getpid(), signal.SIGINT))

    def test_closing_a_pool_with_a_signal_to_another_thread(self) -> None:
        def interrupt(ended: threading.Event) -> None:
            # Before it waits there, the main thread would notice any signal.
            while not ended.is_set() and not {"in_another_thread", "join"} <= set(main_stack()):
                pass
            if not ended.is_set():
                signal.pthread_kill(threading.get_ident(), signal.SIGINT)

        self.check_closing(interrupt)

    def check_closing(self, interrupt: Callable[[threading.Event], object]) -> None:
        """The pool is closed, and detaches when its work has ended. A close would end the wait for a timeline, but not
        that for an event of another process.

        interrupt: called in another thread when the pool is closed; its argument is set at the end of the test.
        """
        ended = threading.Event()
        with subprocess.Popen(
            [sys.executable, "-c", EXPORTER, str(Path(__file__).parent), self.agent.directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as exporter:
            assert exporter.stdin and exporter.stdout
            pool = self.agent.pool()
            block = pool.alloc(3)
            pool.stream().wait(pool.fence_import(bytes.fromhex(exporter.stdout.readline())))
            thread = while_it_is_closed(pool, lambda: interrupt(ended))
            self.addCleanup(ended.set)
            self.assertRaises(KeyboardInterrupt, pool.close)
            thread.join()
            self.assertTrue(pool.closed)
            self.assertRaises(gpool.Closed, pool.alloc, 1)
            self.assertRaises(gpool.Closed, block.free)
            pool.close()  # does nothing
            exporter.stdin.write("signal the fence\n")
            exporter.stdin.flush()
            self.pool.alloc(64, timeout_ms=-1).free()  # the pool has detached

    def test_a_function_of_a_group(self) -> None:
        def send(order: bytes) -> bytes:
            if answers:
                return second.execute(order)
            os.kill(os.getpid(), signal.SIGINT)
            while True:  # as a program that waits for an answer
                pass

        options = {"max_blocks": 8, "watermark_blocks": 0}
        with self.pool.stream() as stream, self.pool.create_kv_cache(1, 1, 16, stream, **options) as first:
            with self.pool.create_kv_cache(1, 1, 16, stream, **options) as second:
                answers = False
                self.assertRaises(KeyboardInterrupt, gpool.KvGroup, [first, send], 16)
                answers = True
                with gpool.KvGroup([first, send], 16) as group:
                    group.free(group.allocate(32))
                    answers = False
                    self.assertRaises(KeyboardInterrupt, group.allocate, 32)
                    self.assertIsInstance(group.failures[0], KeyboardInterrupt)
                    self.assertRaises(gpool.Error, group.allocate, 32)  # the member is lost

    def test_waiting_for_an_agent(self) -> None:
        self.interrupt(lambda: gpool.Pool(directory="/nowhere/at/all", timeout_ms=-1))

    @contextlib.contextmanager
    def stopped_agent(self) -> Iterator[None]:
        """Stop the agent, so that calls which need it wait."""
        found = re.search(r"process (\d+), incarnation", self.agent.poolctl("version"))
        assert found
        with stopped(int(found[1])):
            yield

    def mover(self) -> int:
        """Return the process of the mover."""
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # the process has ended
                found = re.match(r"(\d+) \(gpoold-mover\) \S+ (\d+)", path.read_text())
                if found and int(found[2]) == self.agent.process.pid:
                    return int(found[1])
        raise AssertionError("no mover is running")

    def test_restoring_spilled_content(self) -> None:
        with self.pool.alloc(2, spill=True) as block:
            array_of(block.view())[:] = 7
            block.unpin()
            self.assertEqual(self.agent.evict(), 2)
            with self.stopped_agent():
                self.interrupt(block.pin)
                self.interrupt(block.view)
            with block.pin():
                self.assertTrue((array_of(block.view()) == 7).all())

    def test_freeing_spilled_content(self) -> None:
        with self.pool.alloc(2, spill=True) as block:
            block.unpin()
            with stopped(self.mover()), ThreadPoolExecutor() as threads:
                evicted = threads.submit(self.agent.evict)
                with self.assertRaises(gpool.TimedOut):
                    while True:  # until the eviction has begun
                        block.touch()
                        if evicted.done():  # it found the block only while it was touched
                            evicted = threads.submit(self.agent.evict)
                self.interrupt(block.free)
                self.interrupt(block.pin)
                os.kill(self.mover(), signal.SIGCONT)
                self.assertEqual(evicted.result(), 2)
            with block.pin():
                pass

    def test_sharing_a_prefix(self) -> None:
        options = {"max_blocks": 64, "watermark_blocks": 0, "prefixes": True, "model": b"m", "pool_blocks": 64}
        with self.unfinished_work() as (stream, fence):
            with self.pool.create_kv_cache(2, 8, 128, stream, **options) as cache:
                tokens = 16 * cache.layout.chunk_blocks
                sequence = cache.allocate(tokens)
                cache.prefix_publish(sequence, gpool.KvPrefix(range(tokens)))
                self.interrupt(lambda: cache.prefix_share(sequence))
                fence.signal()
                self.assertEqual(cache.prefix_share(sequence), cache.layout.chunk_blocks)
                cache.free(sequence)
                self.pool.delete_object(next(info.name for info in self.pool.objects()))

    def test_resuming_a_sequence(self) -> None:
        options = {"max_blocks": 256, "watermark_blocks": 0}
        with self.pool.stream() as stream, self.pool.create_kv_cache(2, 8, 128, stream, **options) as cache:
            sequence = cache.allocate(1000)
            cache.offload(sequence, to_pool=True)
            stream.record().wait()
            self.pool.alloc(1).free()  # notes that the copy is done
            self.assertGreater(self.agent.evict(), 0)
            with self.stopped_agent():
                self.interrupt(lambda: cache.resume(sequence))
                order = gpool._abi.gpool_kv_order(
                    size=ctypes.sizeof(gpool._abi.gpool_kv_order),
                    verb=gpool._abi.GPOOL_KV_ORDER_RESUME,
                    sequence=sequence,
                )
                self.interrupt(lambda: cache.execute(bytes(order)))
            self.assertEqual(cache.sequence_info(sequence).state, gpool.KvState.PREEMPTED)
            cache.resume(sequence)
            self.assertEqual(cache.sequence_info(sequence).tokens, 1000)
            cache.free(sequence)
            with gpool.KvGroup([cache], 16) as group:
                sequence = group.allocate(1000)
                cache.offload(sequence, to_pool=True)
                stream.record().wait()
                self.pool.alloc(1).free()
                self.assertGreater(self.agent.evict(), 0)
                with self.stopped_agent():
                    self.interrupt(lambda: group.resume(sequence))
                group.resume(sequence)

    def test_acquiring_an_adapter(self) -> None:
        with self.pool.adapters() as adapters:
            adapter = adapters.register("plain", str(PLAIN))
            with self.stopped_agent():  # the load waits for its pages
                self.interrupt(adapter.acquire)
                self.interrupt(adapter.acquire_async)
            with adapter.acquire() as acquired:
                acquired.wait_layer()

    def test_a_handler_that_raises_nothing_does_not_end_the_call(self) -> None:
        handled: List[int] = []
        before = signal.signal(signal.SIGUSR1, lambda number, frame: handled.append(number))
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        with self.pool.stream(host_signaled=True) as stream:
            fence = stream.record()

            def signal_and_reach() -> None:
                os.kill(os.getpid(), signal.SIGUSR1)
                while not handled:
                    pass  # it is handled while the call continues
                fence.signal()

            thread = while_it_waits(signal_and_reach)
            fence.wait()
            thread.join()
        self.assertEqual(handled, [signal.SIGUSR1])

    def test_any_exception_of_a_handler_ends_the_call(self) -> None:
        def handle(*_: object) -> None:
            raise Handled

        before = signal.signal(signal.SIGTERM, handle)
        self.addCleanup(signal.signal, signal.SIGTERM, before)
        thread = while_it_waits(lambda: os.kill(os.getpid(), signal.SIGTERM))
        self.assertRaises(Handled, self.pool.event)
        thread.join()

    def test_every_call_of_the_library_has_a_row(self) -> None:
        calls = calls_of_the_package()
        self.assertGreater(len(calls), 140)
        self.assertEqual(calls, {*WAITS, *(f"gpool_{name}" for name in ENDS)})
        self.assertEqual(len(calls), len(WAITS) + len(ENDS), "a function has two rows")
        for name in sorted(WAITS.values()):
            self.assertTrue(hasattr(self, name), name)
        self.assertEqual((calls_with_checks() & calls) - set(WAITS), NO_PAGES)

    def test_other_threads_wait_on(self) -> None:
        done: List[int] = []
        with self.agent.pool() as other, other.acquire_role("writer") as held:
            thread = threading.Thread(target=lambda: done.append(self.pool.acquire_role("writer").token))
            thread.start()
            self.interrupt(self.pool.event)
            self.assertEqual(done, [])
            held.release()
            thread.join()
        self.assertEqual(len(done), 1)


if __name__ == "__main__":
    unittest.main()
