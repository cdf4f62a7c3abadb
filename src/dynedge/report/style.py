"""How all pictures look, and the one place that imports matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynedge.errors import UsageError

# Okabe and Ito's colours: told apart by the colour-blind, and in print.
BLUE, ORANGE, GREEN, RED, SKY, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#777777"


def figure(width: float, height: float, columns: int = 1, rows: int = 1, **more: Any) -> tuple[Any, Any]:
    """A figure and its axes, in this project's style."""
    try:
        import matplotlib
    except ImportError:
        raise UsageError("pictures need matplotlib; install it with: pip install 'dynedge[plots]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(rows, columns, figsize=(width, height), layout="constrained", **more)
    for ax in axes.flat if hasattr(axes, "flat") else [axes]:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25, linewidth=0.6)
        ax.set_axisbelow(True)
    return fig, axes


def save(fig: Any, path: Path) -> None:
    """Write the picture; the file's ending says which kind."""
    import matplotlib.pyplot as plt

    try:
        fig.savefig(path, dpi=130)
    except ValueError:
        raise UsageError(f"--plot {path} should end in .png, .svg or .pdf.") from None
    finally:
        plt.close(fig)
