#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/benchmarks.md and docs/benchmarks.svg from what `./dev bench` measured.

    report.py RESULTS.json DOCS-DIRECTORY
"""
import html
import json
import math
import pathlib
import re
import sys

TITLES = {
    "memory": "Memory",
    "start": "Start",
    "info": "GetPluginInfo as fast as it goes",
    "hostile": "Clients that ask for much and read nothing",
    "node": "What kubelet calls most",
    "create": "CreateVolume",
    "stage": "NodeStageVolume",
    "many": "A thousand volumes",
    "snapshot": "Snapshots and clones",
    "forks": "Forks of a 400 MB image",
    "inline": "Inline volumes",
    "groups": "Group snapshots",
    "delta": "Changed blocks",
    "copy": "Copying without reflink",
    "hang": "Beside hanging volumes: twice as many as helpers are kept warm",
    "hang-all": "Beside hanging volumes: twice as many as there can be helpers",
    "density": "With thousands of mounted volumes",
    "stats": "Watching a thousand volumes",
    "metrics": "Scraping /metrics",
    "probes": "Counting what devices do",
    "guard": "Devices of raw block volumes",
    "limits": "I/O limits",
    "raw-io": "A disk's own speed",
    "raw-crypt": "Encrypted volumes",
    "raw-calls": "Volumes of a raw pool",
    "raw-thin": "Thin volumes of a raw pool",
    "attach": "Volumes of other nodes",
    "move": "A volume that moves under I/O",
    "cluster": "Through a controller",
    "cluster-many": "A thousand nodes",
    "cluster-copy": "Copies between nodes",
    "cluster-beside": "Calls beside a copy between nodes",
}

HEAD = """# Benchmarks

`bench/report.py` writes this page from `bench/results.json` and `bench/findings.md`; do not edit it.

- *Ratio* is ours by the other's: the median of paired rounds that took turns in one run, with the smallest and the
  largest beside it. Absolute numbers belong to the machine and to what else it did; compare the ratios.
- *Bar* is what the project asks of itself. A row without one is for information.
"""

REPEAT = """## Repeat it

    ./dev bench                                # all, some minutes, as root
    ./dev bench create stage                   # some groups
    BENCH_ARGS='-rounds 15' ./dev bench node   # more rounds
    TMPDIR=/dev/shm ./dev bench                # pools in memory: without the disk's own noise
    BENCH_ARGS='-device /dev/sdx -io-seconds 10 -io-mib 4096' ./dev bench raw-io raw-crypt raw-calls raw-thin
                                               # on a disk of which nothing stays
    scripts/vm/bench.sh raw                    # the same in a guest, by instructions

