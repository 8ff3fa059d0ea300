"""Weights of PyTorch models in named objects: one process publishes them, and all map them without a copy.

    try:
        opened = pool.open_object("weights")
    except gpool.NotFound:
        opened = torch_weights.publish(pool, "weights", Model())
    with torch.device("meta"):
        model = Model()  # without memory
    weights = torch_weights.ModelWeights(pool, opened)
    weights.assign(model, torch.device("cpu"))

All parameters, buffers and attributes that are tensors are published. The parameters of a model then are read-only: on
a CPU, writing them ends the process. Each process has its own copy of the buffers, since models write some of them.

This module needs PyTorch; `import gpool` does not import it.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch import nn

from ._errors import NotFound, Stale
from ._object import Object, ObjectClass
from ._options import Usage
from ._pool import Pool
from ._range import Range
from ._view import View

ALIGNMENT = 256
KEY = "gpool.weights"
CONSTANTS_KEY = "gpool.constants"
RETRIES = 3
CONSTANT_MOST = 256
"""elements of an attribute that is a tensor"""


class _Entry(NamedTuple):
    """Describe a parameter or buffer of a model."""

    name: str
    is_parameter: bool
    dtype: str
    shape: List[int]
    offset: int


class _Constant(NamedTuple):
    """Describe a tensor that is a plain attribute of a module. Its values are in the metadata."""

    name: str
    dtype: str
    shape: List[int]
    values: List[Any]
    device: str
    """its type"""


class ModelWeights:
    """The weights of a model: an object that is mapped in a range, so that sleep() keeps their addresses.

    Threads: one at a time.
    """

    def __init__(self, pool: Pool, opened: Object, publish: Optional[Callable[[], None]] = None) -> None:
        """Map an open object, which may then be closed.

        publish: publishes the object again if it was evicted during a sleep; None: wake() then raises NotFound.
        Raises Error; ValueError, TypeError, KeyError: the object has no weights.
        """
        info = opened.info()
        self.name, self._hash = info.name, info.layout_hash
        self._entries, self._constants = _entries(opened), _constants(opened)
        self._pool = pool
        self._publish = publish
        self._range: Range = pool.reserve_range(info.pages, ObjectClass.EPHEMERAL)
        self._mapped: Optional[Object] = self._range.map(0, self.name)

    @property
    def asleep(self) -> bool:
        """Return whether the weights are not mapped."""
        return self._mapped is None

    def assign(self, model: nn.Module, device: Optional[torch.device] = None) -> None:
        """Set the parameters of a model to tensors in the object, and copy buffers that have no memory yet.

        device: also set the attributes of modules that are tensors, on this device; None: keep them.
        Raises ValueError: the model lacks a module or attribute; RuntimeError.
        """
        modules = dict(model.named_modules(remove_duplicate=False))
        for entry in self._entries:
            path, _, leaf = entry.name.rpartition(".")
            if path not in modules:
                raise ValueError(f"the model has no module '{path}'")
            if 0 in entry.shape:
                tensor = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
            else:
                tensor = torch.from_dlpack(self._view(entry))
            if entry.is_parameter:
                old = modules[path]._parameters.get(leaf)
                if old is not None and not old.is_meta:
                    old.data = tensor
                else:
                    parameter = nn.Parameter(tensor, requires_grad=False)
                    parameter.__dict__.update(old.__dict__ if old is not None else {})
                    modules[path]._parameters[leaf] = parameter
            else:
                old = modules[path]._buffers.get(leaf)
                if old is None or old.is_meta:
                    modules[path]._buffers[leaf] = tensor.clone()
        if device is not None:
            self._set_constants(modules, device)

    def sleep(self) -> None:
        """Unmap the object: it may be evicted if its class permits that and no other process has it open.

        The model must not be used until wake().
        Raises Busy.
        """
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None

    def wake(self) -> None:
        """Map the object again, at the same addresses; if it was evicted, publish it first. On failure the weights
        remain asleep.

        Raises NoRoom; NotFound; Error; RuntimeError: other weights have been published under its name.
        """
        for _ in range(RETRIES):
            if self._mapped is not None:
                return
            try:
                self._map()
            except (NotFound, Stale):
                if self._publish is None:
                    raise
                self._publish()
        self._map()

    def _map(self) -> None:
        mapped = self._range.map(0, self.name)
        if mapped.info().layout_hash != self._hash:
            mapped.close()
            raise RuntimeError(f"cannot wake: object '{self.name}' has other weights now; restart the process")
        self._mapped = mapped

    def _view(self, entry: _Entry) -> View:
        """Return a tensor of the object, which must not be read during a sleep."""
        return self._range.view(entry.dtype, entry.shape, entry.offset, readonly=True, sparse=True)

    def _set_constants(self, modules: Dict[str, nn.Module], device: torch.device) -> None:
        for constant in self._constants:
            path, _, leaf = constant.name.rpartition(".")
            if path not in modules or not isinstance(getattr(modules[path], leaf, None), torch.Tensor):
                raise ValueError(f"the model has no attribute '{constant.name}'")
            tensor = torch.tensor(
                constant.values,
                dtype=getattr(torch, constant.dtype),
                device="cpu" if constant.device == "cpu" else device,
            )
            setattr(modules[path], leaf, tensor.reshape(constant.shape))


def publish(
    pool: Pool,
    name: str,
    model: nn.Module,
    *,
    memory_class: ObjectClass = ObjectClass.IMMUTABLE,
    private: bool = False,
) -> Object:
    """Publish the tensors of a model, each one once, and return the open object.

    memory_class: an object of class IMMUTABLE remains until Pool.delete_object(). private: refuse sessions of other
    tenants.
    Raises NoRoom; Stale: an object of this name exists; Error; RuntimeError: an attribute has too many elements.
    """
    entries: List[_Entry] = []
    constants = _constants_of(model)
    places: Dict[Tuple[int, Tuple[int, ...], torch.dtype], int] = {}
    copies: List[Tuple[int, torch.Tensor]] = []
    end = 0
    for key, is_parameter, tensor in tensors(model):
        which = (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype)
        if which not in places or not tensor.numel():
            places[which] = end
            copies.append((end, tensor))
            end = -(-(end + tensor.numel() * tensor.element_size()) // ALIGNMENT) * ALIGNMENT
        kind = str(tensor.dtype).replace("torch.", "")
        entries.append(_Entry(key, is_parameter, kind, list(tensor.shape), places[which]))
    with pool.create_object(name, memory_class, expect_version=0, private=private) as draft:
        draft.alloc(-(-max(end, 1) // pool.page_bytes), Usage.KV_CACHE)
        for offset, tensor in copies:
            if tensor.numel():
                size = tensor.numel() * tensor.element_size()
                to = torch.from_dlpack(draft.view(0, "uint8", size, offset))
                to.copy_(tensor.contiguous().view(-1).view(torch.uint8))
                del to
        if pool.device.backend == "cuda":
            torch.cuda.synchronize()
        draft[KEY] = json.dumps([entry._asdict() for entry in entries]).encode()
        draft[CONSTANTS_KEY] = json.dumps([constant._asdict() for constant in constants]).encode()
        draft.publish()
    return pool.open_object(name)


def tensors(model: nn.Module) -> Iterator[Tuple[str, bool, torch.Tensor]]:
    """Iterate over the parameters (True) and buffers of a model; a tensor with several names is returned for
    each of them."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield name, True, parameter.data
    for name, buffer in model.named_buffers(remove_duplicate=False):
        yield name, False, buffer


