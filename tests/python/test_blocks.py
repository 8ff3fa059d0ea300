"""Blocks, spans, streams and errors, with a real agent; the content of pages is checked with numpy."""

from __future__ import annotations

import errno
import gc
import os
import threading
import unittest
import warnings

import numpy

from harness import BACKEND, AgentTest, array_of, gpool

PAGE = 512 << 10


class Blocks(AgentTest):
    def test_numpy_sees_the_pages(self) -> None:
        with self.pool.alloc(3, gpool.Usage.TEMP_BUFFER, owner_id=7) as block:
            array = array_of(block.view("float32", (3, 2, 64), offset=4096))
            array[:] = numpy.arange(3 * 2 * 64).reshape(3, 2, 64)
            again = array_of(block.view("float32", 3 * 2 * 64, offset=4096))
            self.assertEqual(again[200], 200)
            self.assertEqual(array_of(block.view(offset=4096 + 800, shape=4)).tobytes(), numpy.float32(200).tobytes())
            self.assertEqual(array.ctypes.data, block.address + 4096)
            self.assertEqual(block.nbytes, 3 * PAGE)

    def test_scattered_blocks_are_in_one_piece(self) -> None:
        blocks = [self.pool.alloc(1) for _ in range(64)]
        for block in blocks[::2]:
            block.free()
        with self.pool.alloc(32) as scattered:
            array = array_of(scattered.view("uint64"))
            array[:] = numpy.arange(array.size)
            self.assertEqual(array.size, 32 * PAGE // 8)
            self.assertTrue((array == numpy.arange(array.size)).all())
        for block in blocks[1::2]:
            block.free()

    def test_a_full_pool_says_what_is_missing(self) -> None:
        with self.pool.alloc(60):
            with self.assertRaises(gpool.NoRoom) as caught:
                self.pool.alloc(5)
        self.assertEqual(caught.exception.errno, errno.ENOSPC)
        self.assertIsInstance(caught.exception, OSError)
        self.assertEqual(caught.exception.oom_info, gpool.OomInfo(5, 4, 60, self.pool.session, 60))
        self.assertIn("not enough free or evictable pages", str(caught.exception))

    def test_a_shortage_names_the_holders(self) -> None:
        with self.pool.alloc(60, gpool.Usage.LORA_WEIGHT) as block:
            with self.assertRaises(gpool.NoRoom) as caught:
                self.pool.alloc(5)
            self.assertEqual(caught.exception.oom_info.holders, ())
            block.unpin()
            # The list is empty if the agent of a busy machine does not answer in time.
            shortage = next(info for info in (self.pool.oom_info() for _ in range(100)) if info.holders)
            self.assertEqual(shortage[:5], caught.exception.oom_info[:5])
            holder = shortage.holders[0]
            self.assertEqual((holder.session, holder.usage), (self.pool.session, gpool.Usage.LORA_WEIGHT))
            self.assertEqual((holder.needed_pages, holder.offered_pages), (0, 60))
            block.pin()

    def test_errors_name_value_and_limit(self) -> None:
        for call, text in (
            (
                lambda: self.pool.alloc(2048),
                "cannot allocate 2048 pages: page_count is 2048; it must be 1 to 64, the pages of the pool",
            ),
            (lambda: self.pool.alloc(1, priority=9), "priority is 9; the maximum is 3"),
            (
                lambda: self.pool.alloc_span(PAGE),
                f"nbytes is {PAGE}; a span must have 1 to {PAGE // 2} bytes, half a page",
            ),
            (lambda: self.pool.create_range(65), "page_count is 65; it must be 1 to 64, the pages of the pool"),
            (lambda: self.pool.acquire_role("x" * 64), "the name of the role has 64 bytes; the maximum is 63"),
            (lambda: self.pool.create_object("x" * 128), "the name of the object has 128 bytes; the maximum is 127"),
            (lambda: self.pool.event(-2), "timeout_ms is -2; the minimum is -1 (no limit)"),
        ):
            with self.assertRaises(gpool.Error) as caught:
                call()
            self.assertEqual(caught.exception.errno, errno.EINVAL)
            self.assertIn(text, str(caught.exception))
        with self.assertRaisesRegex(gpool.NotFound, "cannot connect to '/nowhere/attach'"):
            gpool.Pool(directory="/nowhere")

    def test_an_evicted_block_is_stale(self) -> None:
        block = self.pool.alloc(8)
        block.unpin()
        self.assertEqual(self.agent.evict(), 8)
        for call in (block.pin, block.view, block.touch, block.free):
            with self.assertRaises(gpool.Stale) as caught:
                call()
            self.assertEqual(caught.exception.errno, errno.ESTALE)

    def test_pins_are_counted_and_end_with_their_with(self) -> None:
        with self.pool.alloc(4) as block:
            block.unpin()
            with block.pin(), block.pin():
                self.assertEqual(self.agent.evict(), 0)
            with self.assertRaises(gpool.Error) as caught:
                block.unpin()
            self.assertEqual(caught.exception.errno, errno.EINVAL)
            self.assertEqual(self.agent.evict(), 4)

    def test_a_with_ends_the_block_of_an_evicted_one_too(self) -> None:
        with self.pool.alloc(4) as block:
            block.unpin()
            self.agent.evict()

    def test_spilled_content_comes_back(self) -> None:
        with self.pool.alloc(2, spill=True) as block:
            array_of(block.view("uint16"))[:] = 0x600D
            block.unpin()
            self.assertEqual(self.agent.evict(), 2)
            array = array_of(block.view("uint16"))
            self.assertTrue((array == 0x600D).all())

    # ---- views keep their content ----

    def test_a_view_pins(self) -> None:
        block = self.pool.alloc(4)
        array = array_of(block.view())
        block.unpin()
        self.assertEqual(self.agent.evict(), 0)
        with self.assertRaises(gpool.Error):
            block.unpin()  # the pin of the view does not belong to the program
        del array
        self.assertEqual(self.agent.evict(), 4)

    def test_a_freed_block_stays_for_its_views(self) -> None:
        block = self.pool.alloc(64)
        array = array_of(block.view())
        part = array[100:200]
        del array
        block.free()
        with self.assertRaises(gpool.NoRoom):
            self.pool.alloc(1)
        part[:] = 1
        del part
        self.pool.alloc(64).free()

    def test_a_pool_with_views_does_not_close(self) -> None:
        array = array_of(self.pool.alloc(1).view())
        with self.assertRaisesRegex(gpool.Busy, "1 view of its memory exists; delete"):
            self.pool.close()
        self.assertFalse(self.pool.closed)
        array[:] = 1
        del array
        self.pool.close()
        self.assertTrue(self.pool.closed)
        with self.assertRaises(gpool.Closed):
            self.pool.alloc(1)

    def test_an_exception_is_not_covered_by_the_views_in_its_frames(self) -> None:
        def work() -> None:
            with self.agent.pool() as pool:
                array = array_of(pool.alloc(1).view())
                raise KeyError(array.size)

        self.assertRaises(KeyError, work)

    def test_what_is_dropped_is_closed(self) -> None:
        pool = self.agent.pool()
        array = array_of(pool.alloc(5).view())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del pool
            gc.collect()
            self.assertRaises(gpool.NoRoom, self.pool.alloc, 64)
            array[:] = 1
            del array
            gc.collect()
        self.pool.alloc(64, timeout_ms=600000).free()

    def test_a_dropped_pin_is_told(self) -> None:
        with self.assertWarns(ResourceWarning):
            self.pool.alloc(1)

    def test_views_that_cannot_be(self) -> None:
        with self.pool.alloc(1) as block:
            for arguments in (
                {"shape": PAGE + 1},
                {"shape": (2, PAGE // 2), "offset": 1},
                {"dtype": "float32", "offset": 2},
                {"shape": (-1,)},
                {"shape": (-1, -1)},
                {"offset": -8},
                {"offset": PAGE + 1},
                {"shape": (1,) * 33},
                {"shape": (2**70, 0)},
                {"shape": (2**61, 0), "dtype": "float64"},
            ):
                with self.subTest(arguments), self.assertRaises(ValueError):
                    block.view(**arguments)  # type: ignore[arg-type]
            for arguments in ({"shape": (2.5,)}, {"shape": 2.0}, {"shape": "12"}, {"shape": (None,)}, {"offset": 0.0}):
                with self.subTest(arguments), self.assertRaises(TypeError):
                    block.view(**arguments)  # type: ignore[arg-type]
            with self.assertRaisesRegex(TypeError, "unknown dtype 'float80'"):
                block.view("float80")
            self.assertEqual(block.view(offset=PAGE).shape, (0,))
            block.unpin()
        self.assertEqual(self.pool.handle.views, 0)

    def test_a_view_without_elements_is_an_empty_array(self) -> None:
        with self.pool.alloc(1) as block:
            for shape, offset in ((0, 0), ((2, 0), 0), ((0, 3), 8), (None, PAGE)):
                with self.subTest(shape=shape, offset=offset):
                    view = block.view("float32", shape, offset)
                    arrays = [array_of(view)]
                    if BACKEND == "host":
                        self.assertNotEqual(view.__array_interface__["data"][0], 0)  # else numpy 1 makes no array of it
                        arrays.append(numpy.from_dlpack(view))
                    else:
                        self.assertEqual(view.__cuda_array_interface__["data"][0], 0)
                    for array in arrays:
                        self.assertEqual((array.shape, array.size, array.dtype), (view.shape, 0, numpy.float32))
                    del view, array, arrays
            view = block.view("float32", (1,) * 32)
            self.assertEqual(array_of(view).shape, view.shape)
            self.assertEqual(block.view(shape=numpy.int64(3)).shape, (3,))  # type: ignore[arg-type]
            del view

    def test_read_only(self) -> None:
        with self.pool.alloc(1) as block:
            view = block.view(readonly=True)
            self.assertFalse(array_of(view).flags.writeable)
            with self.assertRaisesRegex(BufferError, "read-only"):
                view.write(b"x")

    def test_bytes(self) -> None:
        with self.pool.alloc(1) as block:
            view = block.view()
            if BACKEND != "host":
                for call in (view.read, lambda: view.write(b"x")):
                    self.assertRaisesRegex(BufferError, f"CPU cannot access memory of the back end '{BACKEND}'", call)
                return
            view.write(b"\0\0abcd\0\0", offset=6)
            self.assertEqual(view.read(6, 8), b"\0\0abcd\0\0")
            with self.assertRaises(ValueError):
                view.read(PAGE - 1, 2)

    def test_dtypes(self) -> None:
        with self.pool.alloc(1) as block:
            for dtype in (
                "bool",
                "int8",
                "uint16",
                "float16",
                "float64",
                "complex64",
                numpy.int32,
                numpy.dtype("uint8"),
            ):
                view = block.view(dtype)
                self.assertEqual(array_of(view).dtype, numpy.dtype(dtype))
                self.assertEqual(view.nbytes, PAGE)
            for name, backend in (("__array_interface__", "host"), ("__cuda_array_interface__", "cuda")):
                self.assertFalse(hasattr(block.view("bfloat16"), name))
                self.assertEqual(hasattr(block.view(), name), BACKEND == backend)

    def test_numpy_makes_no_array_of_one_object(self) -> None:
        with self.pool.alloc(1) as block:
            if BACKEND != "host":
                for dtype in ("bfloat16", "uint8"):
                    self.assertRaisesRegex(BufferError, "CPU cannot access", numpy.asarray, block.view(dtype))
                return
            for dtype, bits in (("bfloat16", "uint16"), ("float8_e5m2", "uint8")):
                text = f"numpy has no type {dtype}; use torch.from_dlpack.view., or a view as {bits}"
                self.assertRaisesRegex(TypeError, text, numpy.asarray, block.view(dtype))
                self.assertRaisesRegex(TypeError, text, numpy.array, block.view(dtype))
            view = block.view("int32")
            view.write(b"\7\0\0\0")
            shared, copied = view.__array__(), view.__array__(copy=True)
            shared[0] += 1
            self.assertEqual((view.read(0, 4), copied[0], shared.shape), (b"\x08\0\0\0", 7, (PAGE // 4,)))
            self.assertEqual(view.__array__(numpy.dtype("float64"))[0], 8)

    # ---- spans ----

    def test_spans(self) -> None:
        with self.pool.alloc_span(1000) as span:
            self.assertEqual((span.nbytes % 256, span.address % 256), (0, 0))
            array = array_of(span.view("int32", 250))
            array[:] = 5
            self.assertRaises(gpool.Busy, span.free)
            del array
        self.assertRaises(gpool.Closed, span.view)
        with self.assertRaises(gpool.Error):
            self.pool.alloc_span(PAGE)

    # ---- streams and fences ----

    def test_streams(self) -> None:
        with self.pool.alloc(2) as block, self.pool.stream() as stream:
            stream.fill(block.address, 0x01020304, 2 * PAGE)
            stream.copy(block.address, block.address + PAGE, 4)
            fence = stream.record()
            fence.wait()
            self.assertTrue(fence.done)
            array = array_of(block.view("uint32", stream=stream))
            self.assertTrue((array == 0x01020304).all())

    def test_views_wait_for_their_stream(self) -> None:
        with self.pool.alloc(1) as block, self.pool.stream() as gate, self.pool.stream() as stream:
            manual = self.pool.stream(host_signaled=True)
            opened = manual.record()
            stream.wait(opened)
            stream.fill(block.address, 0x05050505, PAGE)
            view = block.view(stream=stream)
            threading.Thread(target=opened.signal).start()
            self.assertEqual(array_of(view)[PAGE - 1], 5)
            del gate

    def test_what_waits_for_a_fence(self) -> None:
        manual = self.pool.stream(host_signaled=True)
        fence = manual.record()
        self.assertFalse(fence.done)
        with self.assertRaises(gpool.TimedOut) as caught:
            fence.wait(1)
        self.assertIsInstance(caught.exception, TimeoutError)
        block = self.pool.alloc(64)
        block.free(after=fence)
        with self.assertRaises(gpool.NoRoom):
            self.pool.alloc(1)
        fence.signal()
        self.pool.alloc(64).free()

    def test_the_pin_of_a_view_ends_behind_its_stream(self) -> None:
        manual = self.pool.stream(host_signaled=True)
        opened = manual.record()
        with self.pool.alloc(4) as block, self.pool.stream() as stream:
            stream.wait(opened)
            view = block.view(stream=stream)
            block.unpin()
            del view
            meanwhile = self.agent.evict()
            opened.signal()
            self.assertEqual(meanwhile, 0)
            stream.synchronize()
            self.assertEqual(self.agent.evict(), 4)

    def test_fences_of_other_processes(self) -> None:
        manual = self.pool.stream(host_signaled=True)
        fence = manual.record()
        with self.agent.pool() as other:
            with self.assertRaises(gpool.Error):
                self.pool.fence_import(fence.export())  # exported by this process
            imported = other.fence_import(fence.export())
            self.assertFalse(imported.done)
            fence.signal()
            imported.wait()
            imported.close()
            with self.assertRaises(ValueError):
                other.fence_import(b"short")

    def test_a_closed_stream(self) -> None:
        stream = self.pool.stream()
        stream.close()
        stream.close()
        self.assertRaises(gpool.Closed, stream.record)

    # ---- the pool ----

    def test_what_a_pool_tells(self) -> None:
        self.assertEqual((self.pool.page_bytes, self.pool.page_count), (PAGE, 64))
        self.assertEqual(self.pool.device[:3], ("p0", BACKEND, 0))
        self.assertEqual(self.pool.device.host_pointer, BACKEND == "host")
        before = self.pool.stats()
        self.pool.alloc(2).free()
        self.assertEqual(self.pool.stats().allocations, before.allocations + 1)
        self.assertEqual(len(before.refill_ns), 32)
        self.assertIn(self.pool.pressure, gpool.Pressure)
        self.assertTrue(gpool.version().startswith("0."))

    def test_attaching_where_nobody_is(self) -> None:
        with self.assertRaisesRegex(gpool.NotFound, "cannot connect to '/nowhere/attach'"):
            gpool.Pool(directory="/nowhere")
        with self.assertRaises(gpool.NotFound) as caught:
            self.agent.pool("missing")
        self.assertEqual(caught.exception.errno, errno.ENXIO)

    def test_an_observer_has_no_pages(self) -> None:
        with self.agent.pool(observer=True) as observer:
            self.assertIsNone(observer.device.ordinal)
            with self.assertRaises(gpool.Error):
                observer.alloc(1)

    def test_the_child_of_a_fork_gets_an_error(self) -> None:
        block = self.pool.alloc(1)
        view = block.view()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                block.touch()
            except gpool.Forked:
                del view
                self.pool.close()
                if BACKEND == "cuda":  # the driver cannot be used in a forked child
                    self.assertRaisesRegex(gpool.Error, "cannot be used in a forked child", self.agent.pool)
                else:
                    with self.agent.pool() as mine:
                        mine.alloc(1).free()
                status = 0
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        array_of(view)[:] = 7
        del view
        block.free()

    def test_threads(self) -> None:
        failed = []

        def work(number: int) -> None:
            try:
                for turn in range(50):
                    with self.pool.alloc(1 + turn % 3, timeout_ms=600000) as block:
                        array = array_of(block.view("uint32"))
                        array[:] = number
                        assert (array == number).all()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])
        self.assertEqual(self.pool.handle.views, 0)

    def test_a_pool_is_not_closed_under_a_call(self) -> None:
        manual = self.pool.stream(host_signaled=True)
        fence = manual.record()
        waits = threading.Thread(target=fence.wait)
        waits.start()
        while self.pool.handle.calls == 0:
            pass
        self.assertRaises(gpool.Busy, self.pool.close)
        fence.signal()
        waits.join()


class Reservations(AgentTest):
    arguments = ["--set", "lease.initial_pages=0", "--set", "lease.batch_pages=1", "--set", "lease.batch_most=1"]

    def test_reserved_pages_are_taken_over(self) -> None:
        other = self.agent.pool()
        self.addCleanup(other.close)
        number = self.pool.create_reservation(60)
        elastic = other.reserve_range(64)
        with self.assertRaises(gpool.NoRoom):
            elastic.commit(0, 40)
        with other.use_reservation(number):
            elastic.commit(0, 40)
        with self.assertRaises(gpool.NotFound), other.use_reservation(number):
            elastic.commit(40, 21)
        self.assertEqual(other.release_reservation(number), 20)
        self.assertEqual(self.pool.release_reservation(number), 0)
        elastic.commit(40, 20)
        with self.assertRaises(gpool.NoRoom) as caught:
            self.pool.create_reservation(9)
        self.assertEqual(caught.exception.oom_info.needed, 9)
        self.assertEqual(self.pool.create_reservation(4, timeout_ms=600000, duration_ms=1) >> 48, self.pool.session)

    def test_uses_can_be_nested(self) -> None:
        other = self.agent.pool()
        self.addCleanup(other.close)
        outer, inner = self.pool.create_reservation(40), self.pool.create_reservation(20)
        elastic = other.reserve_range(64)
        with other.use_reservation(outer):
            with other.use_reservation(inner):
                elastic.commit(0, 20)
            elastic.commit(20, 30)  # too many for the inner reservation, and for the rest of the pool
            with other.use_reservation(0), self.assertRaises(gpool.NoRoom):
                elastic.commit(50, 5)  # the pool has 4
            with self.assertRaises(gpool.NotFound), other.use_reservation(inner):
                elastic.commit(50, 1)
            elastic.commit(50, 10)
        elastic.commit(60, 4)


if __name__ == "__main__":
    unittest.main()
