"""How all pictures look, and the one place that imports matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynedge.errors import UsageError

# Okabe and Ito's colours: told apart by the colour-blind, and in print.
BLUE, ORANGE, GREEN, RED, PINK, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56606A"


def check_target(path: Path) -> None:
    """Refuse, before any work, a picture that could not be written."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise UsageError("--plot needs matplotlib; install it with: pip install 'dynedge[plots]'") from None
    known = sorted(FigureCanvasBase.filetypes)
    if path.suffix.lstrip(".").lower() not in known:
        raise UsageError(f"--plot {path} should end in one of: {', '.join(known)}.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}.")


def figure(width: float, height: float) -> Any:
    """An empty figure. Made without pyplot: nothing global is touched, no screen is needed."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def tidy(axes: Any, title: str, **labels: Any) -> None:
    """A title, the labels, a light grid, no box."""
    axes.set(**labels)
    axes.set_title(title, loc="left", fontweight="bold")
    axes.grid(color="#E3E6EA")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def log_scales(axes: Any) -> None:
    """Both axes logarithmic, with plain numbers at 1, 2, 5, 10, …"""
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        axis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}")
        )
        axis.set_minor_locator(LogLocator(10, subs=()))


def save(fig: Any, path: Path) -> None:
    fig.savefig(path, dpi=130)