def meta_tensors(model: nn.Module) -> List[str]:
    """Return the names of tensors without memory, including those in attributes of modules that are objects."""
    left = [name for name, _, tensor in tensors(model) if tensor.is_meta]
    left += [name for name, tensor in _attributes(model) if tensor.is_meta]
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            inside = getattr(value, "__dict__", {}) if not isinstance(value, (nn.Module, type)) else {}
            left += [
                f"{path}.{key}.{name}"
                for name, each in inside.items()
                if isinstance(each, torch.Tensor) and each.is_meta
            ]
    return left


def _attributes(model: nn.Module) -> Iterator[Tuple[str, torch.Tensor]]:
    """Iterate over the tensors of a model that are neither parameters nor buffers."""
    for path, module in model.named_modules(remove_duplicate=False):
        for key, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                yield f"{path}.{key}", value


def _constants_of(model: nn.Module) -> List[_Constant]:
    """Describe the attributes of a model. Raises RuntimeError: an attribute is too large."""
    made = []
    for name, tensor in _attributes(model):
        if tensor.numel() > CONSTANT_MOST:
            raise RuntimeError(f"tensor {name} has {tensor.numel()} elements, more than {CONSTANT_MOST}")
        kind = str(tensor.dtype).replace("torch.", "")
        values = tensor.detach().flatten().tolist()
        made.append(_Constant(name, kind, list(tensor.shape), values, tensor.device.type))
    return made


def _entries(opened: Object) -> List[_Entry]:
    """Return the description of an object's tensors. Raises ValueError: the object contains no weights; KeyError."""
    _, room = opened.address(0)
    entries = []
    for fields in json.loads(opened[KEY]):
        entry = _Entry(**fields)
        dtype = getattr(torch, entry.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"tensor '{entry.name}' has the type '{entry.dtype}'")
        size = dtype.itemsize
        for length in entry.shape:
            if not isinstance(length, int) or length < 0:
                raise ValueError(f"tensor '{entry.name}' has the shape {entry.shape}")
            size *= length
        if not isinstance(entry.offset, int) or entry.offset < 0 or entry.offset + size > room:
            raise ValueError(f"tensor '{entry.name}' ends beyond the end of the object")
        entries.append(entry)
    return entries


def _constants(opened: Object) -> List[_Constant]:
    """Return the constants in an object. Raises ValueError: a wrong description; TypeError; KeyError."""
    constants = []
    for fields in json.loads(opened[CONSTANTS_KEY]):
        constant = _Constant(**fields)
        if not isinstance(getattr(torch, constant.dtype, None), torch.dtype):
            raise ValueError(f"tensor '{constant.name}' has the type '{constant.dtype}'")
        if not isinstance(constant.values, list) or len(constant.values) > CONSTANT_MOST:
            raise ValueError(f"tensor '{constant.name}' has more than {CONSTANT_MOST} values")
        constants.append(constant)
    return constants
