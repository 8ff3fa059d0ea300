"""DLPack: the content of capsules, and the end of their pins. numpy consumes some capsules; consumers with other
properties are emulated with ctypes.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import unittest
from typing import Any, Optional

import numpy

from harness import BACKEND, AgentTest, array_of, gpool

from gpool import _dlpack

PAGE = 512 << 10
HERE, ELSEWHERE = ((2, 0), (1, 0)) if BACKEND == "cuda" else ((1, 0), (2, 0))
VERSIONED = numpy.lib.NumpyVersion(numpy.__version__) >= "2.1.0"

pointer_of: Any = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
rename: Any = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)
USED = b"used_dltensor"


class Taker:
    """A library that takes a capsule and calls the deleter on request."""

    def __init__(self, view: gpool.View, version: Optional[Any] = (1, 0), **arguments: Any) -> None:
        capsule = view.__dlpack__(max_version=version, **arguments)
        self.kind: Any = _dlpack._Managed if version is None else _dlpack._Versioned
        self.address = pointer_of(capsule, b"dltensor" if version is None else b"dltensor_versioned")
        self.managed = self.kind.from_address(self.address)
        rename(capsule, USED)

    def drop(self) -> None:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.managed.deleter)(self.address)


class DLPack(AgentTest):
    def test_layout_is_that_of_dlpack(self) -> None:
        # the size in dlpack.h, on 64-bit systems
        self.assertEqual(ctypes.sizeof(_dlpack._Tensor), 48)
        self.assertEqual(
            (_dlpack._Tensor.shape.offset, _dlpack._Tensor.byte_offset.offset, _dlpack._Tensor.code.offset),
            (24, 40, 20),
        )
        self.assertEqual((ctypes.sizeof(_dlpack._Managed), _dlpack._Managed.deleter.offset), (64, 56))
        self.assertEqual((ctypes.sizeof(_dlpack._Versioned), _dlpack._Versioned.tensor.offset), (80, 32))

    def test_numpy_takes_one(self) -> None:
        block = self.pool.alloc(2)
        array_of(block.view("int32", 30, offset=64))[:] = numpy.arange(30)
        array = numpy.from_dlpack(block.view("int32", (2, 3, 5), offset=64))
        self.assertEqual(array.sum(), 435)
        self.assertEqual(array.strides, (60, 20, 4))
        self.assertEqual(array.flags.writeable, VERSIONED)
        self.assertEqual(array.ctypes.data, block.address + 64)
        block.unpin()
        self.assertEqual(self.agent.evict(), 0)
        with self.assertRaises(gpool.Busy):
            self.pool.close()
        del array
        self.assertEqual(self.agent.evict(), 2)
        self.assertEqual(self.pool.handle.views, 0)

    def test_numpy_and_one_that_is_read_only(self) -> None:
        """numpy before 2.1 requests no version, and the unversioned form cannot mark a tensor read-only: the export is
        refused."""
        with self.pool.alloc(1) as block:
            if VERSIONED:
                self.assertFalse(numpy.from_dlpack(block.view(readonly=True)).flags.writeable)
            else:
                self.assertRaises(BufferError, numpy.from_dlpack, block.view(readonly=True))

    def test_numpy_refuses_what_it_does_not_know(self) -> None:
        """The capsule is discarded while an exception is raised. The exception is unchanged, and the next export ends
        the capsule's pin.
        """
        with self.pool.alloc(1) as block:
            with self.assertRaises((RuntimeError, BufferError, TypeError)):
                numpy.from_dlpack(block.view("bfloat16"))
            gc.collect()
            self.assertEqual(self.pool.handle.views, 0)

    def test_what_a_taker_sees(self) -> None:
        with self.pool.alloc(1) as block:
            for version in (None, (1, 0), (1, 1), (2, 0)):
                taker = Taker(block.view("bfloat16", (4, 1, 6), offset=32), version)
                tensor = taker.managed.tensor
                self.assertEqual(tensor.data, block.address + 32)
                self.assertEqual((tensor.device_type, tensor.device_id), HERE)
                self.assertEqual((tensor.ndim, tensor.byte_offset), (3, 0))
                self.assertEqual((tensor.code, tensor.bits, tensor.lanes), (4, 16, 1))
                self.assertEqual((tensor.shape[:3], tensor.strides[:3]), ([4, 1, 6], [6, 6, 1]))
                if version is not None:
                    self.assertEqual((taker.managed.major, taker.managed.flags), (1, 0))
                taker.drop()
            taker = Taker(block.view(readonly=True))
            self.assertEqual(taker.managed.flags, 1)
            taker.drop()
            self.assertEqual(block.view().__dlpack_device__(), HERE)

    def test_the_deleter_ends_the_pin(self) -> None:
        for version in (None, (1, 0)):
            block = self.pool.alloc(4)
            takers = [Taker(block.view(), version) for _ in range(3)]
            block.unpin()
            for taker in takers:
                self.assertEqual(self.agent.evict(), 0)
                taker.drop()
            self.assertEqual(self.agent.evict(), 4)
            self.assertEqual(self.pool.handle.views, 0)

    def test_the_deleter_may_be_called_by_any_thread_and_in_any_state(self) -> None:
        block = self.pool.alloc(1)
        taker = Taker(block.view())
        thread = threading.Thread(target=taker.drop)
        thread.start()
        thread.join()
        self.assertEqual(self.pool.handle.views, 0)

        class Tensor:
            """An object that is collected while an exception is raised."""

            def __init__(self, view: gpool.View) -> None:
                self.taker = Taker(view)

            def __del__(self) -> None:
                self.taker.drop()

        with self.assertRaises(ZeroDivisionError):
            (Tensor(block.view()), 1 // 0)
        self.assertEqual(self.pool.handle.views, 0)
        block.free()

    def test_capsules_that_nobody_takes(self) -> None:
        block = self.pool.alloc(4)
        block.view().__dlpack__()
        capsule = block.view().__dlpack__(max_version=(1, 0))
        block.unpin()
        self.assertEqual(self.pool.handle.views, 1)
        self.assertEqual(self.agent.evict(), 0)
        del capsule
        self.assertEqual(self.pool.handle.views, 0)
        self.assertEqual(self.agent.evict(), 4)

    def test_a_tensor_keeps_the_pool_open(self) -> None:
        taker = Taker(self.pool.alloc(1).view())
        self.assertRaises(gpool.Busy, self.pool.close)
        taker.drop()
        self.pool.close()

    def test_what_cannot_be_had(self) -> None:
        with self.pool.alloc(1) as block:
            view = block.view()
            refused: Any = [{"copy": True}, {"dl_device": ELSEWHERE}]
            for arguments in [*refused, {"stream": 7}] if BACKEND == "host" else refused:
                with self.subTest(arguments), self.assertRaises(BufferError):
                    view.__dlpack__(**arguments)
            with self.assertRaises(BufferError):
                block.view(readonly=True).__dlpack__()
            self.assertEqual(self.pool.handle.views, 1)
            taker = Taker(view, copy=False, dl_device=HERE, stream=-1)
            taker.drop()

    def test_takers_find_what_was_queued(self) -> None:
        manual = self.pool.stream(host_signaled=True)
        opened = manual.record()
        with self.pool.alloc(1) as block, self.pool.stream() as stream:
            stream.wait(opened)
            stream.fill(block.address, 0x05050505, PAGE)
            view = block.view(stream=stream)
            # A consumer on the same stream waits in that stream; a consumer that requests no order does not wait. The
            # streams are CUDA's; on `host`, the device is a fake.
            if BACKEND == "host":
                view.device = gpool.Device("p0", "cuda", 0, "GPU-x", False)
            takers = [Taker(view, stream=stream.native), Taker(view, stream=-1)]
            view.device = self.pool.device
            waited = opened.done
            wait = stream.synchronize
            stream.synchronize = lambda: (opened.signal(), wait())  # type: ignore[method-assign, assignment, misc]
            takers.append(Taker(view))
            missed, last = not opened.done, array_of(block.view())[PAGE - 1]
            opened.signal()
            for taker in takers:
                taker.drop()
            self.assertEqual((waited, missed, last), (False, False, 5))

    def test_the_pin_ends_behind_the_stream(self) -> None:
        manual = self.pool.stream(host_signaled=True)
        opened = manual.record()
        with self.pool.alloc(4) as block, self.pool.stream() as stream:
            taker = Taker(block.view(stream=stream))
            stream.wait(opened)
            block.unpin()
            taker.drop()
            meanwhile = self.agent.evict()
            opened.signal()
            self.assertEqual(meanwhile, 0)
            stream.synchronize()
            self.assertEqual(self.agent.evict(), 4)

    def test_tensors_that_outlive_the_interpreter(self) -> None:
        """The C library calls the deleter at exit, after the interpreter has ended."""
        program = f"""
