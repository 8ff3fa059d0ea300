"""LoRA adapters from PEFT's files, and events, with a real agent."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Callable, Dict, Tuple

import numpy

from harness import ROOT, AgentTest, gpool

PLAIN = ROOT / "tests" / "fixtures" / "adapters" / "plain"
TILE = 128


def tensors(folder: Path) -> Dict[str, Tuple[str, numpy.ndarray]]:  # type: ignore[type-arg]
    """Return the type and elements of each tensor in adapter_model.safetensors, by name."""
    data = (folder / "adapter_model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    kinds = {"F32": "<f4", "F16": "<f2"}
    found = {}
    for name, tensor in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in tensor["data_offsets"])
            found[name] = (
                tensor["dtype"],
                numpy.frombuffer(data[begin:end], kinds[tensor["dtype"]]).reshape(tensor["shape"]),
            )
    return found


def matrix(where: gpool.Matrix, rank: int, columns: int) -> numpy.ndarray:  # type: ignore[type-arg]
    """Return a matrix, [rank][columns], read from the pool."""
    tiles = -(-columns // TILE)
    assert tiles <= where.head_tiles, "the fixtures are small"
    data = ctypes.string_at(where.first, tiles * rank * TILE * 2)
    return (
        numpy.frombuffer(data, "<u2")
        .reshape(tiles, rank, TILE)
        .transpose(1, 0, 2)
        .reshape(rank, tiles * TILE)[:, :columns]
    )


class Adapters(AgentTest):
    arguments = ["--pool", "name=warm,backend=host,size=32MiB,page_size=512KB,reserved=0"]

    def test_weights_are_those_of_the_files(self) -> None:
        name, (_, b) = next((name, tensor) for name, tensor in tensors(PLAIN).items() if "lora_B" in name)
        a = tensors(PLAIN)[name.replace("lora_B", "lora_A")][1]
        module = name.replace("base_model.model.", "").replace(".lora_B.weight", "")
        layer = next(int(part) for part in module.split(".") if part.isdigit())
        target = ".".join("*" if part.isdigit() else part for part in module.split("."))
        with (
            self.pool.adapters(element=gpool.Element.FLOAT16) as adapters,
            adapters.register("plain", str(PLAIN)).acquire() as acquired,
        ):
            part = acquired.weights(layer, target)
            self.assertEqual(part.rank, a.shape[0])
            for where, wanted in ((part.a, a), (part.b, b.T)):
                got = matrix(where, part.rank, wanted.shape[1]).view("<f2")
                self.assertTrue((got == wanted.astype("<f2")).all())
            with self.assertRaises(gpool.NotFound):
                acquired.weights(layer, "model.*.nothing")

    def check(self, adapter: gpool.Adapter) -> None:
        """Check the weights of layer 0's q_proj against the files of PLAIN."""
        found = tensors(PLAIN)
        prefix = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
        with adapter.acquire() as acquired:
            part = acquired.weights(0, "model.layers.*.self_attn.q_proj")
            for where, wanted in ((part.a, found[prefix + "A.weight"][1]), (part.b, found[prefix + "B.weight"][1].T)):
                self.assertTrue((matrix(where, part.rank, wanted.shape[1]).view("<f2") == wanted.astype("<f2")).all())

    def test_shared_pages(self) -> None:
        with self.pool.adapters(element=gpool.Element.FLOAT16, share_pages=True) as adapters:
            self.check(adapters.register("plain", str(PLAIN)))

    def test_registered_from_a_buffer(self) -> None:
        data = (PLAIN / "adapter_model.safetensors").read_bytes()
        config = (PLAIN / "adapter_config.json").read_text()
        with self.pool.adapters(element=gpool.Element.FLOAT16, salt=(3, 4)) as adapters:
            kinds = (data, bytearray(data), memoryview(data), numpy.frombuffer(data, "u1"))
            for number, buffer in enumerate(kinds):
                self.check(adapters.register_buffer(f"buffer{number}", buffer, config))
            self.assertEqual(adapters.stats().loads, 1)  # equal content is one object
            self.check(adapters.register_buffer("mapping", data, json.loads(config)))
            for wrong in (b"", data[:-1], bytes(100)):
                with self.assertRaises(gpool.Error) as caught:
                    adapters.register_buffer("wrong", wrong, config)
                self.assertEqual(caught.exception.errno, errno.EINVAL)
                self.assertIn("adapter_model.safetensors", str(caught.exception))
            self.assertRaises(TypeError, adapters.register_buffer, "wrong", 5, config)
            self.assertRaises(ValueError, adapters.register_buffer, "wrong", data, "{}\0")

    def test_registered_from_arrays(self) -> None:
        class Capsule:
            """An array with DLPack only."""

            def __init__(self, array: numpy.ndarray, device: int = 1) -> None:  # type: ignore[type-arg]
                self.array, self.device = array, device

            def __dlpack_device__(self) -> Tuple[int, int]:
                return self.device, 0

            def __dlpack__(self) -> object:
                return self.array.__dlpack__()

        config = json.loads((PLAIN / "adapter_config.json").read_text())
        arrays = {name: array.copy() for name, (_, array) in tensors(PLAIN).items()}
        turned = {name: numpy.asfortranarray(array[:, ::-1])[:, ::-1] for name, array in arrays.items()}
        with self.pool.adapters(element=gpool.Element.FLOAT16, salt=(5, 6)) as adapters:
            self.check(adapters.register_arrays("arrays", arrays, config))
            self.check(adapters.register_arrays("turned", turned, config))
            capsules = {name: Capsule(array) for name, array in reversed(turned.items())}
            self.check(adapters.register_arrays("capsules", capsules, config))
            self.assertEqual(adapters.stats().loads, 1)  # neither order nor strides nor interface matter
            name, array = next((name, array) for name, array in arrays.items() if "lora_B" in name)
            for wrong, kind, text in (
                (5, TypeError, "which has neither DLPack nor"),
                (array.astype("f8"), TypeError, "is of float64"),
                (array.astype(">f4"), TypeError, "unknown dtype '>f4'"),
                (array[0], ValueError, "has 1 dimension;"),
                (array[:, :0], gpool.Error, "0 columns"),
                (Capsule(array, 2), ValueError, "copy it to host memory first"),
                (array[:, :-1], gpool.Error, "A has rank 4, but B has rank 3"),
            ):
                with self.subTest(text), self.assertRaisesRegex(kind, text):
                    adapters.register_arrays("wrong", {**arrays, name: wrong}, config)
            self.assertRaises(gpool.NotFound, adapters.find, "wrong")

    def test_limits(self) -> None:
        with self.pool.adapters(hot_adapters=1) as adapters:
            one, other = (adapters.register(name, str(PLAIN)) for name in ("one", "other"))
            with one.acquire():
                self.assertRaisesRegex(gpool.NoRoom, "hot_adapters", other.acquire)
            other.acquire().release()
            self.assertEqual(other.info().tier, gpool.Tier.HOT)
        with self.pool.adapters(hot_bytes=1) as adapters:
            self.assertRaisesRegex(gpool.Error, "hot_bytes", adapters.register, "large", str(PLAIN))
        for limit in ("warm_adapters", "warm_bytes", "idle_ms"):
            with self.assertRaisesRegex(gpool.Error, "require warm"):
                self.pool.adapters(**{limit: 1})  # type: ignore[arg-type]

    def test_they_are_acquired_and_released(self) -> None:
        with self.pool.adapters() as adapters:
            plain = adapters.register("plain", str(PLAIN))
            self.assertEqual(plain.info().state, gpool.AdapterState.COLD)
            self.assertEqual((plain.info().tier, plain.info().activity), (gpool.Tier.COLD, gpool.Activity.ABSENT))
            self.assertEqual((plain.info().used_ms, plain.info().served), (0, 0))
            self.assertEqual(
                plain.info().targets, ("model.layers.*.self_attn.q_proj", "model.layers.*.self_attn.v_proj")
            )
            acquired = plain.acquire()
            self.assertEqual((plain.info().tier, plain.info().activity), (gpool.Tier.HOT, gpool.Activity.ACTIVE))
            self.assertEqual(plain.info().served, 1)
            self.assertGreater(plain.info().used_ms, 1e12)
            stats = adapters.stats()
            self.assertEqual(stats.hot_utilization, numpy.float32(stats.hot_all_bytes / stats.hot_limit_bytes))
            self.assertGreaterEqual(stats.hot_all_bytes, stats.hot_bytes)
            self.assertEqual(
                (plain.info().acquired, plain.info().state, plain.info().name),
                (1, gpool.AdapterState.RESIDENT, "plain"),
            )
            self.assertRaises(gpool.Busy, adapters.close)
            self.assertRaises(gpool.Busy, self.pool.close)
            self.assertRaises(gpool.Busy, plain.unregister)
            stream = self.pool.stream(host_signaled=True)
            fence = stream.record()
            acquired.release(fence)
            acquired.release()
            fence.signal()
            self.assertEqual(adapters.find("plain").id, plain.id)
            plain.prefetch()
            plain.acquire().release()
            plain.unload()
            plain.unregister()
            self.assertRaises(gpool.NotFound, adapters.find, "plain")

    def test_restricted_to_tenants(self) -> None:
        with self.pool.adapters(salt=(7, 8)) as adapters:
            plain = adapters.register("plain", str(PLAIN))
            for wrong, code in (([], errno.EINVAL), (["a b"], errno.EINVAL), (["other"], errno.EPERM)):
                with self.assertRaises(gpool.Error) as caught:
                    plain.restrict(wrong)
                self.assertEqual(caught.exception.errno, code)
            self.assertRaises(ValueError, plain.restrict, ["a\0"])
            plain.restrict(["other", "default"])
            plain.acquire().release()
            self.assertTrue(any(found.name.endswith("@default,other") for found in self.pool.objects()))
            self.assertRaises(gpool.Busy, plain.restrict, ["default"])

    def test_layers_come_one_after_the_other(self) -> None:
        with self.pool.adapters() as adapters, adapters.register("plain", str(PLAIN)).acquire_async() as begun:
            for layer in range(begun.adapter.info().layers):
                begun.wait_layer(layer)
            begun.wait_layer()
            self.assertEqual(begun.adapter.info().acquired, 1)

    def test_copies_in_host_memory(self) -> None:
        with self.agent.pool("warm") as warm:
            adapters = self.pool.adapters(warm=warm, salt=(1, 2))  # the salt hides adapters of other tests
            plain = adapters.register("plain", str(PLAIN))
            plain.acquire().release()
            while adapters.stats().warm_made == 0:  # a thread of the library makes it
                pass
            plain.unload()
            acquired = plain.acquire()
            self.assertEqual((plain.info().loads, plain.info().from_warm), (2, 1))
            statistics = adapters.stats()
            self.assertEqual((statistics.registered, statistics.active, statistics.from_warm), (1, 1, 1))
            self.assertGreater(statistics.warm_bytes, 0)
            self.assertRaises(gpool.Busy, warm.close)
            acquired.release()
        self.assertRaises(gpool.Closed, adapters.find, "plain")

    def test_what_is_wrong_with_files_is_told(self) -> None:
        with self.pool.adapters() as adapters, tempfile.TemporaryDirectory() as folder:
            self.assertRaises(gpool.NotFound, adapters.register, "none", folder + "/none")
            shutil.copytree(PLAIN, folder + "/bad")
            Path(folder, "bad", "adapter_config.json").write_text("{}")
            with self.assertRaises(gpool.Error) as caught:
                adapters.register("bad", folder + "/bad")
            self.assertEqual(caught.exception.errno, errno.EINVAL)
            self.assertNotIn("an argument is out of range", str(caught.exception))

    def test_files_that_are_none_are_named_with_the_reason(self) -> None:
        config, weights = "adapter_config.json", "adapter_model.safetensors"

        def empty(path: Path) -> None:
            path.write_bytes(b"")

        def replace(make: Callable[[Path], None]) -> Callable[[Path], None]:
            def instead(path: Path) -> None:
                path.unlink()
                make(path)

            return instead

        def cut(path: Path) -> None:
            path.write_bytes(path.read_bytes()[:-100])

        def cut_header(path: Path) -> None:
            path.write_bytes(path.read_bytes()[:40])

        cases = (
            (config, empty, "adapter_config.json is empty"),
            (config, replace(os.mkfifo), "adapter_config.json is a pipe, not a regular file"),
            (config, replace(Path.mkdir), "adapter_config.json is a directory, not a regular file"),
            (config, cut, "adapter_config.json: invalid JSON at byte"),
            (
                config,
                lambda path: path.write_bytes(b" " * (5 << 20)),
                "adapter_config.json has 5242880 bytes; the limit is",
            ),
            (weights, empty, "adapter_model.safetensors: file is empty"),
            (
                weights,
                lambda path: path.write_bytes(b"abc"),
                "adapter_model.safetensors: file: 3 bytes are too few for a header",
            ),
            (weights, replace(os.mkfifo), "adapter_model.safetensors: file is a pipe, not a regular file"),
            (weights, replace(Path.mkdir), "adapter_model.safetensors: file is a directory, not a regular file"),
            (weights, cut_header, "adapter_model.safetensors: header: "),
            (weights, cut, "adapter_model.safetensors: "),
        )
        with self.pool.adapters() as adapters:
            for name, harm, text in cases:
                with self.subTest(text), tempfile.TemporaryDirectory() as folder:
                    shutil.copytree(PLAIN, folder + "/bad")
                    harm(Path(folder, "bad", name))
                    with self.assertRaises(gpool.Error) as caught:
                        adapters.register("bad", folder + "/bad")
                    self.assertEqual(caught.exception.errno, errno.EINVAL)
                    self.assertIn(f"{folder}/bad/{text}", str(caught.exception))

    def test_the_end_of_a_long_folder_is_named(self) -> None:
        with self.pool.adapters() as adapters, tempfile.TemporaryDirectory() as folder:
            path = folder + "/d" * 120 + "/end"
            with self.assertRaisesRegex(
                gpool.NotFound, r"cannot open \.\.\.[d/]*/end/adapter_config.json: No such file"
            ):
                adapters.register("none", path)
            shutil.copytree(PLAIN, path)
            Path(path, "adapter_model.safetensors").write_bytes(b"")
            with self.assertRaisesRegex(gpool.Error, r": \.\.\.[d/]*/end/adapter_model.safetensors: file is empty$"):
                adapters.register("bad", path)

    def test_weights_that_are_not_finite_are_named_with_their_folder(self) -> None:
        with self.pool.adapters() as adapters, tempfile.TemporaryDirectory() as folder:
            shutil.copytree(PLAIN, folder + "/bad")
            weights = Path(folder, "bad", "adapter_model.safetensors")
            weights.write_bytes(weights.read_bytes()[:-4] + b"\xff\xff\xff\xff")
            adapter = adapters.register("bad", folder + "/bad")
            with self.assertRaisesRegex(gpool.Error, f": {folder}/bad: module '.*': lora_B.* is -?nan"):
                adapter.acquire()

    def test_files_that_change_after_their_registration_are_named(self) -> None:
        with self.pool.adapters() as adapters, tempfile.TemporaryDirectory() as folder:
            for number, size in enumerate((0, 5, -100)):
                shutil.copytree(PLAIN, f"{folder}/{number}")
                adapter = adapters.register(f"changed {number}", f"{folder}/{number}")
                weights = Path(folder, str(number), "adapter_model.safetensors")
                weights.write_bytes(weights.read_bytes()[:size])
                with self.assertRaises(gpool.Error) as caught:
                    adapter.acquire()
                self.assertNotIn("driver", str(caught.exception))
                self.assertRegex(
                    str(caught.exception),
                    "adapter_model.safetensors: file|adapter_model.safetensors in '.*' has changed since the adapter",
                )

    def test_a_pool_ends_its_adapters(self) -> None:
        adapters = self.pool.adapters()
        adapters.register("plain", str(PLAIN)).acquire().release()
        self.pool.close()
        adapters.close()
        self.assertRaises(gpool.Closed, adapters.find, "plain")


class Events(AgentTest):
    def test_events(self) -> None:
        with self.agent.pool() as ear:
            self.assertRaises(gpool.TimedOut, ear.event, 0)
            heard = threading.Event()
            texts = []

            def listen() -> None:
                while True:
                    event = ear.event(20000)
                    if event.kind == gpool.EventKind.OBJECT_PUBLISHED:
                        texts.append(event)
                        heard.set()
                        return

            thread = threading.Thread(target=listen)
            thread.start()
            number = 0
            while not heard.wait(0.05):  # until the agent has received the subscription
                number += 1
                with self.pool.create_object(f"reported{number}") as draft:
                    draft.alloc(1)
                    draft.publish()
                self.pool.delete_object(f"reported{number}")
            thread.join()
            self.assertEqual(texts[0].pool, "p0")
            self.assertIn("reported", texts[0].text)


if __name__ == "__main__":
    unittest.main()
