"""Small charts as SVG text, for a self-contained HTML page. Colours come from CSS classes of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

# Approximate size of a character of a label in pixels: width, width in bold, height.
CHAR_WIDTH, BOLD_WIDTH, LINE_HEIGHT = 6.6, 7.6, 13.0

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` … `high` to pixels from `start` … `stop`, linearly or by the logarithm.

    With `integer`, only whole numbers are ticks.
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False
    integer: bool = False

    def __call__(self, value: float) -> float:
        transform = math.log if self.log else float
        low, high = transform(self.low), transform(self.high)
        share = (transform(value) - low) / ((high - low) or 1.0)
        return self.start + share * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """Round numbers within the range."""
        values = _log_ticks(self.low, self.high) if self.log else _linear_ticks(self.low, self.high)
        return [value for value in values if not self.integer or value == int(value)]


def _linear_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / count or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with more values in between the fewer decades there are."""
    decades = math.log10(high / low)
    factors: Sequence[float] = (1, 1.5, 2, 3, 5, 7) if decades < 1 else (1, 2, 5) if decades < 3 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for power in powers for factor in factors if low <= (value := factor * 10.0**power) <= high]


def chart(width: float, height: float, parts: Iterable[str], title: str) -> str:
    """An SVG element of the given parts; the title is its description for screen readers."""
    content = "".join(parts)
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img"><title>{escape(title)}</title>{content}</svg>'


def line(x1: float, y1: float, x2: float, y2: float, css_class: str) -> str:
    return f'<line class="{css_class}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def path(points: Iterable[Point], css_class: str) -> str:
    return f'<polyline class="{css_class}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def dot(x: float, y: float, css_class: str, radius: float = 4.5, tooltip: str = "") -> str:
    title = f"<title>{escape(tooltip)}</title>"
    return f'<circle class="{css_class}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}">{title}</circle>'


def text(x: float, y: float, words: str, css_class: str = "", anchor: str = "start") -> str:
    return f'<text class="{css_class}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def axes(x: Scale, y: Scale, format_x: Callable[[float], str] = "{:g}".format) -> list[str]:
    """Grid lines with tick labels, those of x at the bottom and those of y at the left."""
    vertical = [line(x(value), y.start, x(value), y.stop, "grid") for value in x.ticks()]
    horizontal = [line(x.start, y(value), x.stop, y(value), "grid") for value in y.ticks()]
    x_labels = [text(x(value), y.start + 16, format_x(value), "tick", "middle") for value in x.ticks()]
    y_labels = [text(x.start - 6, y(value) + 4, f"{value:.3g}", "tick", "end") for value in y.ticks()]
    return [*vertical, *horizontal, *x_labels, *y_labels]


def labels(points: Sequence[Point], names: Sequence[str], css_classes: Sequence[str], x: Scale) -> list[str]:
    """A label for each point, placed greedily where it overlaps other labels and points least.

    A label with a CSS class is bold. `x` bounds the labels horizontally.
    """
    occupied: list[Box] = [(px - 6, py - 6, px + 6, py + 6) for px, py in points]
    parts = []
    for (px, py), name, css_class in zip(points, names, css_classes, strict=True):
        boxes = list(_label_boxes(px, py, len(name) * (BOLD_WIDTH if css_class else CHAR_WIDTH)))
        inside = [box for box in boxes if box[0] >= x.start - 4 and box[2] <= x.stop + 4 and box[1] >= 0]
        best = min(inside or boxes, key=lambda box: sum(_overlap(box, other) for other in occupied))
        occupied.append(best)
        left, top, right, bottom = best
        if abs((top + bottom) / 2 - py) > LINE_HEIGHT:
            parts.append(line(px, py, min(max(px, left), right), bottom if bottom < py else top, "lead"))
        anchor, position = (
            ("end", right) if right < px else ("start", left) if left > px else ("middle", (left + right) / 2)
        )
        parts.append(text(position, bottom - 3, name, f"label {css_class}", anchor))
    return parts


def _label_boxes(x: float, y: float, width: float) -> Iterable[Box]:
    """Possible boxes of a label, the nearest first: right, left, above, below, and further up and down."""
    for lines in (0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0):
        middle = y + lines * LINE_HEIGHT
        for left in (x + 8, x - 8 - width, *((x - width / 2,) if lines else ())):
            yield left, middle - LINE_HEIGHT / 2, left + width, middle + LINE_HEIGHT / 2


def _overlap(one: Box, other: Box) -> float:
    """The common area of two boxes, in square pixels."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0.0) * max(height, 0.0)
