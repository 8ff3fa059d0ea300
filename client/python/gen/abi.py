#!/usr/bin/env python3
"""abi.py - print the constants, structures and calls of gpool.h as declarations for ctypes.

usage: abi.py client/gpool.h > client/python/gpool/_abi.py          (`make` runs it)

Reads the header and the parts that it includes, in the subset of C that they use. It fails at the first line that it
cannot parse, so that no declaration is omitted silently. tests/python/test_abi.py compares sizes and offsets with those
of a C compiler.
"""

from __future__ import annotations

import re
import sys
from keyword import iskeyword
from pathlib import Path
from typing import Dict, Iterator, List, Set, Tuple

SCALARS = {
    "int": "c_int",
    "size_t": "c_size_t",
    "float": "c_float",
    "double": "c_double",
    "int8_t": "c_int8",
    "uint8_t": "c_uint8",
    "int16_t": "c_int16",
    "uint16_t": "c_uint16",
    "int32_t": "c_int32",
    "uint32_t": "c_uint32",
    "int64_t": "c_int64",
    "uint64_t": "c_uint64",
    "char": "c_char",
}
LIMITS = {"UINT32_MAX": 2**32 - 1, "UINT64_MAX": 2**64 - 1}


def fail(what: str) -> None:
    sys.exit(f"abi.py: unsupported declaration '{' '.join(what.split())}'")


def read(path: Path, seen: Set[Path]) -> str:
    """Return the text of a header, preceded by the text of each local header that it includes, once."""
    if path in seen:
        return ""
    seen.add(path)
    text = path.read_text()
    included = [path.parent / name for name in re.findall(r'^#include "([^"]+)"', text, flags=re.M)]
    return "".join(read(other, seen) for other in included) + text


