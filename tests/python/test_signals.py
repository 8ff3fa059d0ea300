"""Signals while the main thread waits in a call, with a real agent."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import unittest
from typing import Callable, Iterator, List

from harness import ROOT, AgentTest, array_of, gpool

from gpool import _native

PLAIN = ROOT / "tests" / "fixtures" / "adapters" / "plain"


class Handled(Exception):
    """The exception that a handler raises."""


def while_it_waits(do: Callable[[], object]) -> threading.Thread:
    """Return a thread that calls this once the main thread waits in the library."""

    def look() -> None:
        while not _native.waits():
            pass
        do()

    thread = threading.Thread(target=look)
    thread.start()
    return thread


class Signals(AgentTest):
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
        self.pool.alloc(64, timeout_ms=-1).free()  # no earlier request has taken pages

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

    def test_waiting_for_an_agent(self) -> None:
        self.interrupt(lambda: gpool.Pool(directory="/nowhere/at/all", timeout_ms=-1))

    @contextlib.contextmanager
    def stopped_agent(self) -> Iterator[None]:
        """Stop the agent, so that calls which need it wait."""
        found = re.search(r"process (\d+), incarnation", self.agent.poolctl("version"))
        assert found
        os.kill(int(found[1]), signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(int(found[1]), signal.SIGCONT)

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
            self.assertEqual(cache.sequence_info(sequence).state, gpool.KvState.PREEMPTED)
            cache.resume(sequence)
            self.assertEqual(cache.sequence_info(sequence).tokens, 1000)

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
