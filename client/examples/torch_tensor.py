"""Create PyTorch tensors in blocks of gpool. A tensor keeps its block pinned, and other libraries can use the same
memory.

Requires PyTorch and a running gpoold (set GPOOL_DIR unless gpoold uses /run/gpool), with GPU or host memory:

    PYTHONPATH=client/python python3 client/examples/torch_tensor.py

In torch_mempool.py, PyTorch allocates the memory; here the program does.
"""

import torch

import gpool

with gpool.Pool() as pool, pool.alloc(4, gpool.Usage.ACTIVATION) as block:
    on_gpu = pool.device.backend == "cuda"
    if on_gpu:
        # PyTorch and gpool use the same stream, so PyTorch's queued work is done before the block's pages are reused.
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

    block.unpin()  # the tensor keeps it pinned, so the pool cannot be closed
    again = torch.from_dlpack(block.view("float32", (256, 1024), stream=stream))
    assert torch.equal(tensor, again)
    del tensor, again
