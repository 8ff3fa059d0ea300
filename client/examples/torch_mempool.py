"""Allocate PyTorch tensors in pages of gpool.

Requires a GPU, PyTorch 2.5 or later and a running gpoold (set GPOOL_DIR unless gpoold uses /run/gpool):

    python3 client/examples/torch_mempool.py build/libgpool_torch.so

All tensors that are created inside the `with` statement are allocated from the pool. Other engines can use the memory
when it is freed.
"""

import sys

import torch

library = sys.argv[1] if len(sys.argv) > 1 else "libgpool_torch.so"
allocator = torch.cuda.memory.CUDAPluggableAllocator(library, "gpool_torch_malloc", "gpool_torch_free")
pool = torch.cuda.MemPool(allocator.allocator())

with torch.cuda.use_mem_pool(pool):
    weights = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    inputs = torch.randn(64, 4096, device="cuda", dtype=torch.float16)
    outputs = inputs @ weights

torch.cuda.synchronize()
expected = inputs.float() @ weights.float()
error = ((outputs.float() - expected).norm() / expected.norm()).item()
print(f"outputs {tuple(outputs.shape)} at {outputs.data_ptr():#x}, relative error {error:.1e}")
assert error < 1e-2
