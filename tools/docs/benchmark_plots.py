#!/usr/bin/env python3
"""The pictures of docs/benchmarks.md show its tables: one bar for each row of a table `| case | weft | peer | ratio |`.

  benchmark_plots.py           checks that the pictures are those of the tables
  benchmark_plots.py --write   draws them
"""
import html
import math
import pathlib
import re
import sys

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
SECTION = re.compile(r"^## (\w[^\n]*)\n(.*?)(?=^## |\Z)", re.M | re.S)
TABLE = re.compile(r"^\| case \| weft \| peer \| ratio \|\n\|[-|]*\n((?:\|.*\n)*)", re.M)
WIDTH, ROW, LEFT, RIGHT, TOP = 860, 22, 330, 180, 34
STYLE = """<style>
  text { font: 12px system-ui, sans-serif; fill: #1f2328 } .note { fill: #59636e }
  .page { fill: #ffffff } .grid { stroke: #e3e7eb } .even { stroke: #59636e } .ahead { fill: #54aeff } .behind { fill: #e08a2c }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .note { fill: #9198a1 }
    .page { fill: #0d1117 } .grid { stroke: #2a3139 } .even { stroke: #9198a1 } .ahead { fill: #2f6cb5 } .behind { fill: #b3691b }
  }
</style>"""


def rows_of(text):
    """(case, peer, times as fast as the peer) of each row. The unit of weft's figure says whether it is a time or a rate (`calls/s`)."""
    for row in TABLE.search(text)[1].splitlines():
        case, weft, peer, ratio = (cell.strip().replace("`", "") for cell in row.strip("|").split("|"))
        median = float(ratio.split()[0])
        yield case, peer, median if weft.endswith("/s") else 1 / median


def picture(rows):
    low = min(0.5, *(math.floor(10 * speed) / 10 for *_, speed in rows))
    high = max(speed for *_, speed in rows) * 1.05
    height = TOP + ROW * len(rows) + 12

    def place(speed):
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(speed / low) / math.log(high / low)

    size = f'width="{WIDTH}" height="{height}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size}>', STYLE, f'<rect {size} class="page"/>']
    for tick in (tick for tick in (0.5, 1, 2, 5, 10, 20, 50, 100) if low <= tick <= high):
        kind = "even" if tick == 1 else "grid"
        lines.append(f'<path d="M{place(tick):.1f} {TOP - 8}V{height - 8}" class="{kind}"/>'
                     f'<text x="{place(tick):.1f}" y="{TOP - 14}" text-anchor="middle" class="note">{tick:g} ×</text>')
    for number, (case, peer, speed) in enumerate(rows):
        y = TOP + ROW * number
        if number == 0 or rows[number - 1][0] != case:
            lines.append(f'<text x="10" y="{y + 14}">{html.escape(case)}</text>')
        left, right = sorted((place(1), place(speed)))
        lines.append(f'<rect x="{left:.1f}" y="{y + 3}" width="{max(right - left, 1):.1f}" height="{ROW - 7}" '
                     f'class="{"ahead" if speed >= 1 else "behind"}"/>'
                     f'<text x="{right + 6:.1f}" y="{y + 14}">{speed:.{0 if speed >= 10 else 1 if speed >= 2 else 2}f} × '
                     f'<tspan class="note">{html.escape(peer)}</tspan></text>')
    return "\n".join([*lines, "</svg>\n"])


def main(write):
    stale = []
    for title, text in SECTION.findall((DOCS / "benchmarks.md").read_text()):
        if not TABLE.search(text):
            continue
        file, drawn = DOCS / f"images/benchmarks_{title.lower()}.svg", picture(list(rows_of(text)))
        if write:
            file.write_text(drawn)
        elif not file.exists() or file.read_text() != drawn:
            stale.append(file.name)
    if stale:
        sys.exit(f"docs/images: {', '.join(stale)}: not the picture of the table in docs/benchmarks.md: "
                 "run tools/docs/benchmark_plots.py --write")


if __name__ == "__main__":
    main(sys.argv[1:] == ["--write"])
