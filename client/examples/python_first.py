"""Four pages of memory: allocate, write, let go, come back. As first.c, on a pool in host memory."""

import numpy

import gpool

with gpool.Pool() as pool:
    block = pool.alloc(4)  # comes pinned
    array = numpy.asarray(block.view("uint32"))
    array[:] = 0x600D
    block.unpin()  # the array still has it pinned ...
    del array  # ... and now nothing has: it may be evicted

    input("4 pages, unpinned; Enter pins them again ('poolctl evict 4' takes them away)\n")
    try:
        with block.pin():
            print("still there,", hex(numpy.asarray(block.view("uint32"))[-1]))
        block.free()
    except gpool.Stale:
        print("evicted: now a program makes its content anew")
