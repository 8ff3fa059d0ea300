#!/usr/bin/env python3
"""lora_bmm.py - measure torch.bmm with the shapes in lora_on_gpu's table, for comparison.

Each adapter has one token, and all ranks are equal, since bmm supports nothing else: x[n, 1, in] @ A[n, in, r] @ B[n,
r, out], added to y. The weights are in one tensor, unlike in an adapter store with pages; the comparison therefore
favors bmm. Copies of the weights are used in turn; there are enough of them to exceed every cache. With --graph, the
launches are captured, which excludes the cost of Python.

This program was written without access to a GPU and has not been run. It needs torch with CUDA.
"""

import argparse
import statistics
import sys

ADAPTERS = [1, 2, 4, 8, 16, 32, 64, 128]
RANKS = [8, 16, 32, 64, 128]
COPIES_MAX = 64


def step(x, a, b, y):
    """Compute one pair of batched products, adding to y in place."""
    y += x.bmm(a).bmm(b)


def microseconds(torch, arguments, n, rank):
    """Return the time of one pair: the median of five runs over all copies."""
    layer_bytes = 2 * n * rank * (arguments.features_in + arguments.features_out)
    copies = max(1, min(COPIES_MAX, (768 << 20) // layer_bytes))
    options = {"device": "cuda", "dtype": torch.float16}
    x = torch.randn(n, 1, arguments.features_in, **options)
    y = torch.zeros(n, 1, arguments.features_out, **options)
    a = [torch.randn(n, arguments.features_in, rank, **options) * 0.01 for _ in range(copies)]
    b = [torch.randn(n, rank, arguments.features_out, **options) * 0.01 for _ in range(copies)]

    def run():
        for i in range(copies):
            step(x, a[i], b[i], y)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
        stream.synchronize()
        if arguments.graph:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                run()
            again = graph.replay
        else:
            again = run
        again()
        stream.synchronize()
        times = []
        for _ in range(5):
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            begin.record(stream)
            for _ in range(5):
                again()
            end.record(stream)
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1000 / (5 * copies))
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features-in", type=int, default=4096)
    parser.add_argument("--features-out", type=int, default=11008)
    parser.add_argument("--bandwidth", type=float, default=3350, help="GB/s of the roofline (3350: H100 SXM)")
    parser.add_argument("--graph", action="store_true", help="capture the launches in a CUDA graph")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("no torch here")
        return 77
    if not torch.cuda.is_available():
        print("no GPU that torch can use")
        return 77
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}{', graph' if arguments.graph else ''}")
    print("| adapters | rank | bmm us | MB | roofline us | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for rank in RANKS:
        for n in ADAPTERS:
            size = (
                2 * n * (rank * (arguments.features_in + arguments.features_out) + arguments.features_in)
                + 4 * n * arguments.features_out
            )
            roofline = size / arguments.bandwidth / 1e3
            us = microseconds(torch, arguments, n, rank)
            print(f"| {n} | {rank} | {us:.1f} | {size / 1e6:.2f} | {roofline:.1f} | {us / roofline:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
