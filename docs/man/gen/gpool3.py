#!/usr/bin/env python3
"""gpool3.py - print gpool(3), generated from the public headers.

usage: gpool3.py client/gpool.h > docs/man/gpool.3          (`make docs` runs it)

The page contains the introduction of gpool.h and, for each section of the headers that gpool.h includes, the
declarations and the comments. A comment consists of a headline "name() - text", paragraphs, lines "@parameter: text",
"Return:" with lines "-ECODE text", "Threads:", "Cost:", "Source:", and examples that are indented by a tab.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

SECTION = re.compile(r"/\* ---- (.*) ---- \*/")
LABEL = re.compile(r"(Return|Threads|Cost|Source):")
FIELD = re.compile(r"@([\w, @]+):\s*(.*)")
CODE = re.compile(r"(-E\w+(?:, -E\w+)*)(?:\s\s?(.*))?$")


def escape(text: str) -> str:
    """Return the text for mdoc, without characters that are requests or escapes."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def prose(text: str) -> Iterator[str]:
    """Yield lines of running text. Each sentence begins a new line, and each call is on a separate line, as roff
    requires.
    """
    for sentence in re.split(r"(?<=[.?!]) +(?=[A-Z])", " ".join(text.split())):
        line = ""
        for word in sentence.split(" "):
            call = re.fullmatch(r"(\(?)(\w+)\(\)('s)?([.,;:)]*)", word)
            if call or len(escape(line)) + len(escape(word)) > 76:
                if line:
                    yield escape(line)
                line = ""
            if call:
                yield (
                    f".{'Pf ( ' if call[1] else ''}Fn {call[2]}{' Ns ' + chr(39) + 's' if call[3] else ''} "
                    f"{' '.join(call[4])}"
                ).rstrip()
            else:
                line = f"{line} {word}".strip()
        if line:
            yield escape(line)


def comment_lines(comment: str) -> list[str]:
    """Return the text of a comment without its delimiters."""
    body = re.sub(r"^/\*|\*/$", "", comment.strip())
    return [
        re.sub(r"^\s*\* ?", "", line).rstrip() if index else line.strip() for index, line in enumerate(body.split("\n"))
    ]


def literal(lines: list[str]) -> Iterator[str]:
    yield ".Bd -literal -offset indent"
    for line in lines:
        yield escape(line.replace("\t", "    "))
    yield ".Ed"


