"""The leaderboard of a log as one self-contained HTML page: table, MRR by training time, learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from dynedge import __version__
from dynedge.errors import UsageError
from dynedge.evaluation.list_metrics import TITLES
from dynedge.evaluation.summary import describe_candidates
from dynedge.report.svg import Scale, axes, chart, dot, labels, line, path, text
from dynedge.utils.atomic_io import write_text
from dynedge.utils.progress import clock, quantity

Row = dict[str, Any]

STYLE = Path(__file__).with_name("page.css")
NAME = "index.html"
LISTS = """Metrics of the ten items that each model would have recommended just before a test event, over a sample of
test events. Coverage: share of all items that are in a list. Gini: 0 if all items are shown equally often, near 1 if
a few are. Novelty: mean of &#8722;log2 of the items' shares of training events. Diversity: mean distance
(1 &#8722; cosine) between a list's item vectors. Popularity bias: popularity of the items shown, divided by that of
the items chosen. Repeat share: items that the user already interacted with. Calibration error: that of the
probability of the first item."""
HEADINGS = (
    "model",
    "MRR",
    "MRR with 95&#8239;% confidence interval",
    "Recall@10",
    "MRR, difference to best",
    "s/epoch",
    "memory (MiB)",
    "parameters",
    "seeds",
)


def check_folder(folder: Path) -> None:
    """Raises UsageError, before any work, if a page cannot be written to this folder."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--report {folder} is a file; give a folder.")
    if not folder.absolute().parent.is_dir():
        raise UsageError(f"--report {folder}: the folder {folder.parent} does not exist.")


def write_page(leaderboard: Row, folder: Path) -> Path:
    """Writes the page into a folder and returns its path."""
    folder.mkdir(exist_ok=True)
    write_text(folder / NAME, page(leaderboard))
    return folder / NAME


def page(leaderboard: Row) -> str:
    """The HTML page of a leaderboard, which is the output of `dynedge compare LOG --json`."""
    title = f"Leaderboard: {escape(Path(leaderboard['log']).name)}"
    rows = [row for row in leaderboard["rows"] if row["seeds"]]
    # CSS classes that highlight the two best models; all others have the class "other".
    highlights = dict(zip((row["model"] for row in rows), ("first", "second"), strict=False))
    parts = [
        f"<h1>{title}</h1>",
        _introduction(leaderboard),
        _table(leaderboard["rows"], highlights),
        *_lists_section(rows),
        *([_scatter_section(rows, highlights)] if any(_has_time(row) for row in rows) else []),
        *_curves_section(rows, highlights),
        f"<p><small>dynedge {__version__}: <code>dynedge compare {escape(leaderboard['log'])} --protocol "
        f"{leaderboard['protocol']}</code>; run folders: <code>{escape(leaderboard['runs'])}</code></small></p>",
    ]
    return html_page(title, parts)


