"""The model that tests and the demonstration write once, for all programs."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any, List
from unittest import mock

import vllm_process


class Model(unittest.TestCase):
    def setUp(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="gpool-model-"))
        self.addCleanup(shutil.rmtree, self.base)
        self.folder = self.base / "build" / "model"

    def test_other_programs_see_the_whole_model_or_none(self) -> None:
        seen: List[bool] = []
        run = subprocess.run

        def observed(command: List[str], **options: Any) -> Any:
            Path(command[-1], "begun").touch()
            seen.append(self.folder.exists())
            done = run(command, **options)
            seen.append(self.folder.exists())
            return done

        with mock.patch.object(subprocess, "run", observed):
            self.assertEqual(vllm_process.model(self.folder, "--seed", "3"), self.folder)
            self.assertEqual(seen, [False, False])
            vllm_process.model(self.folder)
        self.assertEqual(len(seen), 2)  # it was written once
        for name in ("begun", "config.json", "tokenizer.json", "model.safetensors"):
            self.assertTrue((self.folder / name).is_file(), name)
        self.assertEqual(list(self.folder.parent.iterdir()), [self.folder])

    def test_another_program_has_written_it_meanwhile(self) -> None:
        def other(command: List[str], **options: Any) -> None:
            self.folder.mkdir()
            (self.folder / "theirs").touch()

        with mock.patch.object(subprocess, "run", other):
            vllm_process.model(self.folder)
        self.assertEqual([each.name for each in self.folder.iterdir()], ["theirs"])
        self.assertEqual(list(self.folder.parent.iterdir()), [self.folder])

    def test_each_word_is_one_token(self) -> None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(vllm_process.model(self.folder))
        text = " ".join(f"w{token}" for token in range(3, 512))
        self.assertEqual(tokenizer.encode(text, add_special_tokens=False), list(range(3, 512)))
        self.assertEqual((tokenizer.unk_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id), (0, 1, 2))

    def test_a_failure_leaves_nothing(self) -> None:
        failed = subprocess.CalledProcessError(1, "make_model.py")
        with mock.patch.object(subprocess, "run", side_effect=failed):
            self.assertRaises(subprocess.CalledProcessError, vllm_process.model, self.folder)
        self.assertEqual(list(self.folder.parent.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