Packages nghttp2-client, nghttp2-server and fio are installed if they are missing. csi-driver-host-path is not: give the
path of a built one as `RINGVOL_BENCH_PEER`; without it its rows are left out.
"""


def number(value):
    if value is None:
        return ""
    if value != 0 and abs(value) < 10:
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


def bar_of(row):
    bar = row.get("bar", "")
    return bar.replace(">=", "at least").replace("<=", "at most").replace("ratio ", "ratio ")


def verdict(row):
    return {True: "met", False: "**not met**", None: ""}[row.get("met")]


def table(rows):
    yield "| measured | ours | other | ratio | bar | |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        unit = " " + row["unit"] if row.get("unit") else ""
        ours = number(row["ours"]) + unit
        other = ratio = ""
        if row.get("beside"):
            other = f"{number(row.get('other', 0))}{unit} ({row['beside']})"
            ratio = number(row["ratio"])
        if row.get("rounds", 0) > 1 and row.get("high"):
            spread = f"{number(row.get('low', 0))} to {number(row['high'])}"
            ratio = f"{ratio} ({spread})" if ratio else f"({spread})"
        what = row["what"] + (f"; {row['note']}" if row.get("note") else "")
        yield f"| {what} | {ours} | {other} | {ratio} | {bar_of(row)} | {verdict(row)} |"


def limit_of(row):
    found = re.search(r"([<>]=) ([0-9.]+)", row["bar"])
    return found.group(1), float(found.group(2))


def score(row, value):
    """How far from the bar: 1 is the bar itself, less is better, whichever way the bar goes."""
    sense, limit = limit_of(row)
    if sense == ">=":
        return limit / value if value else math.inf
    return value / limit if limit else 1 + value


def plot(rows):
    """One line a bar: where we are, as a part of what is allowed, on a logarithmic axis."""
    rows = [r for r in rows if r.get("bar") and limit_of(r)[1] > 0]
    left, width, line, top = 470, 360, 20, 46
    low, high = 1 / 32, 4
    height = top + line * len(rows) + 30

    def x(value):
        value = min(max(value, low), high)
        return left + width * math.log(value / low) / math.log(high / low)

    yield (f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 110}" height="{height}" '
           f'viewBox="0 0 {left + width + 110} {height}" font-family="sans-serif" font-size="12">')
    yield f'<rect width="100%" height="100%" fill="#ffffff"/>'
    yield f'<text x="12" y="20" font-size="14">Measured, as a part of what its bar allows (1 is the bar; left is better)</text>'
    for tick in (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4):
        colour = "#a02020" if tick == 1 else "#dddddd"
        yield f'<line x1="{x(tick):.0f}" y1="{top - 6}" x2="{x(tick):.0f}" y2="{height - 26}" stroke="{colour}"/>'
        label = f"1/{1 / tick:.0f}" if tick < 1 else f"{tick:.0f}"
        yield f'<text x="{x(tick):.0f}" y="{height - 10}" text-anchor="middle" fill="#555555">{label}</text>'
    for i, row in enumerate(rows):
        y = top + line * i + 10
        on_ratio = row["bar"].startswith("ratio")
        value = score(row, row["ratio"] if on_ratio else row["ours"])
        colour = "#2a7f4f" if row["met"] else "#c03030"
        text = row["what"] if len(row["what"]) < 72 else row["what"][:70] + "..."
        yield f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{html.escape(text)}</text>'
        if on_ratio and row.get("high"):
            ends = sorted(x(score(row, row[k])) for k in ("low", "high"))
            yield f'<line x1="{ends[0]:.1f}" y1="{y}" x2="{ends[1]:.1f}" y2="{y}" stroke="{colour}" stroke-opacity="0.4" stroke-width="4"/>'
        yield f'<circle cx="{x(value):.1f}" cy="{y}" r="5" fill="{colour}"/>'
        shown = row["ratio"] if on_ratio else row["ours"]
        tail = "" if on_ratio else " " + row.get("unit", "")
        yield f'<text x="{left + width + 10}" y="{y + 4}" fill="#555555">{number(shown)}{"x" if on_ratio else tail}</text>'
    yield "</svg>"


def main():
    results, docs = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
    machine, rows = results["machine"], results["rows"]
    barred = [r for r in rows if r.get("met") is not None]
    out = [HEAD]
    missed = sum(not r["met"] for r in barred)
    out.append(f"{len(barred)} rows have a bar; {len(barred) - missed} are met, {missed} are not.\n")
    out.append("![How far each row is from its bar](benchmarks.svg)\n")
    for group, title in TITLES.items():
        mine = [r for r in rows if r["group"] == group]
        if mine:
            out.append(f"## {title}\n")
            out.extend(table(mine))
            out.append("")
    out.append("## The machine\n")
    out.append("| machine | |\n|---|---|")
    for key in sorted(machine):
        out.append(f"| {key} | {machine[key]} |")
    order = list(TITLES)
    for key in sorted(results["load"], key=lambda k: order.index(k) if k in order else len(order)):
        out.append(f"| load average, {key} | {results['load'][key]} |")
    out.append("\nThe load averages are those at the beginning and the end of each group of rows.\n")
    out.append(REPEAT)
    notes = pathlib.Path(__file__).with_name("findings.md")
    if notes.exists():
        out.append(notes.read_text().rstrip())
    (docs / "benchmarks.md").write_text("\n".join(out).rstrip() + "\n")
    (docs / "benchmarks.svg").write_text("\n".join(plot(rows)) + "\n")


main()
