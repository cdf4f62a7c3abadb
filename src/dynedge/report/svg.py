"""Small charts as SVG text, for a page that needs nothing but itself. Colours are the page's CSS."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

LETTER, BOLD, LINE = 6.6, 7.6, 13.0  # about the width of a letter of a label, plain or not, and its height, in pixels


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` onto pixels from `start` to `stop`, by their logarithm if `log`.

    If `whole`, only whole numbers are ticks.
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False
    whole: bool = False

    def __call__(self, value: float) -> float:
        of = math.log if self.log else float
        share = (of(value) - of(self.low)) / ((of(self.high) - of(self.low)) or 1.0)
        return self.start + share * (self.stop - self.start)

    def ticks(self) -> list[float]:
        found = _log_ticks(self.low, self.high) if self.log else _ticks(self.low, self.high)
        return [at for at in found if not self.whole or at == int(at)]


def _ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, about so many."""
    rough = (high - low) / about or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if math.log10(high / low) < 3 else (1,)
    return [value for power in powers for factor in factors if low <= (value := factor * 10.0**power) <= high]


def chart(width: float, height: float, parts: Iterable[str], title: str) -> str:
    inside = "".join(parts)
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img"><title>{escape(title)}</title>{inside}</svg>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def path(points: Iterable[tuple[float, float]], kind: str) -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def dot(x: float, y: float, kind: str, radius: float = 4.5, told: str = "") -> str:
    """`told` is shown by browsers where a mouse rests on it."""
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"><title>{escape(told)}</title></circle>'


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def axes(x: Scale, y: Scale, told: Callable[[float], str] = "{:g}".format) -> list[str]:
    """Grid lines with their numbers: those of x at the bottom, those of y at the left."""
    down = [line(x(at), y.start, x(at), y.stop, "grid") for at in x.ticks()]
    across = [line(x.start, y(at), x.stop, y(at), "grid") for at in y.ticks()]
    below = [text(x(at), y.start + 16, told(at), "tick", "middle") for at in x.ticks()]
    beside = [text(x.start - 6, y(at) + 4, f"{at:.3g}", "tick", "end") for at in y.ticks()]
    return [*down, *across, *below, *beside]


def labels(
    points: Sequence[tuple[float, float]], words: Sequence[str], kinds: Sequence[str], x: Scale, y: Scale
) -> list[str]:
    """A label beside each point, where it covers least of other labels and points: the first ones choose first.

    `kinds` are CSS classes; whoever has one is printed bold.
    """
    taken = [(px - 6, py - 6, px + 6, py + 6) for px, py in points]
    found = []
    for (px, py), name, kind in zip(points, words, kinds, strict=True):
        boxes = list(_places(px, py, len(name) * (BOLD if kind else LETTER)))
        inside = [box for box in boxes if box[0] >= x.start - 4 and box[2] <= x.stop + 4 and box[1] >= 0]
        best = min(inside or boxes, key=lambda box: sum(_common(box, other) for other in taken))
        taken.append(best)
        left, top, right, bottom = best
        if abs((top + bottom) / 2 - py) > LINE:
            found.append(line(px, py, min(max(px, left), right), bottom if bottom < py else top, "lead"))
        anchor, at = (
            ("end", right) if right < px else ("start", left) if left > px else ("middle", (left + right) / 2)
        )
        found.append(text(at, bottom - 3, name, f"label {kind}", anchor))
    return found


Box = tuple[float, float, float, float]


def _places(x: float, y: float, width: float) -> Iterable[Box]:
    """Boxes for a label, the nearest first: right, left, above, below, and further up and down."""
    for away in (0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0):
        middle = y + away * LINE
        for left in (x + 8, x - 8 - width, *((x - width / 2,) if away else ())):
            yield left, middle - LINE / 2, left + width, middle + LINE / 2


def _common(one: Box, other: Box) -> float:
    """How many square pixels two boxes share."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return max(wide, 0.0) * max(high, 0.0)
