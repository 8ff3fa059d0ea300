"""LoRA adapters that are published in the pool, and vLLM's resolver for them. The server is in test_serve.py.

Requirements: E6.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import List

from engines import TOOLS, EngineTest, tokens

from gpool import ObjectClass
from gpool.vllm import _adapters, publish_adapter


class Adapters(EngineTest):
    def setUp(self) -> None:
        super().setUp()
        self.folder = Path(tempfile.mkdtemp(prefix="gpool-adapters-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.files = [self.folder / f"peft{seed}" for seed in range(2)]
        for seed, folder in enumerate(self.files):
            command = [sys.executable, str(TOOLS / "make_model.py"), "--adapter", str(seed)]
            subprocess.run([*command, str(self.model), str(folder)], check=True)
        self.resolver = _adapters.Resolver(self.folder / "cache", directory=self.agent.directory)

    def resolve(self, name: str, base: str = "") -> str:
        """Return the folder of an adapter, or an empty text."""
        found = asyncio.run(self.resolver.resolve_lora(base or str(self.model), name))
        return found.lora_path if found is not None else ""

    def test_an_engine_uses_a_published_adapter(self) -> None:
        prompts = [tokens(number, 100) for number in range(3)]
        options = {"enable_lora": True, "max_lora_rank": 8}
        stock = self.start(gpool=False, **options).ready()
        plain = stock.generate(prompts, 20)
        expected: List[List[List[int]]] = []
        for number, folder in enumerate(self.files):
            stock.adapter = [f"a{number}", number + 1, str(folder)]
            expected.append([answer.tokens for answer in stock.generate(prompts, 20)])
        stock.stop()
        self.assertNotEqual(expected[0], expected[1])
        self.assertNotEqual(expected[0], [answer.tokens for answer in plain])
        with self.agent.pool() as pool:
            for number, folder in enumerate(self.files):
                publish_adapter(pool, f"a{number}", folder)
                shutil.rmtree(folder)
        engine = self.start(**options).ready()
        for number in (0, 1, 0):
            engine.adapter = [f"a{number}", number + 1, self.resolve(f"a{number}")]
            self.same(engine.generate(prompts, 20), expected[number])
        engine.adapter = None
        self.same(engine.generate(prompts, 20), [answer.tokens for answer in plain])

    def test_tiers(self) -> None:
        self.assertEqual(self.resolve("sql"), "")
        with self.agent.pool() as pool:
            publish_adapter(pool, "sql", self.files[0])
            first = Path(self.resolve("sql"))
            for name in (_adapters.CONFIG, _adapters.WEIGHTS):
                self.assertEqual((first / name).read_bytes(), (self.files[0] / name).read_bytes())
            publish_adapter(pool, "sql", self.files[1])
            second = Path(self.resolve("sql"))
            self.assertNotEqual(first, second)
            self.assertEqual(self.resolve("sql"), str(second))
            self.pool_pages(self.pages)  # evicts it
            self.assertEqual(list(pool.objects()), [])
            os.utime(first, (1, 1))
            self.assertEqual(self.resolve("sql"), str(second))
            publish_adapter(pool, "kept", self.files[0], keep=True)
            self.pool_pages(self.pages)
            self.assertEqual([info.memory_class for info in pool.objects()], [ObjectClass.IMMUTABLE])
            shutil.rmtree(self.folder / "cache")
            self.assertNotEqual(self.resolve("kept"), "")
            self.assertEqual(self.resolve("kept", "another model"), "")

    def test_hostile_names_and_objects(self) -> None:
        with self.agent.pool() as pool:
            for name in ("../peft0", "a/b", "", ".", "x" * 101, "a*", "a\n"):
                self.assertEqual(self.resolve(name), "", name)
                self.assertRaises(ValueError, publish_adapter, pool, name, self.files[0])
            for number, value in enumerate(
                (b"", b"[]", b"{}", b'{"config": "x", "bytes": 1099511627776}', b'{"config": 1, "bytes": -1}')
            ):
                with pool.create_object(f"vllm-lora/false{number}") as draft:
                    draft.alloc(1)
                    draft[_adapters.KEY] = value
                    draft.publish()
                self.assertEqual(self.resolve(f"false{number}"), "")
            self.assertFalse((self.folder / "cache").exists())
            (self.files[0] / _adapters.CONFIG).write_text(json.dumps({"peft_type": "IA3"}))
            with self.assertRaisesRegex(ValueError, "peft_type is not LORA"):
                publish_adapter(pool, "x", self.files[0])


class Files(unittest.TestCase):
    def test_files_are_deleted_when_no_engine_uses_them(self) -> None:
        data = b"x" * 1000
        cache = Path(tempfile.mkdtemp(prefix="gpool-adapters-"))
        self.addCleanup(shutil.rmtree, cache)
        code = (
            "import pathlib, sys; from gpool.vllm._adapters import Folder\n"
            f"Folder(pathlib.Path({str(cache)!r})).store('theirs', b'{{}}', b'x'); print(flush=True); sys.stdin.read()"
        )
        other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(other.communicate)
        self.addCleanup(other.kill)
        assert other.stdout is not None
        self.assertEqual(other.stdout.readline(), b"\n")

        def there() -> List[str]:
            return sorted(each.name.partition("@")[0] for each in cache.iterdir())

        mine = _adapters.Folder(cache, 2500)
        (cache / ".draft-1").mkdir()
        (cache / "notes").mkdir()  # is not an adapter
        first = mine.store("a", b"{}", data)
        self.assertEqual(there(), [".draft-1", "a", "notes", "theirs"])
        mine.store("b", b"{}", data)
        with self.assertRaisesRegex(OSError, "exceed 2500 bytes; raise"):
            mine.store("c", b"{}", data)
        self.assertEqual(there(), ["a", "b", "notes", "theirs"])
        mine.store("a", b"{}", b"y" * 400)  # the first version is no longer used
        self.assertEqual(there(), ["a", "a", "b", "notes", "theirs"])
        mine.store("c", b"{}", data)
        self.assertFalse(first.exists())
        self.assertEqual(there(), ["a", "b", "c", "notes", "theirs"])
        mine.close()
        self.assertEqual(there(), ["notes", "theirs"])
        other.kill()
        other.wait()
        _adapters.Folder(cache)
        self.assertEqual(there(), ["notes"])


if __name__ == "__main__":
    unittest.main()
