"""The wheel, installed in an empty environment, with a real agent: it contains everything that it needs except the C
library.

Requirements: E8.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Dict, List, Optional

from harness import BACKEND, BUILD, ROOT, AgentTest

RELEASE = (BUILD / "libgpool.so").resolve().parent
STABLE = {  # names with an underscore that are in the stable ABI
    "_PyArg_ParseTuple_SizeT",
    "_PyObject_CallFunction_SizeT",
    "_PyObject_CallMethod_SizeT",
    "_Py_Dealloc",
    "_Py_FalseStruct",
    "_Py_NoneStruct",
    "_Py_TrueStruct",
}
PROGRAM = """
import sys, threading
import gpool
from gpool._library import library

with gpool.Pool(directory=sys.argv[1], timeout_ms=600000) as pool, pool.alloc(2) as block:
    if pool.device.host_pointer:
        block.view().write(b"of the wheel", offset=pool.page_bytes)
        assert block.view(offset=pool.page_bytes).read(0, 12) == b"of the wheel"
    with pool.reserve_range(2) as elastic, pool.stream() as stream, pool.adapters():
        elastic.commit(0, 2)
        stream.fill(elastic.address, 7, pool.page_bytes)
        stream.record().wait()
        elastic.decommit(0, 2)
print(gpool.version(), gpool.__file__, library()._name, sep="\\n")
print(*sorted({line.split()[5] for line in open("/proc/self/maps") if ".so" in line}), sep="\\n")
"""


class Wheel(AgentTest):
    folder: tempfile.TemporaryDirectory[str]
    wheel: Path
    python: Path

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.folder = tempfile.TemporaryDirectory(prefix="gpool-wheel-")
        cls.addClassCleanup(cls.folder.cleanup)
        made = Path(cls.folder.name) / "dist"
        cls.run_program([str(ROOT / "tools" / "build" / "wheel"), str(RELEASE), str(made)], None)
        (cls.wheel,) = made.iterdir()
        environment = Path(cls.folder.name) / "env"
        cls.run_program([sys.executable, "-m", "venv", str(environment)], None)
        cls.python = environment / "bin" / "python"
        # No compiler, no index, and nothing of this process's environment.
        cls.run_program([str(cls.python), "-m", "pip", "install", "--no-index", str(cls.wheel)], {"PATH": "/nowhere"})

    @staticmethod
    def run_program(command: List[str], env: Optional[Dict[str, str]]) -> str:
        ran = subprocess.run(
            command, env=env, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        assert ran.returncode == 0, f"{' '.join(command)} ended with {ran.returncode}: {ran.stdout}"
        return ran.stdout

    def test_a_program_runs_with_what_the_wheel_brings(self) -> None:
        driver = ("LD_LIBRARY_PATH", "GPU_DOUBLE", "GPU_DOUBLE_DIR") if BACKEND == "cuda" else ()
        environment = {name: os.environ[name] for name in driver}
        said = self.run_program([str(self.python), "-c", PROGRAM, self.agent.directory], environment).splitlines()
        version, package, library, *mapped = said
        site = Path(package).parents[1]
        self.assertTrue(site.is_relative_to(self.folder.name), package)
        self.assertEqual(Path(library).parent, site / "gpool" / "lib")
        self.assertRegex(self.wheel.name, rf"^gpool-{re.escape(version)}-cp39-abi3-manylinux_\d+_\d+_\w+\.whl$")
        ours = [path for path in mapped if path.startswith(self.folder.name)]
        foreign = [Path(path).name for path in mapped if re.search(r"gpool|nanomsg|uring|xxhash|zstd|yajl|pcre", path)]
        self.assertEqual(sorted(foreign), sorted(Path(path).name for path in ours))
        for name in ("_native.abi3", "libgpool", "libgpool_lora", "libnanomsg", "liburing", "libxxhash", "libzstd"):
            self.assertEqual(sum(Path(path).name.startswith((f"{name}.", f"{name}-")) for path in ours), 1, name)

    def test_types_and_stable_abi(self) -> None:
        """Type checkers find the types, and the module asks Python for nothing but its stable ABI of 3.9."""
        found = self.run_program([sys.executable, "-m", "zipfile", "-l", str(self.wheel)], None)
        for name in (
            "gpool/py.typed",
            "gpool/_native.pyi",
            "gpool/_abi.py",
            "licenses/LICENSE",
            "gpool/lib/libgpool_torch.so",
        ):
            self.assertIn(name, found)
        needed = self.run_program(["nm", "-D", "--undefined-only", str(RELEASE / "_native.abi3.so")], None)
        self.assertEqual(set(re.findall(r"\b_Py\w+", needed)) - STABLE, set())
        self.assertIn("PyType_FromSpec", needed)


if __name__ == "__main__":
    unittest.main()
