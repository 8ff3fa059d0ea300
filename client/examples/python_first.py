"""Allocate four pages of memory, write to them, unpin them, and pin them again: first.c, for a pool in host memory."""

import numpy

import gpool

with gpool.Pool() as pool:
    block = pool.alloc(4)  # the block has one pin
    array = numpy.asarray(block.view("uint32"))
    array[:] = 0x600D
    block.unpin()  # the array still keeps it pinned
    del array  # without the array it may be evicted

    input("4 pages, unpinned; Enter pins them again ('poolctl evict 4' evicts them)\n")
    try:
        with block.pin():
            print("still there,", hex(numpy.asarray(block.view("uint32"))[-1]))
        block.free()
    except gpool.Stale:
        print("evicted: a program would now recreate the content")
