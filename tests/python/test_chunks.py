"""The chunks of an elastic range on which gpool.vllm executes a step's operations in one call.

Requirements: E2.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
import unittest
from queue import SimpleQueue
from typing import Any, Iterator, List, Tuple

from harness import AgentTest, array_of, gpool

from gpool import _native
from gpool._native import COMMIT, LEAVE, MAP, OFFER, PUBLISH, RECLAIM, RENEW

COUNT, PAGES = 8, 2
KEY = b"key"


class ChunksTest(AgentTest):
    def setUp(self) -> None:
        super().setUp()
        self.range, self.chunks = self.chunks_of(self.pool)

    def chunks_of(self, pool: gpool.Pool) -> Tuple[gpool.Range, Any]:
        made = pool.reserve_range(COUNT * PAGES, gpool.ObjectClass.EPHEMERAL, zero=True)
        return made, _native.Chunks(made.handle, pool, COUNT, PAGES, KEY, False)

    def done(self, *operations: Tuple[Any, ...]) -> None:
        self.assertEqual(self.chunks.execute(operations, 0), (len(operations), None))

    @contextlib.contextmanager
    def blocks(self, pool: gpool.Pool, count: int) -> Iterator[List[gpool.Block]]:
        """Allocate blocks of one page."""
        made = [pool.alloc(1, timeout_ms=20000) for _ in range(count)]
        yield made
        for block in made:
            with contextlib.suppress(gpool.Stale):  # it was freed
                block.free()

    def states(self, chunk: int) -> List[gpool.PageState]:
        return [self.range.page_state(chunk * PAGES + page) for page in range(PAGES)]


class Operations(ChunksTest):
    def test_pages_are_committed_offered_and_taken(self) -> None:
        self.done((COMMIT, 1), (COMMIT, 2), (OFFER, 1), (RECLAIM, 1), (OFFER, 2))
        self.assertEqual(self.states(1), [gpool.PageState.COMMITTED] * PAGES)
        with self.agent.pool() as other, self.blocks(other, other.page_count - PAGES) as blocks:
            self.assertEqual(self.chunks.execute([(RECLAIM, 1), (RECLAIM, 2), (LEAVE, 1)], 0), (1, None))
            done, error = self.chunks.execute([(RENEW, 1), (RENEW, 2), (LEAVE, 1)], 0)
            self.assertEqual((done, type(error)), (1, gpool.NoRoom))
            self.assertIn(f"cannot commit {PAGES} pages: ", str(error))
            self.assertEqual(error.oom_info.needed, PAGES)
            self.assertNotIn(gpool.PageState.COMMITTED, self.states(2))
            for block in blocks[:PAGES]:
                block.free()
            self.assertEqual(self.chunks.execute([(RENEW, 2)], 20000), (1, None))
        self.done((LEAVE, 1), (LEAVE, 2), (LEAVE, 3))
        self.assertEqual(self.range.info().committed_pages, 0)

    def test_a_refused_renewal_leaves_no_page(self) -> None:
        """Only one of the pages of the chunk was taken."""
        self.done((COMMIT, 1), (OFFER, 1))
        with self.agent.pool() as other, self.blocks(other, other.page_count - 1):
            done, error = self.chunks.execute([(RENEW, 1)], 0)
            self.assertEqual((done, type(error)), (0, gpool.NoRoom))
            self.assertEqual(self.range.info().committed_pages, 0)
            other.alloc(1, timeout_ms=20000).free()  # the page that was not taken before

    def test_adjacent_chunks_get_their_pages_together_or_one_by_one(self) -> None:
        self.done(*((COMMIT, chunk) for chunk in range(1, 5)))
        chunk_bytes = PAGES * self.pool.page_bytes
        array_of(self.range.view(shape=4 * chunk_bytes, offset=chunk_bytes))[:] = 255
        self.done(*((PUBLISH, chunk, b"%d" % chunk, b"", -1) for chunk in range(1, 5)))
        self.done(*((RENEW, chunk) for chunk in (1, 2, 3)), (RENEW, 6), (COMMIT, 5), (RENEW, 4))
        self.assertEqual(self.chunks.pinned(), [])
        for chunk in range(1, 7):
            self.assertEqual(self.states(chunk), [gpool.PageState.COMMITTED] * PAGES, chunk)
        self.assertFalse(array_of(self.range.view(shape=6 * chunk_bytes, offset=chunk_bytes)).any())
        self.done(*((LEAVE, chunk) for chunk in range(1, 7)))
        for name in b"1234":
            self.pool.delete_object(chr(name))
        with self.agent.pool() as other, self.blocks(other, other.page_count - 2 * PAGES):
            done, error = self.chunks.execute([(RENEW, chunk) for chunk in range(1, 5)], 0)
            self.assertEqual((done, type(error)), (2, gpool.NoRoom))  # the pool has room for two
            self.assertEqual(error.oom_info.needed, PAGES)
            self.assertEqual(self.range.info().committed_pages, 2 * PAGES)

    def test_objects_are_published_mapped_and_replaced(self) -> None:
        self.done((COMMIT, 1), (COMMIT, 2))
        self.done((PUBLISH, 1, b"one", b"first", -1), (PUBLISH, 2, b"two", b"second", 1))
        self.assertEqual(self.states(1), [gpool.PageState.SHARED] * PAGES)
        self.assertEqual(self.chunks.pinned(), [1, 2])
        with self.agent.pool() as other:
            there, chunks = self.chunks_of(other)
            pages, memory_class, pid, value = chunks.map(5, b"two")
            self.assertEqual((pages, memory_class, value), (PAGES, gpool.ObjectClass.EPHEMERAL, b"second"))
            self.assertEqual(pid, self.pool.open_object("two").info().pid)
            self.assertEqual(chunks.pinned(), [5])
            self.assertRaises(gpool.Busy, chunks.map, 5, b"one")
            self.assertRaises(gpool.NotFound, chunks.map, 6, b"three")
            self.assertEqual(chunks.pinned(), [5])
            self.assertEqual(chunks.execute([(LEAVE, 5), (COMMIT, 5), (LEAVE, 5)], 0), (3, None))
            self.assertRaises(gpool.Error, chunks.map, COUNT - 1, self.too_large())
            there.close()
        done, error = self.chunks.execute([(COMMIT, 3), (PUBLISH, 3, b"one", b"", -1), (LEAVE, 3)], 0)
        self.assertEqual((done, type(error)), (1, gpool.Stale))
        self.done((OFFER, 1), (OFFER, 1))
        self.assertEqual((self.chunks.pinned(), self.chunks.lost()), ([2], []))
        self.done((RECLAIM, 1), (RECLAIM, 1), (OFFER, 1), (OFFER, 2), (LEAVE, 3))
        with self.agent.pool() as other, self.blocks(other, other.page_count):
            done, error = self.chunks.execute([(RECLAIM, 2)], 0)
            self.assertEqual((done, type(error)), (0, gpool.Stale))
        self.done((RENEW, 1), (RENEW, 2))
        self.assertEqual(self.states(1), [gpool.PageState.COMMITTED] * PAGES)
        self.assertFalse(array_of(self.range.view(shape=4, offset=PAGES * self.pool.page_bytes)).any())

    def too_large(self) -> bytes:
        draft = self.pool.create_object("large", gpool.ObjectClass.PINNABLE)
        draft.alloc(2 * PAGES)
        draft.publish()
        self.addCleanup(draft.close)
        return b"large"

    def test_objects_that_cannot_be_pinned_are_refused(self) -> None:
        with self.pool.create_object("plain") as draft:
            draft.alloc(PAGES)
            draft.publish()
            with self.assertRaisesRegex(gpool.Error, "is not published with the class PINNABLE"):
                self.chunks.map(1, b"plain")
        self.pool.delete_object("plain")
        self.assertEqual(self.chunks.pinned(), [])
        self.done((COMMIT, 1))  # nothing is mapped there

    def test_objects_without_the_key(self) -> None:
        with self.pool.create_object("bare", gpool.ObjectClass.PINNABLE) as draft:
            draft.alloc(PAGES)
            draft.publish()
            self.assertEqual(self.chunks.map(1, b"bare")[3], b"")
            self.done((LEAVE, 1))


class Arguments(ChunksTest):
    def test_wrong_operations_are_refused_before_any_is_executed(self) -> None:
        for operation, kind, text in (
            ((COMMIT, COUNT), IndexError, f"chunk is {COUNT}; there are {COUNT} chunks"),
            ((COMMIT, -1), IndexError, "chunk is -1"),
            ((PUBLISH, 1, b"a", b"", COUNT), IndexError, f"follows is {COUNT}"),
            ((MAP, 1), ValueError, f"action is {MAP}"),
            ((99, 1), ValueError, "action is 99"),
            ((-1, 1), ValueError, "action is -1"),
            ((PUBLISH, 1), ValueError, "with no name"),
            ((COMMIT, 1, b"a", b""), ValueError, "with a name"),
            ((PUBLISH, 1, b"a\0b", b"", -1), ValueError, "null byte"),
            ((PUBLISH, 1, "a", b"", -1), TypeError, "bytes-like"),
            ([COMMIT, 1], TypeError, "is not a tuple"),
            ((COMMIT,), TypeError, "2"),
            ((COMMIT, 1 << 70), OverflowError, ""),
        ):
            with self.subTest(operation), self.assertRaisesRegex(kind, text):
                self.chunks.execute([(COMMIT, 1), operation], 0)
        self.assertRaises(TypeError, self.chunks.execute, 1, 0)
        self.assertRaises(IndexError, self.chunks.map, COUNT, b"a")
        self.assertRaises(TypeError, self.chunks.map, 0, "a")
        self.assertEqual(self.range.info().committed_pages, 0)

    def test_wrong_guards_are_refused(self) -> None:
        self.assertRaises(TypeError, _native.Chunks, None, self.pool, COUNT, PAGES, KEY, False)
        self.assertRaises(TypeError, _native.Chunks, self.range.handle, self.pool, COUNT, PAGES, "key", False)
        self.assertRaises(TypeError, _native.Chunks)
        with self.assertRaisesRegex(ValueError, "no guard of a range"):
            _native.Chunks(self.pool.handle, self.pool, COUNT, PAGES, KEY, False)
        with self.assertRaisesRegex(ValueError, "too many pages"):
            _native.Chunks(self.range.handle, self.pool, 1 << 31, 2, KEY, False)

    def test_views_and_closed_ranges_are_refused(self) -> None:
        self.done((COMMIT, 0))
        view = self.range.view(shape=1)
        self.assertRaises(gpool.Busy, self.chunks.execute, [(LEAVE, 0)], 0)
        self.assertRaises(gpool.Busy, self.chunks.map, 1, b"a")
        del view
        self.range.close()
        self.assertRaises(gpool.Closed, self.chunks.execute, [(COMMIT, 0)], 0)
        self.assertRaises(gpool.Closed, self.chunks.map, 0, b"a")
        self.assertRaises(gpool.Closed, self.chunks.lost)

    def test_references_are_balanced(self) -> None:
        name, value = b"name", b"value"

        def turn() -> None:
            self.done((COMMIT, 1), (PUBLISH, 1, name, value, -1), (LEAVE, 1))
            self.assertEqual(self.chunks.map(1, name)[3], value)
            self.assertEqual((self.chunks.pinned(), self.chunks.lost()), ([1], []))
            self.pool.delete_object("name")
            self.done((LEAVE, 1))
            self.assertRaises(gpool.NotFound, self.chunks.map, 1, name)
            self.assertEqual(type(self.chunks.execute([(OFFER, 1)], 0)[1]), gpool.Error)
            self.assertRaises(IndexError, self.chunks.execute, [(COMMIT, COUNT)], 0)
            self.assertRaises(TypeError, _native.Chunks, self.range.handle, self.pool, COUNT, PAGES, 1, False)
            self.chunks_again()

        things = (name, value, self.pool, self.range.handle, self.pool.handle, KEY, None)
        turn()
        gc.collect()
        before = [sys.getrefcount(each) for each in things[:-1]]
        for _ in range(50):
            turn()
        gc.collect()
        self.assertEqual([sys.getrefcount(each) for each in things[:-1]], before)
        self.assertEqual((self.range.handle.calls, self.pool.handle.calls), (0, 0))

    def chunks_again(self) -> None:
        _native.Chunks(self.range.handle, self.pool, COUNT, PAGES, KEY, True)


class Batches(ChunksTest):
    def setUp(self) -> None:
        super().setUp()
        self.served: SimpleQueue[Any] = SimpleQueue()
        self.go: SimpleQueue[Any] = SimpleQueue()  # results for finish()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()
        self.addCleanup(self.thread.join)
        self.addCleanup(self.chunks.stop)

    def serve(self) -> None:
        for served in iter(self.chunks.serve, None):
            self.served.put(served)
            self.chunks.finish(self.go.get())

    def test_batches_are_executed_in_order_and_return_themselves(self) -> None:
        self.assertIsNone(self.chunks.take(False))
        self.assertIsNone(self.chunks.take(True))
        batches = [object() for _ in range(20)]
        for number, batch in enumerate(batches):
            self.chunks.post(batch, [(OFFER if number % 2 else COMMIT, 1), (RECLAIM, 1)][: 1 + number % 2])
        for batch in batches:
            self.assertIs(self.chunks.take(True), batch)
        self.assertIsNone(self.chunks.take(False))
        self.assertEqual(self.states(1), [gpool.PageState.COMMITTED] * PAGES)
        self.assertTrue(self.served.empty())
        self.assertEqual(self.range.handle.calls, 0)

    def test_the_thread_gets_batches_that_fail_or_have_no_operations(self) -> None:
        with self.agent.pool() as other, self.blocks(other, other.page_count - PAGES):
            self.chunks.post("first", [(COMMIT, 0), (COMMIT, 2), (OFFER, 0)])
            self.chunks.post("second", None)
            self.chunks.post("third", [(OFFER, 0)])
            batch, (done, error) = self.served.get()
            self.assertEqual((batch, done, type(error)), ("first", 1, gpool.NoRoom))
            self.assertIn(f"cannot commit {PAGES} pages: ", str(error))
            self.assertIsNone(self.chunks.take(False))
            self.go.put(1)
            self.assertEqual(self.served.get(), ("second", None))
            self.assertEqual(self.chunks.take(True), 1)
            self.go.put(None)
            self.assertIsNone(self.chunks.take(True))
            self.assertEqual(self.chunks.take(True), "third")

    def test_content_that_was_lost_is_a_failure_without_an_exception(self) -> None:
        self.done((COMMIT, 1), (OFFER, 1))
        with self.agent.pool() as other, self.blocks(other, other.page_count):
            self.chunks.post(0, [(RECLAIM, 1)])
            self.assertEqual(self.served.get(), (0, (0, None)))
            self.go.put(1)
            self.assertEqual(self.chunks.take(True), 1)

    def test_one_thread_changes_the_chunks(self) -> None:
        self.chunks.post(0, None)
        self.served.get()
        self.done((COMMIT, 1))  # no batch is being executed
        self.go.put(1)
        self.assertEqual(self.chunks.take(True), 1)
        self.assertRaises(RuntimeError, self.chunks.finish, 1)

    def test_a_signal_handler_ends_a_wait(self) -> None:
        class Ended(Exception):
            pass

        def handler(*_: Any) -> None:
            raise Ended

        before = signal.signal(signal.SIGUSR1, handler)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        self.chunks.post(0, None)
        self.served.get()
        threading.Timer(0.05, signal.raise_signal, [signal.SIGUSR1]).start()
        self.assertRaises(Ended, self.chunks.take, True)
        self.go.put(1)
        self.assertEqual(self.chunks.take(True), 1)

    def test_what_is_wrong_is_refused_when_it_is_posted(self) -> None:
        for operations, kind in (
            ([(COMMIT, COUNT)], IndexError),
            ([(COMMIT,)], TypeError),
            (1, TypeError),
            ([(PUBLISH, 1)], ValueError),
        ):
            with self.subTest(operations):
                self.assertRaises(kind, self.chunks.post, 0, operations)
        self.done((COMMIT, 0))
        view = self.range.view(shape=1)
        self.assertRaises(gpool.Busy, self.chunks.post, 0, [(LEAVE, 0)])
        del view
        self.assertIsNone(self.chunks.take(True))
        self.assertEqual(self.range.handle.calls, 0)

    def test_a_range_stays_open_until_its_batches_are_taken(self) -> None:
        self.chunks.post(0, [(COMMIT, 1)])
        self.chunks.stop()
        self.thread.join()
        self.assertRaises(gpool.Busy, self.range.close)
        self.assertEqual(self.chunks.take(False), 0)
        self.assertRaises(RuntimeError, self.chunks.post, 0, None)
        self.range.close()

    def test_batches_that_are_not_taken_keep_no_references(self) -> None:
        batch, operations = object(), [(COMMIT, 1)]
        before = sys.getrefcount(batch)
        made, chunks = self.chunks_of(self.pool)
        for _ in range(10):
            chunks.post(batch, operations)
        self.assertEqual(sys.getrefcount(batch), before + 10)
        del chunks
        self.assertEqual(sys.getrefcount(batch), before)
        self.assertEqual(made.handle.calls, 0)


if __name__ == "__main__":
    unittest.main()
