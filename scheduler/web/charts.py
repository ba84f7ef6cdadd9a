"""Charts as SVG. Shapes are stretched to the width that there is, so no text is in them but
titles.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from markupsafe import Markup, escape

HIGH = 100
ORDER = ("good", "next", "busy", "calm", "warn", "bad")


class Column(NamedTuple):
    """One column: how much of each tone, and what it says when one points at it."""

    title: str
    parts: Mapping[str, float]


class Point(NamedTuple):
    """One value of a line or one dot; None: there is none here."""

    title: str
    value: float | None
    tone: str = "busy"


def bars(title: str, desc: str, columns: Sequence[Column], most: float) -> Markup:
    """Draw columns that stand on each other by tone."""
    shapes = []
    for place, column in enumerate(columns):
        top, inner = float(HIGH), []
        for tone in ORDER:
            tall = column.parts.get(tone, 0) / most * HIGH if most else 0
            if tall > 0:
                top -= tall
                inner.append(_rect(place + 0.1, top, 0.8, tall, f"fill-{tone}"))
        shapes.append(_column(place, column.title, inner))
    return _svg("bars", title, desc, len(columns), shapes)


def lane(title: str, desc: str, columns: Sequence[Column], now: int) -> Markup:
    """Draw one cell a column, in the tone that is worst in it; from `now` on they are to come."""
    shapes = []
    for place, column in enumerate(columns):
        worst = max(
            (ORDER.index(tone) for tone, much in column.parts.items() if much), default=None
        )
        kind = "empty" if worst is None else "soon" if place >= now else f"fill-{ORDER[worst]}"
        shapes.append(_titled(column.title, [_cell(place, 0.08, kind)]))
    shapes.append(_line((now, 0), (now, HIGH), "now"))
    return _svg("lane", title, desc, len(columns), shapes)


def lines(title: str, desc: str, series: Mapping[str, Sequence[Point]], most: float) -> Markup:
    """Draw lines, named by their class; where there is no value a line is broken."""
    wide = max((len(points) for points in series.values()), default=0)
    shapes: list[str] = []
    for name, points in series.items():
        run: list[str] = []
        for place, point in enumerate([*points, Point("", None)]):
            if point.value is not None:
                run.append(f"{place + 0.5:.2f},{_up(point.value, most):.2f}")
            elif run:
                run = run if len(run) > 1 else [run[0], run[0]]
                shapes.append(_path(f"line line-{name}", " ".join(run)))
                run = []
    for place in range(wide):
        said = ", ".join(points[place].title for points in series.values() if points[place].title)
        shapes.append(_column(place, said, []))
    return _svg("lines", title, desc, wide, shapes)


def dots(title: str, desc: str, points: Sequence[Point], most: float) -> Markup:
    """Draw a stem for each value, in its tone."""
    shapes = []
    for place, point in enumerate(points):
        top = _up(point.value or 0.0, most)
        tall = max(2.0, HIGH - top)
        shapes.append(
            _column(
                place,
                point.title,
                [_rect(place + 0.15, HIGH - tall, 0.7, tall, f"fill-{point.tone}")],
            )
        )
    return _svg("dots", title, desc, max(len(points), 1), shapes)


def strip(title: str, cells: Sequence[Point], wide: int) -> Markup:
    """Draw the newest ends of a job as cells, oldest first; what never was is left empty."""
    missing = max(0, wide - len(cells))
    shapes = [_cell(place, 0.1, "empty") for place in range(missing)]
    for place, cell in enumerate(cells, missing):
        shapes.append(_titled(cell.title, [_cell(place, 0.1, f"fill-{cell.tone}")]))
    return _svg("strip", title, "", wide, shapes)


def share(title: str, parts: Sequence[tuple[str, str, float]]) -> Markup:
    """Draw one bar out of named parts: (class, title, how much)."""
    whole = sum(part[2] for part in parts)
    shapes, left = [], 0.0
    for kind, said, much in parts:
        wide = much / whole * HIGH if whole else 0.0
        if wide:
            shapes.append(_titled(said, [_rect(left, 0, max(wide - 0.4, 0.2), HIGH, kind)]))
        left += wide
    if not whole:
        shapes.append(_rect(0, 0, HIGH, HIGH, "empty"))
    return _svg("share", title, "", HIGH, shapes)


def links(sources: int, *, into: bool) -> Markup:
    """Draw the lines from some boxes on one side to one in the middle of the other."""
    shapes = []
    for place in range(sources):
        there = (place + 0.5) / sources * HIGH
        begin, end = (there, HIGH / 2) if into else (HIGH / 2, there)
        shapes.append(
            f'<path class="edge" d="M0 {begin:.1f}C50 {begin:.1f} 50 {end:.1f} 100 {end:.1f}"/>'
        )
    return _made(
        '<svg class="links" viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">',
        shapes,
    )


def _svg(kind: str, title: str, desc: str, wide: int, shapes: Iterable[str]) -> Markup:
    said = escape(f"{title}. {desc}" if desc else title)
    size = f'viewBox="0 0 {max(wide, 1)} 100" preserveAspectRatio="none"'
    about = [f"<title>{escape(title)}</title>", *([f"<desc>{escape(desc)}</desc>"] if desc else [])]
    return _made(
        f'<svg class="chart {kind}" role="img" aria-label="{said}" {size}>', [*about, *shapes]
    )


def _made(opening: str, shapes: Iterable[str]) -> Markup:
    """Put a chart together; its shapes are plain text until here, a page has thousands, and titles
    are escaped.
    """
    return Markup(opening + "".join(shapes) + "</svg>")  # noqa: S704


def _column(place: int, title: str, shapes: Sequence[str]) -> str:
    """Make one column; all of its height can be pointed at."""
    return _titled(title, [_cell(place, 0, "hit"), *shapes] if title else shapes)


def _titled(title: str, shapes: Iterable[str]) -> str:
    """Put shapes together; with a title they say it."""
    return f"<g><title>{escape(title)}</title>{''.join(shapes)}</g>" if title else "".join(shapes)


@lru_cache(maxsize=2000)
def _cell(place: int, gap: float, kind: str) -> str:
    """Draw all the height of a column, but for a gap on either side; a page has hundreds, and few
    that differ.
    """
    return _rect(place + gap, 0, 1 - 2 * gap, HIGH, kind)


def _rect(x: float, y: float, wide: float, tall: float, kind: str) -> str:
    return f'<rect x="{x:.2f}" y="{y:.2f}" width="{wide:.2f}" height="{tall:.2f}" class="{kind}"/>'


def _line(begin: tuple[float, float], end: tuple[float, float], kind: str) -> str:
    return f'<line x1="{begin[0]}" y1="{begin[1]}" x2="{end[0]}" y2="{end[1]}" class="{kind}"/>'


def _path(kind: str, points: str) -> str:
    return f'<polyline class="{kind}" points="{points}"/>'


def _up(value: float, most: float) -> float:
    """Say how far from the top a value is; a little room is left above the largest."""
    return HIGH - (min(value, most) / most * (HIGH - 6) if most else 0)
