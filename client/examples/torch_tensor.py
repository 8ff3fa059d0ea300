"""PyTorch tensors over gpool's blocks: a tensor keeps its block pinned, and other libraries see the same memory.

Needs PyTorch and a gpoold that runs (GPOOL_DIR, where it is not /run/gpool), on a GPU or on host memory:

    PYTHONPATH=client/python python3 client/examples/torch_tensor.py

torch_mempool.py is the other way: there PyTorch allocates, here the program does.
"""

import sys

import gpool

try:
    import torch
except ImportError:
    sys.exit("torch_tensor.py: there is no PyTorch here")

with gpool.Pool() as pool, pool.alloc(4, gpool.Usage.ACTIVATION) as block:
    on_gpu = pool.device.backend == "cuda"
    if on_gpu:
        # One stream for both: what PyTorch has queued is done before the block can be somebody else's.
        torch.cuda.set_device(pool.device.ordinal)
        own = torch.cuda.Stream()
        torch.cuda.set_stream(own)
        stream = pool.stream(native=own.cuda_stream)
    else:
        stream = None

    tensor = torch.from_dlpack(block.view("float32", (256, 1024), stream=stream))
    tensor.normal_()
    product = tensor @ tensor.T
    print(f"{tuple(tensor.shape)} on {tensor.device} at {tensor.data_ptr():#x}, trace {product.trace().item():.1f}")
    assert tensor.data_ptr() == block.address

    block.unpin()  # the tensor still has it pinned, and the pool would not close
    again = torch.from_dlpack(block.view("float32", (256, 1024), stream=stream))
    assert torch.equal(tensor, again)
    del tensor, again
