"""Use the double of the driver as a program of NVIDIA's Python package does, and share memory with gpool.

Goal: the double is a driver for programs that do not know it, and memory that gpool creates is ordinary memory of the
driver. Method: this process calls the driver through cuda-bindings. Its peers are processes of tests/gpu/probe, which
make one call of gpool's interface cuda/gpu.h for each message (tests/gpu/probe_worker.h).

usage: stock.py BUILD-FOLDER    the environment: that of tests/driver/run. Exit status: 0: passed; 1: failed
"""

from __future__ import annotations

import array
import ctypes
import os
import socket
import struct
import subprocess
import sys
import unittest
from pathlib import Path

from cuda.bindings import driver

DESCRIPTOR = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
BUILD = Path(sys.argv.pop(1)).resolve()
MESSAGE = struct.Struct("=iiQQQQQ64s256s")  # struct probe_message
# The calls of enum probe_call, in its order.
(OPEN, _, _, CREATE, _, EXPORT, IMPORT, RESERVE, _, MAP, _, ACCESS, FILL, READ) = range(14)
READ_WRITE = 2  # GPU_ACCESS_READ_WRITE


def call(name: str, *arguments):
    """Make a call of the driver. Return what it returns; raise an error if it fails."""
    result, *values = getattr(driver, name)(*arguments)
    if result != driver.CUresult.CUDA_SUCCESS:
        raise AssertionError(f"{name}: {result.name}")
    return values[0] if values else None


class Memory:
    """Memory of the driver, mapped in this process: new memory, or that of a descriptor, which remains the caller's."""

    def __init__(self, size: int, properties: driver.CUmemAllocationProp, descriptor: int = -1) -> None:
        self.size = size
        if descriptor < 0:
            self.handle = call("cuMemCreate", size, properties, 0)
        else:
            self.handle = call("cuMemImportFromShareableHandle", descriptor, DESCRIPTOR)
        self.at = call("cuMemAddressReserve", size, 0, 0, 0)
        call("cuMemMap", self.at, size, 0, self.handle, 0)
        access = driver.CUmemAccessDesc()
        access.location = properties.location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        call("cuMemSetAccess", self.at, size, [access], 1)

    def export(self) -> int:
        return call("cuMemExportToShareableHandle", self.handle, DESCRIPTOR, 0)

    def write(self, value: int) -> None:
        call("cuMemsetD32Async", self.at, value, self.size // 4, 0)
        call("cuStreamSynchronize", 0)

    def words(self) -> set[int]:
        """Return the different words of the memory."""
        host = (ctypes.c_uint32 * (self.size // 4))()
        call("cuMemcpyDtoH", ctypes.addressof(host), self.at, self.size)
        return set(host)

    def close(self) -> None:
        call("cuMemUnmap", self.at, self.size)
        call("cuMemAddressFree", self.at, self.size)
        call("cuMemRelease", self.handle)


class Gpool:
    """A process that makes calls of gpool's back end `cuda`."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        worker = [str(BUILD / "tests" / "probe"), "--worker", "--backend", "cuda", "--device", "0"]
        with theirs:  # the worker expects it as PEER_SOCKET, 3
            self.process = subprocess.Popen(["sh", "-c", 'exec "$0" "$@" 3<&0', *worker], stdin=theirs)
        self.ask(OPEN)

    def ask(self, kind: int, a: int = 0, b: int = 0, c: int = 0, descriptor: int = -1) -> tuple[int, int, int, int]:
        """Let the process make a call. Return a, b, c of the answer, and its descriptor, which is -1 if it has none."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))] if descriptor >= 0 else []
        self.socket.sendmsg([MESSAGE.pack(kind, 0, a, b, c, 0, 0, b"", b"")], rights)
        data, received, _, _ = self.socket.recvmsg(MESSAGE.size, socket.CMSG_SPACE(4))
        if len(data) != MESSAGE.size:
            raise AssertionError(f"call {kind}: the process has ended, status {self.process.wait()}")
        _, result, a, b, c, _, _, _, text = MESSAGE.unpack(data)
        if result < 0:
            raise AssertionError(f"call {kind}: {os.strerror(-result)}; {text.rstrip(bytes(1)).decode()}")
        return a, b, c, array.array("i", received[0][2])[0] if received else -1

    def map(self, handle: int, size: int) -> int:
        address = self.ask(RESERVE, size)[0]
        self.ask(MAP, address, size, handle)
        self.ask(ACCESS, address, size, READ_WRITE)
        return address

    def close(self) -> None:
        self.socket.close()
        if self.process.wait() != 0:
            raise AssertionError(f"the process of gpool ended with status {self.process.returncode}")


class Stock(unittest.TestCase):
    def setUp(self) -> None:
        call("cuInit", 0)
        call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", 0))
        self.addCleanup(call, "cuDevicePrimaryCtxRelease", 0)
        self.properties = driver.CUmemAllocationProp()
        self.properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self.properties.requestedHandleTypes = DESCRIPTOR
        self.properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self.properties.location.id = 0
        minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.size = call("cuMemGetAllocationGranularity", self.properties, minimum)

    def memory(self, descriptor: int = -1) -> Memory:
        memory = Memory(self.size, self.properties, descriptor)
        self.addCleanup(memory.close)
        return memory

    def gpool(self) -> Gpool:
        peer = Gpool()
        self.addCleanup(peer.close)
        return peer

    def test_exported_memory_is_imported_and_mapped(self) -> None:
        first = self.memory()
        descriptor = first.export()
        second = self.memory(descriptor)
        os.close(descriptor)
        self.assertNotEqual(int(first.at), int(second.at))
        first.write(0x12345678)
        self.assertEqual(second.words(), {0x12345678})
        second.write(0x87654321)
        self.assertEqual(first.words(), {0x87654321})

    def test_the_driver_refuses_what_is_not_its_descriptor(self) -> None:
        with open("/dev/null") as file, self.assertRaisesRegex(AssertionError, "CUDA_ERROR_INVALID"):
            self.memory(file.fileno())

    def test_memory_of_gpool_is_mapped_by_the_program(self) -> None:
        peer = self.gpool()
        handle = peer.ask(CREATE, self.size)[0]
        address = peer.map(handle, self.size)
        peer.ask(FILL, address, self.size, 0x600D)
        _, offset, length, descriptor = peer.ask(EXPORT, handle)
        self.assertEqual((offset, length), (0, self.size))
        memory = self.memory(descriptor)
        os.close(descriptor)
        self.assertEqual(memory.words(), {0x600D})
        memory.write(0xBEEF)
        self.assertEqual(peer.ask(READ, address)[0], 0xBEEF)

    def test_memory_of_the_program_is_mapped_by_gpool(self) -> None:
        memory = self.memory()
        memory.write(0x600D)
        descriptor = memory.export()
        peer = self.gpool()
        handle = peer.ask(IMPORT, 0, 0, self.size, descriptor)[0]
        os.close(descriptor)
        address = peer.map(handle, self.size)
        self.assertEqual(peer.ask(READ, address)[0], 0x600D)
        peer.ask(FILL, address, self.size, 0xBEEF)
        self.assertEqual(memory.words(), {0xBEEF})


if __name__ == "__main__":
    unittest.main(verbosity=2)