def statements(text: str) -> Iterator[str]:
    """Yield the declarations, each up to its semicolon, without comments and preprocessor lines."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = text.replace("\\\n", " ")
    text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
    depth, begin = 0, 0
    for at, sign in enumerate(text):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if sign == ";" and depth == 0:
            yield text[begin:at].strip()
            begin = at + 1
    if text[begin:].strip():
        fail(text[begin:])


class Header:
    def __init__(self, text: str) -> None:
        self.constants: Dict[str, int] = {}
        self.structs: Dict[str, List[Tuple[str, str, str]]] = {}
        self.sizes: Dict[str, int] = {}
        self.calls: Dict[str, Tuple[str, List[str], List[str]]] = {}
        text = re.sub(r"^#ifdef __cplusplus\n.*?^#endif$", "", text, flags=re.M | re.S)
        self.defines(text)
        for statement in statements(text):
            self.statement(statement)

    def defines(self, text: str) -> None:
        for name, value in re.findall(r"^#define (GPOOL_\w+) ([^/\n{(\\]+)", text, flags=re.M):
            if not value.startswith(("static_assert", "__attribute__")):
                self.constants[name] = self.number(value)

    def number(self, text: str) -> int:
        """Evaluate an expression of numbers and known constants."""
        known: Dict[str, int] = {**LIMITS, **self.constants}
        words = re.sub(r"\b(\d+|0x[0-9a-fA-F]+)[uU]?[lL]*\b", r"\1", text.strip())
        if not re.fullmatch(r"[\w\s<|+*()-]+", words):
            fail(text)
        try:
            return int(eval(words, {"__builtins__": {}}, known))
        except (NameError, SyntaxError):
            fail(text)
            raise

    def statement(self, text: str) -> None:
        match = re.fullmatch(r"GPOOL_ASSERT_SIZE\((\w+), (\d+)\)", text)
        if match:
            self.sizes[match[1]] = int(match[2])
            return
        match = re.fullmatch(r"enum(?: \w+)? \{(.*)\}", text, flags=re.S)
        if match:
            self.enum(match[1])
            return
        match = re.fullmatch(r"struct (\w+) \{(.*)\}", text, flags=re.S)
        if match:
            self.structs[match[1]] = [
                field for line in match[2].split(";") if line.strip() for field in self.fields(line)
            ]
            return
        match = re.fullmatch(r"GPOOL_API (.*?)(\w+)\((.*)\)", text, flags=re.S)
        if match:
            texts = [] if match[3].strip() == "void" else split_arguments(match[3])
            arguments, names = [self.argument(a) for a in texts], [argument_name(a) for a in texts]
            self.calls[match[2]] = (self.result(match[1]), arguments, names)
            return
        if not re.fullmatch(r"struct \w+", text):
            fail(text)

    def enum(self, body: str) -> None:
        value = -1
        for entry in filter(None, (part.strip() for part in body.split(","))):
            name, _, text = entry.partition("=")
            value = self.number(text) if text else value + 1
            self.constants[name.strip()] = value

    def fields(self, line: str) -> Iterator[Tuple[str, str, str]]:
        """Yield (name, ctypes type, Python type) for each name of a declaration such as `uint32_t free, pinned[2]`."""
        pointer = re.fullmatch(r"\s*(?:void|int) \(\*(\w+)\)\(.*\)\s*", line, flags=re.S)
        if pointer:
            yield pointer[1], self.argument(line.strip()), "Any"
            return
        match = re.fullmatch(r"\s*((?:const )?(?:struct )?\w+) (.*)", line, flags=re.S)
        if not match:
            fail(line)
            return
        for declarator in match[2].split(","):
            parts = re.fullmatch(r"\s*(\**)(\w+)(?:\[(\w+)\])?\s*", declarator)
            if not parts:
                fail(line)
                return
            kind = self.type(match[1], len(parts[1]))
            if parts[3]:
                kind = f"{kind} * {self.number(parts[3])}"
            yield parts[2] + "_" * iskeyword(parts[2]), kind, seen_as(kind)

    def type(self, base: str, stars: int) -> str:
        """Return the ctypes type of a base type with this number of pointer stars, or one star fewer if ctypes has a
        type for the pointer itself.
        """
        name = base.replace("const ", "").strip()
        if name.startswith("struct "):
            name = name[len("struct ") :]
            if name not in self.structs:  # an opaque struct
                kind, stars = "c.c_void_p", stars - 1
            else:
                kind = name
        elif name == "void":
            kind, stars = "c.c_void_p", stars - 1
        elif name == "char" and stars:
            kind, stars = "c.c_char_p", stars - 1
        elif name in SCALARS:
            kind = f"c.{SCALARS[name]}"
        elif name.startswith("enum "):
            kind = "c.c_int"
        else:
            fail(base)
        if stars < 0:
            fail(base)
        for _ in range(stars):
            kind = f"c.POINTER({kind})"
        return kind

    def argument(self, text: str) -> str:
        text = text.replace("*const", "*").strip()
        pointer = re.fullmatch(r"(void|int) \(\*\w+\)\((.*)\)", text, flags=re.S)
        if pointer:
            result = "None" if pointer[1] == "void" else "c.c_int"
            return f"c.CFUNCTYPE({result}, {', '.join(self.argument(a) for a in split_arguments(pointer[2]))})"
        match = re.fullmatch(r"((?:const )?(?:struct |enum )?\w+) ?([* ]*)(\w+)?(\[\w*\])?", text)
        if not match:
            fail(text)
            raise AssertionError
        return self.type(match[1], match[2].count("*") + bool(match[4]))

    def result(self, text: str) -> str:
        match = re.fullmatch(r"((?:const )?(?:struct )?\w+) (\**)", text)
        if not match:
            fail(text)
            raise AssertionError
        return "None" if match[1] == "void" and not match[2] else self.type(match[1], len(match[2]))


def argument_name(text: str) -> str:
    """Return the name in a declaration of an argument, which may be a pointer to a function."""
    match = re.search(r"\(\*(\w+)\)|(\w+)(?:\[\w*\])?$", text.strip())
    assert match
    return match[1] or match[2]


def split_arguments(text: str) -> List[str]:
    """Split at the commas outside brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def seen_as(kind: str) -> str:
    if kind.startswith("c.c_char * "):
        return "Text"
    if " * " in kind:
        return f"c.Array[{kind.split(' * ')[0]}]"
    if kind.startswith("c.POINTER"):
        return "Any"
    return {
        "c.c_char_p": "Optional[Text]",
        "c.c_void_p": "Optional[int]",
        "c.c_float": "float",
        "c.c_double": "float",
    }.get(kind, "int" if kind.startswith("c.") else kind)


def text_of(header: Header) -> Iterator[str]:
    yield '"""Constants, structures and calls of gpool.h, generated by client/python/gen/abi.py: do not edit."""'
    yield ""
    yield "from __future__ import annotations"
    yield ""
    yield "import ctypes as c"
    yield "from typing import Any, Dict, List, Optional, Tuple"
    yield ""
    yield "from ._checked import Structure"
    yield ""
    yield "Text = bytes  # there are fields of that name"
    yield ""
    for name, value in header.constants.items():
        yield f"{name} = {value}"
    for name, fields in header.structs.items():
        yield ""
        yield ""
        yield f"class {name}(Structure):"
        for field, _, seen in fields:
            yield f"    {field}: {seen}"
        yield ""
        yield "    _fields_ = ["
        for field, kind, _ in fields:
            yield f'        ("{field}", {kind}),'
        yield "    ]"
    yield ""
    yield ""
    yield "# The sizes that gpool.h states, in bytes."
    yield "SIZES: Dict[str, int] = {"
    for name, size in header.sizes.items():
        yield f'    "{name}": {size},'
    yield "}"
    yield ""
    yield "# Result, arguments, and the arguments' names. Pointers to what only the library knows are c_void_p."
    yield "CALLS: Dict[str, Tuple[Any, List[Any], List[str]]] = {"
    for name, (result, arguments, names) in header.calls.items():
        quoted = ", ".join(f'"{argument}"' for argument in names)
        yield f'    "{name}": ({result}, [{", ".join(arguments)}], [{quoted}]),'
    yield "}"


if __name__ == "__main__":
    print("\n".join(text_of(Header(read(Path(sys.argv[1]), set())))))