class Text:
    """A comment as mdoc: paragraphs, lists and examples."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.at = 0

    def taken(self, belongs) -> list[str]:
        begin = self.at
        while self.at < len(self.lines) and belongs(self.lines[self.at]):
            self.at += 1
        return self.lines[begin : self.at]

    def entries(self, pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
        """Yield (term, text) for the following lines that match, each with its continuation lines."""
        while self.at < len(self.lines) and (match := pattern.match(self.lines[self.at].strip())):
            self.at += 1
            text = [match[2] or ""]
            while self.at < len(self.lines) and re.match(r"\s{2,}\S", self.lines[self.at]):
                if pattern.match(self.lines[self.at].strip()):
                    break
                text.append(self.lines[self.at].strip())
                self.at += 1
            yield match[1], " ".join(text)

    def list(self, pattern: re.Pattern[str]) -> Iterator[str]:
        yield ".Bl -tag -width Ds"
        for term, text in self.entries(pattern):
            names = [name.strip(" @") for name in term.split(",")]
            macro = "Er" if term.startswith("-") else "Fa"
            yield f".It {macro} " + f" , {macro} ".join(escape(name) for name in names)
            yield from prose(text)
        yield ".El"

    def mdoc(self) -> Iterator[str]:
        first = True
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if not line.strip():
                self.at += 1
                continue
            if line.startswith("\t"):
                example = self.taken(lambda line: line.startswith("\t") or not line.strip())
                while not example[-1].strip():
                    example.pop()
                yield from literal([text[1:] for text in example])
                first = False
            elif line.startswith("@"):
                yield from self.list(FIELD)
            elif re.match(r"\s{2,}-E", line):
                yield from self.list(CODE)
            elif re.match(r"\s{2,}\S", line):
                yield from literal(
                    [text.strip(" ") for text in self.taken(lambda line: re.match(r"\s{2,}\S", line) is not None)]
                )
            else:
                begin = self.at
                self.at += 1
                self.taken(
                    lambda line: (
                        bool(line.strip())
                        and line[0] not in "\t@"
                        and not re.match(r"\s{2,}\S", line)
                        and not LABEL.match(line)
                    )
                )
                if not first:
                    yield ".Pp"
                for part in re.split(r"\s+(?=(?:Return|Threads|Cost|Source): )", " ".join(self.lines[begin : self.at])):
                    label = LABEL.match(part)
                    if label:
                        yield f".Em {label[1]} :"
                        part = part[label.end() :].strip()
                    if part:
                        yield from prose(part)
                first = False


def signature(declaration: str) -> Iterator[str]:
    match = re.fullmatch(r"GPOOL_API (.*?)(\w+)\((.*)\);", " ".join(declaration.split()))
    if not match:
        sys.exit(f"gpool3.py: not a call: {declaration}")
    parts, depth = [""], 0
    for sign in match[3]:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    yield f".Ft {match[1].strip()}" if " " not in match[1].strip() else f'.Ft "{match[1].strip()}"'
    yield f".Fo {match[2]}"
    for part in parts:
        yield f'.Fa "{part.strip()}"'
    yield ".Fc"


def items(text: str) -> Iterator[tuple[str, str]]:
    """Yield (comment, declaration) in order. Either may be empty."""
    text = re.sub(r"^#ifdef __cplusplus\n.*?^#endif$", "", text, flags=re.M | re.S)
    text = re.sub(r"^#(?:if|endif|include|ifndef)[^\n]*$", "", text, flags=re.M)
    comment, at = "", 0
    while at < len(text):
        if text[at].isspace():
            at += 1
        elif text.startswith("/*", at):
            if comment:
                yield comment, ""
            end = text.index("*/", at) + 2
            comment, at = text[at:end], end
        else:
            end = end_of(text, at)
            yield comment, text[at:end].strip()
            comment = ""
            # A comment after a declaration on the same line belongs to the declaration.
            behind = re.compile(r" */\*.*?\*/", re.S).match(text, end)
            at = behind.end() if behind else end
    if comment:
        yield comment, ""


def end_of(text: str, at: int) -> int:
    """Return the end of the directive or declaration that begins at `at`."""
    if text[at] == "#":
        match = re.compile(r"(?:[^\n]*\\\n)*[^\n]*").match(text, at)
        assert match
        return match.end()
    depth = 0
    while text[at] != ";" or depth:
        if text.startswith("/*", at):
            at = text.index("*/", at) + 2
            continue
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at + 1


def section(text: str) -> Iterator[str]:
    for comment, declaration in items(text):
        if declaration.startswith("GPOOL_ASSERT_SIZE") or re.match(
            r"#define (GPOOL_\w+_H$|GPOOL_ASSERT|GPOOL_API)", declaration
        ):
            continue
        yield ".Pp"
        call = declaration.startswith("GPOOL_API")
        if call:
            yield from signature(declaration)
            yield ".Pp"
        lines = comment_lines(comment) if comment else []
        headline = re.match(r"(?:\w+\(\) - )(.)(.*)", next(filter(str.strip, lines), ""))
        if headline:
            index = next(i for i, line in enumerate(lines) if line.strip())
            lines[index] = headline[1].upper() + headline[2]
        yield from Text(lines).mdoc()
        if declaration and not call and not re.fullmatch(r"struct \w+;", declaration):
            if "_INIT" in declaration.split("\n")[0]:
                continue
            yield from literal(declaration.replace("\t", "    ").split("\n"))


def page(umbrella: Path) -> Iterator[str]:
    main = umbrella.read_text()
    parts = [umbrella.parent / name for name in re.findall(r'^#include "([^"]+)"', main, flags=re.M)]
    sections: list[tuple[str, str]] = []
    for part in parts:
        text = part.read_text()
        pieces = SECTION.split(text)
        begin = pieces[0].split("#ifdef __cplusplus", 1)[1].split("#endif", 1)[1] if "#ifdef" in pieces[0] else ""
        if begin.strip():
            sections.append((part.stem, begin))
        sections += zip(pieces[1::2], pieces[2::2])
    calls = re.findall(r"^GPOOL_API .*?(\w+)\(", "\n".join(text for _, text in sections), flags=re.M)
    yield '.\\" Generated by docs/man/gen/gpool3.py from client/gpool.h: do not edit.'
    yield ".Dd November 24, 2026"
    yield ".Dt GPOOL 3"
    yield ".Os"
    yield ".Sh NAME"
    for call in calls[:-1]:
        yield f".Nm {call} ,"
    yield f".Nm {calls[-1]}"
    yield ".Nd GPU memory from a pool that processes share"
    yield ".Sh LIBRARY"
    yield ".Pq libgpool, \\-lgpool"
    yield ".Pq libgpool_lora, \\-lgpool_lora, for the calls of gpool/lora.h"
    yield ".Sh SYNOPSIS"
    yield ".In gpool.h"
    for part in parts:
        yield f".In gpool/{part.name}"
    yield ".Sh DESCRIPTION"
    intro = comment_lines(re.match(r"/\*.*?\*/", main, flags=re.S)[0])
    yield from Text([line for line in intro if not line.startswith("gpool.h - ")]).mdoc()
    for title, text in sections:
        yield f".Sh {title.upper()}"
        yield from section(text)
    yield ".Sh SEE ALSO"
    yield ".Xr poolctl 1 ,"
    yield ".Xr gpool 7 ,"
    yield ".Xr gpoold 8"


def tidied(lines: Iterator[str]) -> list[str]:
    """Return the lines without paragraph breaks that roff would skip."""
    kept: list[str] = []
    for line in lines:
        if kept and kept[-1] == ".Pp" and line.startswith((".Bd", ".Bl", ".Sh", ".Pp")):
            kept.pop()
        if line != ".Pp" or not kept[-1].startswith(".Sh"):
            kept.append(line)
    return kept


if __name__ == "__main__":
    print("\n".join(tidied(page(Path(sys.argv[1])))))