import ctypes, sys
sys.path[:0] = {sys.path[:3]!r}
import gpool
from gpool import _dlpack
pool = gpool.Pool(directory={self.agent.directory!r})
view = pool.alloc(1).view()
capsule = view.__dlpack__()
prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
address = prototype(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, b"dltensor")
prototype = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
prototype(("PyCapsule_SetName", ctypes.pythonapi))(capsule, b"used_dltensor")
deleter = _dlpack._Managed.from_address(address).deleter
ctypes.CDLL(None).__cxa_atexit(ctypes.c_void_p(deleter), ctypes.c_void_p(address), None)
"""
        ended = subprocess.run(
            [sys.executable, "-c", program], env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.assertEqual((ended.returncode, ended.stdout), (0, ""))

    def test_a_gpu_is_told(self) -> None:
        """The description of GPU memory by a view; the device is a fake."""
        with self.pool.alloc(1) as block, self.pool.stream() as stream:
            view = block.view("float16", (2, 4), stream=stream, readonly=True)
            view.device = gpool.Device("p0", "cuda", 3, "GPU-x", False)
            self.assertFalse(hasattr(view, "__array_interface__"))
            self.assertEqual(view.__dlpack_device__(), (2, 3))
            self.assertEqual(
                view.__cuda_array_interface__,
                {
                    "version": 3,
                    "shape": (2, 4),
                    "typestr": "<f2",
                    "data": (block.address, True),
                    "strides": None,
                    "stream": stream.native,
                },
            )
            taker = Taker(view, stream=stream.native)
            self.assertEqual((taker.managed.tensor.device_type, taker.managed.tensor.device_id), (2, 3))
            taker.drop()
            with self.assertRaisesRegex(BufferError, "CPU cannot access memory"):
                view.read()
            with self.assertRaisesRegex(BufferError, "CPU cannot access memory"):
                numpy.asarray(view)


class SecondDevice(AgentTest):
    arguments = ["--pool", f"name=p1,backend={BACKEND},device=1,size=16MiB,page_size=512KB,reserved=0"]

    def test_views_are_on_the_device_of_their_pool(self) -> None:
        with self.agent.pool("p1") as pool, pool.alloc(1) as block, pool.stream() as stream:
            view = block.view(stream=stream)
            taker = Taker(view)
            tensor = taker.managed.tensor
            self.assertEqual((tensor.device_type, tensor.device_id), (2, 1))
            taker.drop()
            self.assertEqual(view.__dlpack_device__(), (2, 1))
            stream.fill(block.address, 0x07070707, PAGE)
            self.assertTrue((array_of(view) == 7).all())
            del view


if __name__ == "__main__":
    unittest.main()
