"""Train a model on a pool that engines share. Between two steps, the pool may take all of the job's memory; the result
is the same.

Requires PyTorch and a running gpoold (set GPOOL_DIR unless gpoold uses /run/gpool), whose pool has spill_memory or
spill_file:

    PYTHONPATH=client/python python3 client/examples/torch_training.py [STEPS]

The parameters and the optimizer's moments are in a block that is pinned during a step only. If an engine needs the
memory, the agent saves the content, and the next step restores it. The activations of a frozen layer are in blocks
whose content is not saved: the job computes lost ones again.
"""

import contextlib
import hashlib
import sys
import time

import torch
from torch import nn

import gpool

WIDTH, HIDDEN, CLASSES = 64, 1024, 16
BATCHES, ROWS = 8, 32
WAIT_S = 0.01


class State:
    """Parameters and moments of Adam, one after the other in a block."""

    def __init__(self, pool, model, optimizer):
        self.pool, self.optimizer = pool, optimizer
        self.parameters = [(each, each.shape) for each in model.parameters()]
        self.count = sum(each.numel() for each, _ in self.parameters)
        initial = torch.cat([each.detach().flatten() for each, _ in self.parameters])
        self.block = pool.alloc(pages(pool, 3 * self.count), gpool.Usage.GRADIENT, spill=True, timeout_ms=-1)
        self.view().copy_(torch.stack([initial, torch.zeros_like(initial), torch.zeros_like(initial)]))
        for parameter, _ in self.parameters:
            optimizer.state[parameter]["step"] = torch.tensor(0.0)
        self.block.unpin()
        self.release()

    def view(self):
        """Return the block as three vectors, which keep it pinned."""
        return torch.from_dlpack(self.block.view("float32", (3, self.count)))

    @contextlib.contextmanager
    def pinned(self):
        """Keep the state in memory during a step."""
        while True:
            # An engine waits for memory, or has taken most of it: the job does not compete with it.
            while self.pool.pressure >= gpool.Pressure.HIGH:
                time.sleep(WAIT_S)
            try:
                parts = self.view()
                break
            except (gpool.NoRoom, gpool.TimedOut):  # the saved content is kept
                time.sleep(WAIT_S)
        begin = 0
        for parameter, shape in self.parameters:
            end = begin + shape.numel()
            state = self.optimizer.state[parameter]
            parameter.data, state["exp_avg"], state["exp_avg_sq"] = (part[begin:end].view(shape) for part in parts)
            begin = end
        del parts
        try:
            yield
        finally:
            if self.pool.device.backend == "cuda":
                torch.cuda.synchronize()
            self.release()

    def release(self):
        """Drop all tensors in the block, whose pins end with them."""
        for parameter, _ in self.parameters:
            parameter.data, parameter.grad = torch.empty(0, device=parameter.device), None
            self.optimizer.state[parameter].update(exp_avg=None, exp_avg_sq=None)


class Activations:
    """Activations of the frozen layer, by the number of their batch."""

    def __init__(self, pool, compute):
        self.pool, self.compute = pool, compute
        self.blocks, self.computed = {}, 0

    def get(self, batch):
        """Return the activations of a batch."""
        if batch in self.blocks:
            try:
                return self.view(self.blocks[batch])
            except gpool.Stale:  # evicted
                del self.blocks[batch]
        made = self.compute(batch)
        self.computed += 1
        try:
            block = self.pool.alloc(pages(self.pool, made.numel()), gpool.Usage.ACTIVATION, evict=False)
        except gpool.NoRoom:
            return made
        self.view(block).copy_(made)
        block.unpin()
        self.blocks[batch] = block
        return made

    def view(self, block):
        """Return a block as a tensor, which keeps it pinned."""
        return torch.from_dlpack(block.view("float32", (ROWS, HIDDEN)))


def pages(pool, elements):
    """Return the number of pages for elements of 4 bytes."""
    return -(-4 * elements // pool.page_bytes)


def main(steps):
    torch.manual_seed(1)
    with gpool.Pool(name="training") as pool:
        device = "cuda" if pool.device.backend == "cuda" else "cpu"
        frozen = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh()).to(device).requires_grad_(False)
        model = nn.Sequential(nn.Linear(HIDDEN, HIDDEN // 2), nn.Tanh(), nn.Linear(HIDDEN // 2, CLASSES)).to(device)
        inputs = torch.randn(BATCHES, ROWS, WIDTH).to(device)
        labels = torch.randint(CLASSES, (BATCHES, ROWS)).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        state, activations = State(pool, model, optimizer), Activations(pool, lambda batch: frozen(inputs[batch]))
        for step in range(steps):
            batch = step % BATCHES
            with state.pinned():
                loss = nn.functional.cross_entropy(model(activations.get(batch)), labels[batch])
                loss.backward()
                optimizer.step()
                loss = loss.item()  # a tensor would keep the activations pinned
            print(f"step {step + 1}: loss {loss:.6f}", flush=True)
        with state.pinned():
            digest = hashlib.sha256(state.view().cpu().numpy().tobytes()).hexdigest()
        print(f"activations computed {activations.computed} times, state {digest}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