def html_page(title: str, parts: Sequence[str]) -> str:
    """A self-contained page: nothing is loaded from anywhere, and images are in it as data."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{title}</title><style>{STYLE.read_text(encoding='utf-8')}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _introduction(leaderboard: Row) -> str:
    candidates = describe_candidates(leaderboard["protocol"], leaderboard["items"])
    return (
        f"<p>{leaderboard['events']:,} test events of {leaderboard['users']:,} users. The item of each event is "
        f"ranked among {candidates}, using only earlier events. Ranges are 95&#8239;% bootstrap "
        "confidence intervals over users. With several seeds, the metrics of each event are averaged over seeds.</p>"
    )


# ---- table


def _table(rows: Sequence[Row], highlights: dict[str, str]) -> str:
    ranked = [row for row in rows if row["seeds"] and row["intervals"]["mrr"]]
    bounds = [bound for row in ranked for bound in row["intervals"]["mrr"]]
    x = Scale(min(bounds, default=0.0), max(bounds, default=1.0), 6, 144)
    best_two = {
        name: sorted({_rounded(row[name]) for row in ranked}, reverse=True)[:2] for name in ("mrr", "recall@10")
    }
    body = "".join(f"<tr>{_cells(row, highlights.get(row['model'], 'other'), best_two, x)}</tr>\n" for row in rows)
    head = "".join(f"<th>{heading}</th>" for heading in HEADINGS)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


def _rounded(value: float) -> str:
    return f"{value:.4f}"


def _cells(row: Row, css_class: str, best_two: dict[str, list[str]], x: Scale) -> str:
    error = escape(row["error"] or "")
    if not row["seeds"]:
        return f'<td>{escape(row["model"])}</td><td class="error" colspan="{len(HEADINGS) - 1}">{error}</td>'
    cells = [
        _metric(row, "mrr", best_two),
        _interval_chart(row, css_class, x),
        _metric(row, "recall@10", best_two),
        _difference(row["difference_to_best"]),
        "–" if row["seconds_per_epoch"] is None else f"{row['seconds_per_epoch']:.3g}",
        "–" if row["peak_mib"] is None else f"{row['peak_mib']:,.0f}",
        quantity(row["parameters"]),
        str(len(row["seeds"])),
    ]
    return f"<td>{escape(row['model'])}<small>{error}</small></td>" + "".join(f"<td>{cell}</td>" for cell in cells)


def _metric(row: Row, name: str, best_two: dict[str, list[str]]) -> str:
    """A metric and its confidence interval; the best and second best values are highlighted."""
    if row[name] is None:
        return "–"
    value = _rounded(row[name])
    css_class = ("first", "second")[best_two[name].index(value)] if value in best_two[name] else ""
    low, high = row["intervals"][name]
    return f'<span class="{css_class}">{value}</span> <small>{low:.3f} to {high:.3f}</small>'


def _difference(difference: Row | None) -> str:
    if not difference or difference["mrr"] is None:
        return "–"
    low, high = difference["intervals"]["mrr"]
    return f"{difference['mrr']:+.4f} <small>{low:+.3f} to {high:+.3f}</small>"


def _interval_chart(row: Row, css_class: str, x: Scale) -> str:
    if row["mrr"] is None:
        return ""
    low, high = row["intervals"]["mrr"]
    parts = [line(6, 9, 144, 9, "grid"), line(x(low), 9, x(high), 9, css_class), dot(x(row["mrr"]), 9, css_class, 4)]
    return chart(150, 18, parts, f"MRR of {row['model']}: {row['mrr']:.4f}, {low:.4f} to {high:.4f}")


def _lists_section(rows: Sequence[Row]) -> list[str]:
    """Table of the metrics of recommended lists."""
    shown = [row for row in rows if row["lists"]]
    if not shown:
        return []
    head = "".join(f"<th>{escape(title)}</th>" for title in ("model", *TITLES.values()))
    body = "".join(
        f"<tr><td>{escape(row['model'])}</td>"
        + "".join(f"<td>{'–' if (value := row['lists'][name]) is None else _rounded(value)}</td>" for name in TITLES)
        + "</tr>\n"
        for row in shown
    )
    return [
        f'<h2>Metrics beyond accuracy</h2><p>{LISTS}</p><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}</tbody></table></div>"
    ]


# ---- charts


def _has_time(row: Row) -> bool:
    return bool(row["mrr"] is not None and row["seconds_per_epoch"])


def _scatter_section(rows: Sequence[Row], highlights: dict[str, str]) -> str:
    return (
        "<h2>MRR by training time</h2><p>Higher is more accurate, further left is faster. The time is that of one "
        f'training epoch, without validation.</p><div class="scroll wide">{time_scatter(rows, highlights)}</div>'
    )


def time_scatter(rows: Sequence[Row], highlights: dict[str, str]) -> str:
    """Scatter plot of MRR by training time per epoch, as SVG."""
    shown = [row for row in rows if _has_time(row)]
    seconds, mrrs = [row["seconds_per_epoch"] for row in shown], [row["mrr"] for row in shown]
    x = Scale(min(seconds) / 1.6, max(seconds) * 1.6, 46, 750, log=True)
    y = Scale(0.0, max(mrrs) * 1.08, 400, 26)
    points = [(x(row["seconds_per_epoch"]), y(row["mrr"])) for row in shown]
    css_classes = [highlights.get(row["model"], "") for row in shown]
    parts = axes(x, y, lambda value: f"{value:g} s" if value < 1000 else clock(value))
    for (px, py), css_class, row in zip(points, css_classes, shown, strict=True):
        tooltip = f"{row['model']}: MRR {row['mrr']:.4f}, {clock(row['seconds_per_epoch'])} per epoch"
        parts.append(dot(px, py, css_class or "other", 5.5, tooltip))
    parts += labels(points, [row["model"] for row in shown], css_classes, x)
    parts += [text(750, 438, "training time per epoch (log scale)", anchor="end"), text(0, 12, "test MRR")]
    return chart(760, 444, parts, "Test MRR by training time per epoch")


def _curves_section(rows: Sequence[Row], highlights: dict[str, str]) -> list[str]:
    """One small chart per model that trains for more than one epoch, all with the same axes."""
    shown = [
        row for row in rows if any(len(seed["valid"]) > 1 and seed["valid"][0] is not None for seed in row["seeds"])
    ]
    if not shown:
        return []
    epochs = max(len(seed["valid"]) for row in shown for seed in row["seeds"])
    highest = max(max(seed["valid"]) for row in shown for seed in row["seeds"])
    x, y = Scale(1, epochs, 40, 232, integer=True), Scale(0.0, highest * 1.05, 128, 8)
    figures = "".join(
        f"<figure><figcaption>{escape(row['model'])}</figcaption>"
        f"{_learning_curve(row, highlights.get(row['model'], 'other'), x, y)}</figure>\n"
        for row in shown
    )
    return [
        "<h2>Learning curves</h2><p>Validation MRR after each epoch, one line per seed, with the same axes for all. "
        f'The dot marks the epoch that was selected.</p><div class="curves">{figures}</div>'
    ]


def _learning_curve(row: Row, css_class: str, x: Scale, y: Scale) -> str:
    parts = axes(x, y)
    for seed in row["seeds"]:
        points = [(x(epoch), y(value)) for epoch, value in enumerate(seed["valid"], 1)]
        best = seed["valid"].index(max(seed["valid"]))
        (px, py), tooltip = points[best], f"epoch {best + 1}: {seed['valid'][best]:.4f}"
        parts += [path(points, css_class), dot(px, py, css_class, 3.5, tooltip)]
    return chart(240, 150, parts, f"Validation MRR of {row['model']} by epoch")
