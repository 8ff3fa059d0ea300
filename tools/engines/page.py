"""Write the results of demo.py as one self-contained HTML file, in the style of gpool-demo's report."""

from __future__ import annotations

import html
import math
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

STYLE = Path(__file__).resolve().parents[1] / "demo" / "style.css"
BANDS = ("needed", "offered", "idle")
"""kinds of leased pages, from bottom to top"""
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1000, 64, 14, 20, 30


class Chart:
    """Curves over time, as inline SVG."""

    def __init__(self, label: str, y_name: str, height: int, x_most: float, y_most: float) -> None:
        self._height, self._x_most, self._y_most = height, x_most, y_most
        self._parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">']
        step = _round_step(y_most / 4)
        for number in range(int(y_most / step * 1.0001) + 1):
            y = self._y(number * step)
            self._parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            self._text(LEFT - 8, y + 4, f"{number * step:g}", "end")
        self._text(LEFT, 12, y_name, "start")

    def _x(self, x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * x / self._x_most

    def _y(self, y: float) -> float:
        return self._height - BOTTOM - (self._height - TOP - BOTTOM) * y / self._y_most

    def _text(self, x: float, y: float, text: str, anchor: str) -> None:
        self._parts.append(f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>')

    def _path(self, css: str, title: str, points: Sequence[Tuple[float, float]], end: str) -> None:
        path = "L".join(f"{self._x(x):.1f} {self._y(y):.1f}" for x, y in points)
        self._parts.append(f'<path class="{css}" d="M{path}{end}"><title>{title}</title></path>')

    def area(self, css: str, title: str, x: List[float], low: List[float], high: List[float]) -> None:
        """Draw the area between two curves."""
        self._path(f"area {css}", title, [*zip(x, high), *zip(reversed(x), reversed(low))], "Z")

    def line(self, css: str, title: str, x: List[float], y: List[float]) -> None:
        """Draw a curve."""
        self._path(f"line {css}", title, [*zip(x, y)], "")

    def level(self, y: float, word: str) -> None:
        """Draw a horizontal line."""
        at = self._y(y)
        self._parts.append(f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        self._text(WIDTH - RIGHT, at - 5, word, "end")

    def event(self, x: float, css: str, title: str) -> None:
        """Draw a mark."""
        at, bottom = self._x(x), self._height - BOTTOM
        self._parts.append(
            f'<g class="event {css}"><line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom}"/>'
            f'<path d="M{at:.1f} {bottom}l5 8h-10z"/><title>{title}</title></g>'
        )

    def end(self) -> str:
        """Return the drawing with its time axis."""
        bottom, step = self._height - BOTTOM, _round_step(self._x_most / 8)
        self._parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>')
        for number in range(int(self._x_most / step * 1.0001) + 1):
            self._text(self._x(number * step), bottom + 22, f"{number * step:g} s", "middle")
        return '<div class="scroll">' + "\n".join(self._parts) + "</svg></div>\n"


def _round_step(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * each for each in (1, 2, 5, 10) if power * each >= least * 0.999)


def rows(figures: Sequence[Dict[str, Any]]) -> List[Tuple[str, str, str]]:
    """Return the table: label, shared pool, two halves."""
    kinds = (
        ("time to the first token, mean", "ttft_mean_s", "{:.3f} s"),
        ("time to the first token, median", "ttft_p50_s", "{:.3f} s"),
        ("time to the first token, 99th percentile", "ttft_p99_s", "{:.3f} s"),
        ("preemptions", "preemptions", "{:.0f}"),
        ("tokens of prompts found in a cache", "hit_rate", "{:.1%}"),
        ("the same, of requests that the kill delayed", "hit_rate_after_restart", "{:.1%}"),
        ("requests that the kill delayed", "delayed_requests", "{:d}"),
        ("time from the kill until the server answered again", "restart_s", "{:.1f} s"),
        ("time until all requests were answered", "seconds", "{:.1f} s"),
    )
    return [("", "shared pool", "two halves")] + [
        (label, *(form.format(each[key]) for each in figures)) for label, key, form in kinds
    ]


def _memory(run: Any, frame: Dict[str, Any], engines: Sequence[int], size: float, seconds: float) -> str:
    """Draw the pages of engines, stacked."""
    names = " and ".join(frame["names"][engine] for engine in engines)
    height = 50 + 280 * size / frame["pages"]
    chart = Chart(f"pages of {names} over time", f"pages of {names}", int(height), seconds, size)
    x = [sample["time_s"] for sample in run.samples]
    base = [0.0] * len(x)
    for kind in BANDS:
        for engine in engines:
            top = [low + sample[kind][engine] for low, sample in zip(base, run.samples)]
            chart.area(f"e{engine} {kind}", f"{frame['names'][engine]}: {kind}", x, base, top)
            base = top
    chart.level(size, "size of the pool" if run.shared else "half of the pool")
    if 0 in engines:
        chart.event(run.killed_s, "few", f"server of {frame['names'][0]} killed at {run.killed_s:.1f} s")
        chart.event(run.restarted_s, "turn", f"it answers again at {run.restarted_s:.1f} s")
    return chart.end()


def _waiting(runs: Sequence[Any], seconds: float) -> str:
    """Draw the number of unanswered requests of both runs."""
    most = max(4.0, *(sample["unanswered"] for run in runs for sample in run.samples))
    chart = Chart("unanswered requests over time", "unanswered requests", 190, seconds, most)
    for run, css in reversed([*zip(runs, ("shared", "split"))]):
        x = [sample["time_s"] for sample in run.samples]
        chart.line(css, run.name, x, [sample["unanswered"] for sample in run.samples])
    return chart.end()


def _legend(entries: Sequence[Tuple[str, str]]) -> str:
    items = "".join(f"<li><i {style}></i>{text}</li>" for style, text in entries)
    return f'<ul class="legend">{items}</ul>\n'


def _box(variable: str) -> str:
    return f'style="background:var(--{variable})"'


def _rule(variable: str, kind: str) -> str:
    return f'class="rule" style="border-top-color:var(--{variable});border-top-style:{kind}"'


def write(path: Path, frame: Dict[str, Any], runs: Sequence[Any], figures: Sequence[Dict[str, Any]]) -> None:
    """Write the page; an existing file is replaced only when the new one is complete."""
    shared, halves = figures
    seconds = max(run.samples[-1]["time_s"] for run in runs)
    size = float(frame["pages"])
    tiles = [
        (f"{frame['differing']}", "answers that differ between the runs", "bad" if frame["differing"] else "good"),
        (f"{shared['requests']}", "requests answered, in each of both runs", ""),
        (f"{shared['restart_s']:.0f} s", "from the kill of a server until it answered again", ""),
    ]
    for key, form, text in (
        ("ttft_mean_s", "{:.2f} s / {:.2f} s", "mean time to the first token, shared / halves"),
        ("preemptions", "{:.0f} / {:.0f}", "preemptions, shared / halves"),
        ("hit_rate", "{:.0%} / {:.0%}", "of the prompts' tokens found in a cache, shared / halves"),
    ):
        tiles.append((form.format(shared[key], halves[key]), text, ""))
    tile = "".join(
        f'<div class="tile"><b class="{css}">{value}</b><span>{text}</span></div>\n' for value, text, css in tiles
    )
    legend = [
        (_box(f"e{engine}{suffix}"), f"{name}, {text}")
        for engine, name in enumerate(frame["names"])
        for suffix, text in (("", "needed"), ("p", "offered: cached until the page is needed"), ("i", "idle"))
    ]
    legend += [(_rule("kill", "dotted"), "a server is killed"), (_rule("ink", "solid"), "it answers again")]
    lines = [(_rule("shared", "solid"), "shared pool"), (_rule("split", "dashed"), "two halves")]
    table = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows(figures)[1:])
    text = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>gpool: two models in vLLM, one pool</title>
<style>
{STYLE.read_text()}</style></head>
<body><main>
<h1>Two models in vLLM, one pool of memory</h1>
<p class="soft">{" and ".join(frame["names"])}, served by two vLLM servers on gpool, and by two on fixed halves<br>
{frame["date"]}</p>
<div class="tiles">{tile}</div>
<h2>One shared pool</h2>
<p class="soft">Pages of both KV caches over time, stacked. Published prefixes count for the server that published
them.</p>
{_memory(runs[0], frame, (0, 1), size, seconds)}{_legend(legend)}
<h2>Two fixed halves</h2>
<p class="soft">The same requests to vLLM without gpool, with half of the memory for each KV cache. Only the part that
running requests use is drawn: vLLM does not report cached prefixes.</p>
{"".join(_memory(runs[1], frame, (engine,), size / 2, seconds) for engine in range(2))}
<h2>Unanswered requests</h2>
{_waiting(runs, seconds)}{_legend(lines)}
<h2>Figures</h2>
<div class="scroll"><table><thead><tr><th></th><th>shared pool</th><th>two halves</th></tr></thead>
<tbody>{table}</tbody></table></div>
<p class="soft">Times to the first token were measured by the program that sent the requests, for those that the kill
delayed in neither run.</p>
<h2>What was run</h2>
<p>Two processes <code>vllm serve</code>, each with its own model, answered the requests of two recorded traces: Azure
Public Dataset, &ldquo;Azure LLM inference trace 2023&rdquo; (Patel et al., Splitwise, ISCA 2024), CC-BY 4.0. The models
are small and have random weights. Prompts are random tokens (seeded); prompts and answers have 1/{frame["part"]} of the
tokens in the traces. Every fourth prompt begins with an earlier one. In the second quarter of {frame["seconds"]:g} s no
requests arrived for <b>{frame["names"][0]}</b>, in the third quarter none for <b>{frame["names"][1]}</b>; the other
server got its requests of both quarters meanwhile. Shortly before the second quarter, the server of
<b>{frame["names"][0]}</b> was killed and started again. Its unfinished requests, and those that arrived until it
answered again, were sent then.</p>
<p>The figures are those of small models on the CPU of this machine. The servers and the program that sends the requests
compete for its cores. They show the effect of sharing, not the speed of a GPU.</p>
<dl><dt>command</dt><dd><code>{html.escape(frame["command"])}</code></dd>
<dt>machine</dt><dd>{html.escape(frame["machine"])}</dd>
<dt>pool</dt><dd>{frame["pages"]} pages of {frame["page_bytes"] >> 10} KiB</dd></dl>
</main></body></html>
"""
    partial = path.with_name(path.name + ".part")
    partial.write_text(text)
    partial.replace(path)
