"""Shared look of all figures. matplotlib is imported only when a figure is made."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from dynedge.errors import UsageError

# The palette of Okabe and Ito, which is safe for colour-blind readers and distinguishable in print.
BLUE, ORANGE, GREEN, RED, PINK, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56606A"
GRID = "#E3E6EA"


def check_plot_path(path: Path) -> None:
    """Raises UsageError, before any work, if a figure cannot be written to this path."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise UsageError("--plot needs matplotlib; install it with: pip install 'dynedge[plots]'") from None
    formats = sorted(FigureCanvasBase.filetypes)
    if path.suffix.lstrip(".").lower() not in formats:
        raise UsageError(f"--plot {path} must end in one of: {', '.join(formats)}.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: the folder {path.parent} does not exist.")


def figure(width: float, height: float) -> Any:
    """An empty figure, sized in inches. Made without pyplot, so that it needs no display and no global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def style_axes(axes: Any, title: str, **labels: Any) -> None:
    """Sets the title and labels, a light grid and no box."""
    axes.set(**labels)
    axes.set_title(title, loc="left", fontweight="bold")
    axes.grid(color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def log_scales(axes: Any) -> None:
    """Makes both axes logarithmic with plain numbers: 1, 2, 5, 10, … or, over more than three decades, 1, 10, 100, …

    Call it after plotting: the tick labels depend on the data.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.set(xscale="log", yscale="log")
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        few_decades = math.log10(high / low) <= 3
        axis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if few_decades else (1,)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
        axis.set_minor_locator(LogLocator(10, subs=()))


def short_number(value: float) -> str:
    """A number as a tick label: 500, 2k, 10M."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def integer_ticks(axis: Any) -> None:
    """Puts ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def legend_above_data(axes: Any, share: float = 0.28) -> None:
    """Adds a legend, if anything has a label, and leaves free space for it above the data; the axes start at 0."""
    if axes.get_legend_handles_labels()[0]:
        axes.set_ylim(0, max(axes.dataLim.y1, 1e-9) * (1 + share))
        axes.legend(frameon=False, loc="upper left")


def save(fig: Any, path: Path) -> None:
    fig.savefig(path, dpi=130)
