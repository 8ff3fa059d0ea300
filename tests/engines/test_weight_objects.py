"""Weights of PyTorch models in objects, without vLLM.

Requirements: E4.
"""

from __future__ import annotations

import copy
import json
import types
import unittest
from functools import partial
from typing import List

import torch
from torch import nn

from harness import AgentTest, gpool

from gpool import torch_weights

publish_weights = partial(torch_weights.publish, memory_class=gpool.ObjectClass.EPHEMERAL)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(300, 200)
        self.second = nn.Linear(300, 200, bias=False)
        self.second.weight = self.first.weight
        self.small = nn.Parameter(torch.randn(7, 5).to(torch.bfloat16), requires_grad=False)
        self.empty = nn.Parameter(torch.empty(0), requires_grad=False)
        self.register_buffer("table", torch.arange(1000).reshape(10, 100).t(), persistent=False)
        self.register_buffer("step", torch.tensor(0.5))
        self.scale = torch.tensor(0.1)  # neither a parameter nor a buffer
        self.first.none = torch.tensor([], dtype=torch.bfloat16)


class WeightObjects(AgentTest):
    def test_a_model_is_published_and_mapped(self) -> None:
        torch.manual_seed(1)
        model = Model()
        expected = {name: tensor.clone() for name, _, tensor in torch_weights.tensors(model)}
        made = publish_weights(self.pool, "weights", model)
        self.assertEqual(made.info().pages, 1)  # the tensor with two names is stored once
        self.assertRaises(gpool.Stale, publish_weights, self.pool, "weights", model)
        published: List[int] = []

        def publish() -> None:
            published.append(1)
            publish_weights(self.pool, "weights", original).close()

        weights = torch_weights.ModelWeights(self.pool, made, publish)
        original = copy.deepcopy(model)
        weights.assign(model)
        made.close()
        with torch.device("meta"):
            other = Model()
        self.assertIn("table", torch_weights.meta_tensors(other))
        opened = self.pool.open_object("weights")
        second = torch_weights.ModelWeights(self.pool, opened, publish)
        second.assign(other)
        self.assertEqual(sorted(torch_weights.meta_tensors(other)), [".scale", "first.none"])
        second.assign(other, torch.device("cpu"))
        self.assertEqual(torch_weights.meta_tensors(other), [])
        self.assertTrue(torch.equal(other.scale, model.scale))
        self.assertEqual(other.first.none.dtype, torch.bfloat16)
        begin, size = second._range.address, second._range.nbytes
        for name, is_parameter, tensor in torch_weights.tensors(other):
            self.assertTrue(torch.equal(tensor, expected[name]), name)
            self.assertEqual(tensor.dtype, expected[name].dtype)
            if tensor.numel():
                self.assertEqual(begin <= tensor.data_ptr() < begin + size, is_parameter, name)
        other.step.fill_(2)  # as vLLM does
        self.assertEqual(float(model.step), 0.5)
        self.assertEqual(other.first.weight.data_ptr(), other.second.weight.data_ptr())
        self.assertTrue(torch.equal(model.first(torch.ones(300)), other.first(torch.ones(300))))
        opened.close()
        self.sleeps(model, weights, second, published)
        self.assertTrue(torch.equal(model.first(torch.ones(300)), original.first(torch.ones(300))))

    def sleeps(
        self,
        model: Model,
        weights: torch_weights.ModelWeights,
        second: torch_weights.ModelWeights,
        published: List[int],
    ) -> None:
        address = model.first.weight.data_ptr()
        weights.sleep()
        self.agent.evict()  # not the object, which the other one has open
        weights.wake()
        weights.sleep()
        second.sleep()
        weights.wake()  # maps what was kept
        self.assertEqual((published, model.first.weight.data_ptr()), ([], address))
        weights.sleep()
        with self.pool.alloc(64):
            self.assertRaises(gpool.NoRoom, weights.wake)
            self.assertTrue(weights.asleep)
        weights.wake()
        self.assertEqual(len(published), 2)
        self.assertFalse(weights.asleep)
        weights.sleep()
        self.pool.delete_object("weights")
        with self.pool.create_object("weights", gpool.ObjectClass.EPHEMERAL) as draft:
            draft.alloc(1)
            draft.publish()
        self.assertRaisesRegex(RuntimeError, "has other weights now", weights.wake)
        self.pool.delete_object("weights")
        weights._publish()
        weights.wake()

    def test_what_cannot_be_shared_is_refused(self) -> None:
        model = Model()
        model.large = torch.zeros(torch_weights.CONSTANT_MOST + 1)
        self.assertRaisesRegex(
            RuntimeError, r"tensor \.large has 257 elements", publish_weights, self.pool, "large", model
        )
        model.large, model.helper = torch.zeros(0), types.SimpleNamespace(hidden=torch.zeros(1, device="meta"))
        self.assertEqual(torch_weights.meta_tensors(model), [".helper.hidden"])

    def test_false_descriptions_are_refused(self) -> None:
        good = {"name": "first.weight", "is_parameter": True, "dtype": "float32", "shape": [2, 2], "offset": 0}
        for number, change in enumerate(
            (
                {"offset": 1 << 40},
                {"offset": -4},
                {"shape": [1 << 20, 1 << 20]},
                {"shape": [-1]},
                {"shape": ["x"]},
                {"dtype": "load"},
                {"dtype": "float31"},
                {"more": 1},
            )
        ):
            with self.subTest(change), self.pool.create_object(f"false{number}") as draft:
                draft.alloc(1)
                draft[torch_weights.KEY] = json.dumps([{**good, **change}]).encode()
                draft.publish()
                self.assertRaises((ValueError, TypeError), torch_weights._entries, draft)
            self.pool.delete_object(f"false{number}")


if __name__ == "__main__":
    unittest.main()
