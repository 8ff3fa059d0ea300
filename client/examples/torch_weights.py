"""Load a model once per machine: the first process publishes the weights in an object of the pool, all others map it.

Requires PyTorch and a running gpoold (set GPOOL_DIR unless gpoold uses /run/gpool):

    PYTHONPATH=client/python python3 client/examples/torch_weights.py

The object remains when all processes have ended. `poolctl objects` lists it, and
`poolctl object delete example-weights` deletes it.
"""

import torch
from torch import nn

import gpool
from gpool import torch_weights

NAME = "example-weights"


def make():
    """Return the model; a real program would read its weights from files."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 16))


with gpool.Pool() as pool:
    try:
        opened, did = pool.open_object(NAME), "mapped"
    except gpool.NotFound:
        try:
            opened, did = torch_weights.publish(pool, NAME, make()), "published"
        except gpool.Stale:  # another process was faster
            opened, did = pool.open_object(NAME), "mapped"
    with torch.device("meta"):
        model = make()  # without memory
    weights = torch_weights.ModelWeights(pool, opened)
    weights.assign(model, torch.device("cuda" if pool.device.backend == "cuda" else "cpu"))
    opened.close()

    device = model[0].weight.device
    outputs = model(torch.ones(1, 1024, device=device))
    print(f"{did} {sum(each.numel() for each in model.parameters())} parameters, output {outputs.sum().item():.6f}")
    del model  # the pool can be closed when no tensor uses its memory
