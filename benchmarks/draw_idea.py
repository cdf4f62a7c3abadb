"""Draws the pictures of docs/how-it-works.md: a small graph of events, its levels, the effect of d-nodes, windows.

    python benchmarks/draw_idea.py                # writes docs/pictures/idea-*.svg

Links, levels and d-nodes are computed by the planner of this package, not by hand.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynedge.plan.dnodes import select_dnodes
from dynedge.plan.levels import NO_DNODES, levels
from dynedge.plan.links import Linker

USERS = "Ada", "Ben", "Cem", "Dora"
ITEMS = {"tea": "#3b6fb6", "milk": "#d1793f", "rice": "#4c9a5b"}
EVENTS = [
    ("Ada", "tea"),
    ("Ben", "tea"),
    ("Cem", "milk"),
    ("Ada", "milk"),
    ("Ben", "rice"),
    ("Cem", "tea"),
    ("Dora", "tea"),
    ("Ada", "rice"),
    ("Dora", "milk"),
    ("Ben", "tea"),
    ("Cem", "tea"),
    ("Dora", "tea"),
    ("Ada", "tea"),
    ("Ben", "milk"),
]
DNODES = 2
GREY, RED = "#888888", "#c23b3b"

Ints = NDArray[Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).parents[1] / "docs" / "pictures"
    parser.add_argument("--out", type=Path, default=default, help="Folder of the pictures.")
    args = parser.parse_args()
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "dynedge"  # the same file every time
    user = np.array([USERS.index(name) for name, _ in EVENTS], np.int32)
    item = np.array([list(ITEMS).index(name) for _, name in EVENTS], np.int32)
    prev = Linker(np.zeros(len(USERS), np.bool_), np.zeros(len(ITEMS), np.bool_))(user, item)
    dnodes = select_dnodes(prev, max_dnodes=DNODES)
    draw_graph(args.out / "idea-graph.svg", prev)
    draw_levels(args.out / "idea-levels.svg", prev, NO_DNODES)
    draw_levels(args.out / "idea-dnodes.svg", prev, dnodes)
    draw_windows(args.out / "idea-windows.svg")


def draw_graph(path: Path, prev: Ints) -> None:
    """Events by time and user; arrows from the event that writes a state to the one that reads it."""
    figure, axes = new_figure(3.0)
    place = {k: (k, -USERS.index(user)) for k, (user, _) in enumerate(EVENTS)}
    draw_links(axes, prev, place, NO_DNODES)
    draw_events(axes, place)
    axes.set_yticks([-k for k in range(len(USERS))], USERS)
    axes.set_xlabel("time →")
    save(figure, path)


def draw_levels(path: Path, prev: Ints, dnodes: Ints) -> None:
    """Events by level; links that a d-node cuts are dashed."""
    level = levels(prev, dnodes)
    figure, axes = new_figure(2.4)
    place, used = {}, dict.fromkeys(range(1, int(level.max()) + 1), 0)
    for k in range(len(EVENTS)):
        place[k] = (int(level[k]), -used[int(level[k])])
        used[int(level[k])] += 1
    draw_links(axes, prev, place, dnodes)
    draw_events(axes, place)
    axes.set_xticks(list(used), [f"level {k}" for k in used])
    axes.set_xlim(0.4, 9.6)
    axes.set_yticks([])
    save(figure, path)


def draw_windows(path: Path) -> None:
    figure, axes = new_figure(1.5)
    for window in range(3):
        left = 5 * window
        axes.add_patch(rectangle((left, 0), 4.2, 1.0))
        axes.text(left + 2.1, 1.12, f"window {window + 1}: one training step", ha="center", fontsize=9, color=GREY)
        places = {k: (left + 0.6 + 0.75 * k, 0.25 + 0.5 * ((k * 7 + window) % 3) / 2) for k in range(5)}
        for k, (x, y) in places.items():
            axes.plot(x, y, "o", ms=9, color=list(ITEMS.values())[(k + window) % 3])
        if window < 2:
            arrow(axes, (left + 4.2, 0.5), (left + 5.0, 0.5), GREY, "-")
            axes.text(left + 4.6, 0.6, "states", ha="center", fontsize=8, color=GREY)
    axes.set_xlim(-0.3, 14.6)
    axes.set_ylim(-0.1, 1.4)
    axes.set_yticks([])
    axes.set_xticks([])
    save(figure, path)


def new_figure(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, height), layout="tight")
    axes = figure.add_subplot()
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=GREY)
    axes.xaxis.label.set_color(GREY)
    axes.set_xticks([])
    axes.margins(0.04, 0.25)
    return figure, axes


def draw_events(axes: Any, place: dict[int, tuple[float, float]]) -> None:
    for k, (x, y) in place.items():
        axes.plot(x, y, "o", ms=17, color=ITEMS[EVENTS[k][1]], zorder=3)
        axes.text(x, y, str(k + 1), color="white", ha="center", va="center", fontsize=9, zorder=4)
    for name, color in ITEMS.items():
        axes.plot([], [], "o", color=color, label=name)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, labelcolor=GREY)


def draw_links(axes: Any, prev: Ints, place: dict[int, tuple[float, float]], dnodes: Ints) -> None:
    cut = {(int(code) // 2, int(code) % 2) for code in dnodes}
    for k, pair in enumerate(prev):
        for side, source in enumerate(map(int, pair)):
            if source >= 0:
                is_cut = (source, side) in cut
                arrow(axes, place[source], place[k], RED if is_cut else GREY, ":" if is_cut else "-")
    if cut:
        axes.plot([], [], ":", color=RED, label="d-node: read as φ")


def arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], color: str, style: str) -> None:
    arrowprops = {
        "arrowstyle": "->",
        "color": color,
        "linestyle": style,
        "shrinkA": 9,
        "shrinkB": 9,
        "connectionstyle": "arc3,rad=0.12",
    }
    axes.annotate("", end, start, arrowprops=arrowprops, zorder=2)


def rectangle(corner: tuple[float, float], width: float, height: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(corner, width, height, fill=False, edgecolor=GREY, linewidth=1.0)


def save(figure: Any, path: Path) -> None:
    figure.savefig(path, transparent=True, metadata={"Date": None})
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
