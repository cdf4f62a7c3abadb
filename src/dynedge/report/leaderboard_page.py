"""A tournament as one page: the table, time against accuracy, learning curves. It asks nothing of any network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from dynedge import __version__
from dynedge.errors import UsageError
from dynedge.evaluation.summary import describe_candidates
from dynedge.report.svg import Scale, axes, chart, dot, labels, line, path, text
from dynedge.utils.atomic_io import write_text
from dynedge.utils.progress import clock, quantity

Row = dict[str, Any]

STYLE = Path(__file__).with_name("page.css")
NAME = "index.html"


def check_folder(folder: Path) -> None:
    """Refuse, before any work, a place where no page could be written."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--report {folder} is a file; a folder is needed.")
    if not folder.absolute().parent.is_dir():
        raise UsageError(f"--report {folder}: there is no folder {folder.parent}.")


def write_page(found: Row, folder: Path) -> Path:
    """`found` as `dynedge compare LOG --json` prints it."""
    folder.mkdir(exist_ok=True)
    write_text(folder / NAME, page(found))
    return folder / NAME


def page(found: Row) -> str:
    name = escape(Path(found["log"]).name)
    rows = [row for row in found["rows"] if row["seeds"]]
    kinds = dict(zip((row["model"] for row in rows), ("first", "second"), strict=False))
    candidates = describe_candidates(found["protocol"], found["items"])
    parts = [
        f"<h1>Models on {name}</h1>",
        f"<p>{found['events']:,} test events of {found['users']:,} users; each event's item is ranked among "
        f"{candidates}, as of just before the event. Intervals hold 95&#8239;% of the means when users "
        "are drawn again; of several seeds, every event counts with its mean.</p>",
        _table(found["rows"], kinds),
        *([_scatter(rows, kinds)] if any(_drawn(row) for row in rows) else []),
        *_curves(rows, kinds),
        f"<p><small>dynedge {__version__}: <code>dynedge compare {escape(found['log'])} --protocol "
        f"{found['protocol']}</code>; the runs are in {escape(found['runs'])}.</small></p>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Models on {name}</title><style>{STYLE.read_text(encoding='utf-8')}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _table(rows: Sequence[Row], kinds: dict[str, str]) -> str:
    heads = ["model", "MRR", "", "Recall@10", "less the best", "s/epoch", "peak MiB", "parameters", "seeds"]
    told = [row for row in rows if row["seeds"] and row["intervals"]["mrr"]]
    bounds = [bound for row in told for bound in row["intervals"]["mrr"]]
    x = Scale(min(bounds, default=0.0), max(bounds, default=1.0), 6, 144)
    order = {name: sorted({_round(row[name]) for row in told}, reverse=True)[:2] for name in ("mrr", "recall@10")}
    body = "".join(f"<tr>{_cells(row, kinds.get(row['model'], 'other'), order, x)}</tr>\n" for row in rows)
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


def _round(value: float) -> str:
    return f"{value:.4f}"


def _cells(row: Row, kind: str, order: dict[str, list[str]], x: Scale) -> str:
    error = escape(row["error"] or "")
    if not row["seeds"]:
        return f'<td>{escape(row["model"])}</td><td class="why" colspan="8">{error}</td>'
    cells = [
        _metric(row, "mrr", order),
        _whisker(row, kind, x),
        _metric(row, "recall@10", order),
        _less(row["difference_to_best"]),
        "–" if row["seconds_per_epoch"] is None else f"{row['seconds_per_epoch']:.3g}",
        "–" if row["peak_mib"] is None else f"{row['peak_mib']:,.0f}",
        quantity(row["parameters"]),
        str(len(row["seeds"])),
    ]
    return f"<td>{escape(row['model'])}<small>{error}</small></td>" + "".join(f"<td>{cell}</td>" for cell in cells)


def _metric(row: Row, name: str, order: dict[str, list[str]]) -> str:
    if row[name] is None:
        return "–"
    value = _round(row[name])
    place = ("first", "second")[order[name].index(value)] if value in order[name] else ""
    low, high = row["intervals"][name]
    return f'<span class="{place}">{value}</span> <small>{low:.3f} to {high:.3f}</small>'


def _less(less: Row | None) -> str:
    if not less or less["mrr"] is None:
        return ""
    low, high = less["intervals"]["mrr"]
    return f"{less['mrr']:+.4f} <small>{low:+.3f} to {high:+.3f}</small>"


def _whisker(row: Row, kind: str, x: Scale) -> str:
    if row["mrr"] is None:
        return ""
    low, high = row["intervals"]["mrr"]
    parts = [line(6, 9, 144, 9, "grid"), line(x(low), 9, x(high), 9, kind), dot(x(row["mrr"]), 9, kind, 4)]
    return chart(150, 18, parts, f"MRR of {row['model']}: {row['mrr']:.4f}, {low:.4f} to {high:.4f}")


def _drawn(row: Row) -> bool:
    return bool(row["mrr"] is not None and row["seconds_per_epoch"])


def _scatter(rows: Sequence[Row], kinds: dict[str, str]) -> str:
    """Time per epoch against MRR: up and to the left is better."""
    shown = [row for row in rows if _drawn(row)]
    seconds, mrrs = [row["seconds_per_epoch"] for row in shown], [row["mrr"] for row in shown]
    x = Scale(min(seconds) / 1.6, max(seconds) * 1.6, 46, 750, log=True)
    y = Scale(0.0, max(mrrs) * 1.08, 400, 20)
    points = [(x(row["seconds_per_epoch"]), y(row["mrr"])) for row in shown]
    looks = [kinds.get(row["model"], "") for row in shown]
    parts = axes(x, y, lambda value: f"{value:g} s" if value < 1000 else clock(value))
    for (at, up), look, row in zip(points, looks, shown, strict=True):
        told = f"{row['model']}: MRR {row['mrr']:.4f}, {clock(row['seconds_per_epoch'])} an epoch"
        parts.append(dot(at, up, look or "other", 5.5, told))
    parts += labels(points, [row["model"] for row in shown], looks, x, y)
    parts += [text(750, 436, "training time per epoch (logarithmic)", anchor="end"), text(0, 10, "MRR, test events")]
    picture = chart(760, 442, parts, "Training time per epoch against test MRR")
    return (
        "<h2>Accuracy against time</h2><p>Up is better, left is faster. Time is that of a pass over the training "
        f'events, without validation.</p><div class="scroll wide">{picture}</div>'
    )


def _curves(rows: Sequence[Row], kinds: dict[str, str]) -> list[str]:
    """Small charts on one scale, a line a seed; of models that pass over the events more than once."""
    shown = [
        row for row in rows if any(len(seed["valid"]) > 1 and seed["valid"][0] is not None for seed in row["seeds"])
    ]
    if not shown:
        return []
    most = max(len(seed["valid"]) for row in shown for seed in row["seeds"])
    top = max(max(seed["valid"]) for row in shown for seed in row["seeds"])
    x, y = Scale(1, most, 40, 232, whole=True), Scale(0.0, top * 1.05, 128, 8)
    figures = "".join(
        f"<figure><figcaption>{escape(row['model'])}</figcaption>"
        f"{_curve(row, kinds.get(row['model'], 'other'), x, y)}</figure>\n"
        for row in shown
    )
    return [
        "<h2>Learning curves</h2><p>MRR of the validation events after each epoch, a line for each seed, all on one "
        f'scale; the dot is the epoch that was kept.</p><div class="many">{figures}</div>'
    ]


def _curve(row: Row, kind: str, x: Scale, y: Scale) -> str:
    parts = axes(x, y)
    for seed in row["seeds"]:
        points = [(x(at + 1), y(value)) for at, value in enumerate(seed["valid"])]
        kept = seed["valid"].index(max(seed["valid"]))
        at, up = points[kept]
        parts.append(path(points, kind))
        parts.append(dot(at, up, kind, 3.5, f"epoch {kept + 1}: {seed['valid'][kept]:.4f}"))
    return chart(240, 150, parts, f"Validation MRR of {row['model']} by epoch")
