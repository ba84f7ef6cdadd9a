"""Charts as SVG, without a library: bars of contestants and curves of growth. They read on light
and on dark pages.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import median

import harness

DOCS = harness.HERE.parent / "docs"
WIDTH, LEFT, RIGHT, LINE = 760, 190, 150, 26
STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600; font-size: 15px }
.dim { fill: #6e7781 } .bar { fill: #afb8c1 } .ours { fill: #2da44e } .lost { fill: #cf222e } .any { opacity: 0.55 }
.limit { fill: none; stroke: #6e7781; stroke-dasharray: 4 3 } .axis { stroke: #d0d7de }
.range { stroke: #57606a; stroke-width: 1.5 } .curve { fill: none; stroke-width: 2 }
.c0 { stroke: #2da44e; fill: #2da44e } .c1 { stroke: #bf8700; fill: #bf8700 } .c2 { stroke: #0969da; fill: #0969da }
.c3 { stroke: #8250df; fill: #8250df } polyline { fill: none !important }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .dim { fill: #9198a1 } .bar { fill: #484f58 } .range { stroke: #c9d1d9 }
.axis { stroke: #3d444d } }
</style>"""


def bars(
    title: str,
    figures: Mapping[str, Sequence[float]],
    *,
    more: bool = True,
    limit: tuple[str, float] | None = None,
) -> str:
    """Draw a bar for each contestant, best first, with its least and greatest; a limit is a line of
    dashes.
    """
    order = sorted(figures, key=lambda name: median(figures[name]), reverse=more)
    ceiling = max(median(values) for values in figures.values())
    shown = limit is not None and limit[1] < 4 * ceiling  # a limit far away would flatten all bars
    full = max(
        [ceiling, *(max(values) for values in figures.values()), *([limit[1]] if shown else [])]
    )
    scale = (WIDTH - LEFT - RIGHT) / (full or 1)
    parts = [_text(0, 18, title, "title")]
    for place, name in enumerate(order):
        values, top = figures[name], 34 + place * LINE
        middle, kind = median(values), "ours" if name.startswith("ours") else "bar"
        low, high = LEFT + min(values) * scale, LEFT + max(values) * scale
        parts += [
            _text(LEFT - 8, top + 14, name, anchor="end"),
            _bar(kind, LEFT, top, middle * scale),
            _text(max(LEFT + middle * scale, high) + 6, top + 14, harness.number(middle)),
        ]
        if len(values) > 1:
            parts.append(f'<path class="range" d="M{low:.1f} {top + 9}H{high:.1f}"/>')
    height = 34 + len(order) * LINE
    if limit is not None:
        text = f"limit: {limit[0]}, {harness.number(limit[1])}"
        if shown:
            at = LEFT + limit[1] * scale
            parts.append(f'<path class="limit" d="M{at:.1f} 28V{height}"/>')
        parts.append(_text(LEFT, height + 14, text, "dim"))
        height += 20
    return _svg(height, parts)


def ratios(title: str, under: str, rows: Sequence[tuple[str, Sequence[tuple[float, str]]]]) -> str:
    """Draw how many times better we are than one peer, and paler than another: ratios with their verdicts.

    The scale is logarithmic; what goes to the left of the line at 1 is worse. A tie is grey.
    """
    known = [math.log10(ratio) for _, pairs in rows for ratio, _ in pairs]
    low, high = min([0.0, *known]), max([0.1, *known])
    left, right, each = 300, WIDTH - 60, LINE + 10
    scale = (right - left) / (high - low)
    one = left - low * scale
    parts = [_text(0, 18, title, "title"), _text(0, 36, under, "dim")]
    for place, (text, pairs) in enumerate(rows):
        top = 52 + place * each
        parts.append(_text(290, top + 18, text, anchor="end"))
        for number, (ratio, verdict) in enumerate(pairs):
            at, y = one + math.log10(ratio) * scale, top + number * 15
            colour = "bar" if verdict.startswith("tie") else "ours" if ratio >= 1 else "lost"
            parts.append(
                _bar(f"{colour} any" if number else colour, min(at, one), y, abs(at - one), 11)
            )
            parts.append(
                _text(max(at, one) + 5, y + 10, f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}")
            )
    height = 52 + len(rows) * each
    parts.append(f'<path class="limit" d="M{one:.1f} 46V{height}"/>')
    return _svg(height, parts)


def curves(title: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Draw figures over a size, both on logarithmic axes: whatever grows in proportion rises by the
    same slope.
    """
    points = [(x, y) for line in lines.values() for x, y in line if x > 0 and y > 0]
    xs, ys = [math.log10(x) for x, _ in points], [math.log10(y) for _, y in points]
    left, right, top, bottom = 60, WIDTH - 220, 34, 250
    low, high = math.floor(min(ys)), max(math.ceil(max(ys)), math.floor(min(ys)) + 1)

    def place(x: float, y: float) -> tuple[float, float]:
        along = (math.log10(x) - min(xs)) / ((max(xs) - min(xs)) or 1)
        return left + along * (right - left), bottom - (math.log10(y) - low) / (high - low) * (
            bottom - top
        )

    parts = [_text(0, 18, title, "title")]
    for power in range(low, high + 1):
        _, y = place(10 ** min(xs), 10.0**power)
        parts += [
            f'<path class="axis" d="M{left} {y:.1f}H{right}"/>',
            _text(left - 6, y + 4, f"{10.0**power:,g}", "dim", "end"),
        ]
    for x in sorted({x for x, _ in points}):
        parts.append(_text(place(x, 10.0**low)[0], bottom + 18, f"{x:,g}", "dim", "middle"))
    for number, (name, line) in enumerate(lines.items()):
        kind = f"c{number % 4}"
        placed = [place(x, y) for x, y in line if x > 0 and y > 0]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline class="curve {kind}" points="{path}"/>')
        parts += [f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in placed]
        parts.append(
            f'<rect class="{kind}" x="{right + 14}" y="{top + number * 22}" width="10" height="10" '
            'rx="2"/>'
        )
        parts.append(_text(right + 30, top + 10 + number * 22, name))
    return _svg(bottom + 30, parts)


def _bar(kind: str, x: float, y: float, width: float, height: float = LINE - 8) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{max(1, width):.1f}" height="{height}" rx="2"/>'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    chosen = f' class="{kind}"' if kind else ""
    return f'<text{chosen} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: float, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n{STYLE}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def publish(docs: Path, section: str, text: str, drawn: Mapping[str, str]) -> None:
    """Write charts into docs/charts, and a text in place of a section of docs/benchmarks.md."""
    folder = docs / "charts"
    folder.mkdir(exist_ok=True)
    for name, svg in drawn.items():
        (folder / f"{name}.svg").write_text(svg)
    page, begin, end = docs / "benchmarks.md", f"<!-- {section} -->\n", f"<!-- end of {section} -->"
    before, rest = page.read_text().split(begin)
    page.write_text(f"{before}{begin}{text.strip()}\n{end}{rest.split(end)[1]}")
