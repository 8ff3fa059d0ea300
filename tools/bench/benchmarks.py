#!/usr/bin/env python3
"""Write the tables of docs/benchmarks.md from the figures of gpool-bench.

usage: benchmarks.py GPOOL-BENCH [JSON]

A table is between `<!-- gpool-bench NAME... -->` and `<!-- end -->`. GPOOL-BENCH is called once, for all names. With
JSON, the output of an earlier `gpool-bench -o json` is used instead. The machine, the date and the commit are printed
after each table. Run the program on an otherwise idle machine.
"""

import datetime
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/benchmarks.md"
TABLE = re.compile(r"(<!-- gpool-bench ([\w ]+) -->\n).*?(<!-- end -->)", re.S)


def output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def table(names: list[str], results: dict, texts: dict, source: str) -> str:
    rows = ["| figure | unit | goal | median | min | max |", "| --- | --- | --- | --- | --- | --- |"]
    for name in names:
        if name not in results:
            sys.exit(f"benchmarks.py: gpool-bench has not measured '{name}'")
        result = results[name]
        cells = [f"`{name}` {texts[name]}", result["unit"], result.get("goal", "-")]
        rows.append(
            f"| {' | '.join(str(cell) for cell in cells + [result[key] for key in ('median', 'min', 'max')])} |"
        )
    return "\n".join(rows) + f"\n\n{source.format(**results[names[0]])}\n"


def main() -> None:
    program, text = sys.argv[1], PAGE.read_text()
    wanted = [name for match in TABLE.finditer(text) for name in match[2].split()]
    measured = Path(sys.argv[2]).read_text() if len(sys.argv) > 2 else output(program, "-o", "json", *wanted)
    results = {line["bench"]: line for line in map(json.loads, measured.splitlines())}
    listed = (re.match(r"(\w+)\s+\S+\s+(?:\* )?(.*)", line) for line in output(program, "--list").splitlines())
    texts = {match[1]: match[2] for match in listed if match}
    commit = output("git", "rev-parse", "--short", "HEAD").strip()
    source = f"Measured on {{machine}}, on {datetime.date.today()}, commit {commit}."
    PAGE.write_text(
        TABLE.sub(lambda match: match[1] + table(match[2].split(), results, texts, source) + match[3], text)
    )


main()
