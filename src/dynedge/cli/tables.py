"""Tables for a person to read: drawn by rich on a terminal, plain text columns otherwise."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence
from typing import Any

MARKS = {0: "*", 1: "°"}  # best, second best
LEGEND = "* best, ° second best"


def table(rows: Sequence[Sequence[str]], *, header: bool = True, text_columns: Sequence[int] = (0,)) -> str:
    """Returns rows of text as a table; columns other than `text_columns` are aligned to the right.

    `header`: the first row holds the headings.
    """
    if sys.stdout.isatty():
        return rich_table(rows, header=header, text_columns=text_columns, width=shutil.get_terminal_size().columns)
    return plain_table(rows, text_columns=text_columns)


def plain_table(rows: Sequence[Sequence[str]], *, text_columns: Sequence[int] = (0,)) -> str:
    """Returns a table as text columns, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) if at in text_columns else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def rich_table(
    rows: Sequence[Sequence[str]], *, header: bool = True, text_columns: Sequence[int] = (0,), width: int = 80
) -> str:
    """Returns a table with rules and bold headings, as text for a terminal of a given width."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD if header else None, show_header=header, show_edge=False, pad_edge=False)
    for at, title in enumerate(rows[0]):
        justify = "left" if at in text_columns else "right"
        drawn.add_column(Text(title) if header else "", justify=justify)  # type: ignore[arg-type]
    for row in rows[header:]:
        drawn.add_row(*map(Text, row))  # Text: square brackets are intervals, not markup
    file = io.StringIO()
    Console(file=file, force_terminal=True, width=width).print(drawn)
    return file.getvalue().rstrip("\n")


def list_table(rows: Sequence[tuple[str, dict[str, Any]]], first: str = "run") -> str:
    """Returns a table of the metrics of recommended lists, by name of a run or model; empty if there are none."""
    from dynedge.evaluation.list_metrics import TITLES

    if not any(name in summary for _, summary in rows for name in TITLES):
        return ""
    lines = [[f"{first}, lists of 10 items", *TITLES.values()]]
    for title, summary in rows:
        values = (summary.get(name) for name in TITLES)
        lines.append([title, *("-" if value is None else f"{value:.4f}" for value in values)])
    return table(lines) + "\n\n"


def metric_cell(name: str, summary: dict[str, Any], *, signed: bool = False) -> str:
    """Returns a metric and its confidence interval: 0.8123 [0.8021, 0.8224]."""
    if summary[name] is None:
        return "-"
    low, high = summary["intervals"][name]
    form = ("+" if signed else "") + (",.1f" if name == "mean_rank" else ".4f")
    return f"{summary[name]:{form}} [{low:{form}}, {high:{form}}]"


def mark_best(name: str, values: Sequence[float | None]) -> list[str]:
    """Returns the values of a metric as text, the best and the second best marked; ties share their mark."""
    form = ",.1f" if name == "mean_rank" else ".4f"
    texts = ["-" if value is None else f"{value:{form}}" for value in values]
    finite = {(value, text) for value, text in zip(values, texts, strict=True) if value is not None}
    ordered = list(dict.fromkeys(text for _, text in sorted(finite, reverse=name != "mean_rank")))
    return [text + MARKS.get(ordered.index(text) if text in ordered else 2, " ") for text in texts]


def duration(seconds: float) -> str:
    """Returns a time span in its largest sensible unit: 3.2 days."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.3g} seconds"
