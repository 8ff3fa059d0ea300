"""The declarations of the package, which the build generates from gpool.h, agree with the C compiler and the libraries.

The compiler reports the same sizes, offsets and numbers, and the libraries export every call.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Dict, List

from harness import ROOT, gpool

from gpool import _abi
from gpool._library import library

HEADER = ROOT / "client" / "gpool.h"
STRUCTS = {
    name: kind
    for name, kind in vars(_abi).items()
    if isinstance(kind, type) and issubclass(kind, ctypes.Structure) and kind is not _abi.Structure
}
NUMBERS = {name: value for name, value in vars(_abi).items() if name.startswith("GPOOL_")}


def member(field: str) -> str:
    """Return a field's name in C: an underscore is appended in Python if the name is a keyword."""
    return field.rstrip("_") if field.endswith("_") else field


class Abi(unittest.TestCase):
    def test_a_compiler_says_the_same(self) -> None:
        wanted: Dict[str, int] = dict(NUMBERS)
        lines: List[str] = [f'\tprintf("{name} %llu\\n", (unsigned long long)({name}));' for name in NUMBERS]
        for struct, kind in STRUCTS.items():
            wanted[struct] = ctypes.sizeof(kind)
            lines.append(f'\tprintf("{struct} %zu\\n", sizeof(struct {struct}));')
            for field, _ in kind._fields_:  # type: ignore[misc]
                name = f"{struct}.{member(field)}"
                place = getattr(kind, field)
                wanted[name], wanted[f"{name} size"] = place.offset, place.size
                lines.append(f'\tprintf("{name} %zu\\n", offsetof(struct {struct}, {member(field)}));')
                lines.append(f'\tprintf("{name} size %zu\\n", sizeof(((struct {struct} *)0)->{member(field)}));')
        program = "\n".join(
            ["#include <gpool.h>", "#include <stdio.h>", "int main(void)", "{", *lines, "\treturn 0;", "}", ""]
        )
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "abi.c"
            source.write_text(program)
            subprocess.run(
                [
                    *os.environ.get("CC", "cc").split(),
                    "-std=c11",
                    f"-I{HEADER.parent}",
                    "-o",
                    f"{folder}/abi",
                    str(source),
                ],
                check=True,
            )
            said = subprocess.run([f"{folder}/abi"], check=True, stdout=subprocess.PIPE, text=True).stdout
        found = {name: int(value) for name, value in (line.rsplit(" ", 1) for line in said.splitlines())}
        self.assertEqual(found, wanted)

    def test_sizes_are_those_that_the_header_asserts(self) -> None:
        self.assertGreater(len(_abi.SIZES), 20)
        for struct, size in _abi.SIZES.items():
            self.assertEqual(ctypes.sizeof(getattr(_abi, struct)), size, struct)

    def test_all_calls_are_there(self) -> None:
        exported = "".join((ROOT / "client" / m).read_text() for m in ("libgpool.map", "lora/libgpool_lora.map"))
        for name in _abi.CALLS:
            self.assertIn(f"\t{name};", exported)
            self.assertTrue(hasattr(library(), name), name)
        self.assertGreaterEqual(exported.count(";"), len(_abi.CALLS))

    def test_what_it_does_not_understand_it_refuses(self) -> None:
        for line in (
            "union gpool_x { int a; };",
            "struct gpool_x { long a; };",
            "struct gpool_x { int a : 3; };",
            "GPOOL_API long gpool_x(void);",
        ):
            with self.subTest(line):
                made = subprocess.run(
                    [sys.executable, str(ROOT / "client" / "python" / "gen" / "abi.py"), "/dev/stdin"],
                    input=line,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                self.assertNotEqual(made.returncode, 0)
                self.assertIn("unsupported declaration", made.stderr)


class Library(unittest.TestCase):
    def load(self, **environment: str) -> str:
        """Return the output of a process that loads the package with the library of this environment."""
        package = str(Path(gpool.__file__).parents[1])
        return subprocess.run(
            [sys.executable, "-c", "import gpool; print(gpool.version())"],
            env={**os.environ, "PYTHONPATH": package, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ).stdout

    def test_the_one_that_is_named(self) -> None:
        self.assertIn("cannot load libgpool_lora: '/nowhere.so': no such file", self.load(GPOOL_LIBRARY="/nowhere.so"))

    def test_one_that_lacks_something(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                [*os.environ.get("CC", "cc").split(), "-shared", "-o", f"{folder}/old.so", "-x", "c", "-"],
                input="int gpool_version;",
                text=True,
                check=True,
            )
            self.assertIn(
                "lacks gpool_strerror(): it is an older version of libgpool_lora, or another library",
                self.load(GPOOL_LIBRARY=f"{folder}/old.so"),
            )
        libgpool = os.environ["GPOOL_LIBRARY"].replace("_lora", "")
        self.assertIn(f"'{libgpool}' lacks gpool_lora_", self.load(GPOOL_LIBRARY=libgpool))


if __name__ == "__main__":
    unittest.main()
