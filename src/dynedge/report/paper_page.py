"""The tables of `dynedge paper` as CSV files, and its HTML page, in the order of the EDGE paper."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from dynedge import __version__
from dynedge.evaluation.summary import describe_candidates
from dynedge.experiments import published_results as published
from dynedge.report.leaderboard_page import NAME, html_page
from dynedge.report.paper_figures import CAPTIONS
from dynedge.utils.atomic_io import write_text

Results = Mapping[str, Any]
Row = dict[str, Any]
PAPER = "in the paper"


@dataclass(frozen=True)
class Column:
    """A column of a table; the interval of its value is in the columns `KEY_low` and `KEY_high` of the CSV file."""

    key: str
    heading: str
    form: str = "{}"
    is_text: bool = False


@dataclass(frozen=True)
class Table:
    """A table of the paper; a value that is None is not known."""

    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: list[Row]


METRICS = Column("mrr", "MRR", "{:.4f}"), Column("recall@10", "Recall@10", "{:.4f}")
METRIC_KEYS = {column.key for column in METRICS}
SECONDS = Column("seconds_per_epoch", "seconds per epoch", "{:.3g}")
PAPER_METRICS = Column("paper_mrr", f"MRR {PAPER}"), Column("paper_recall@10", f"Recall@10 {PAPER}")


def tables(results: Results) -> dict[int, Table]:
    """The tables by number."""
    return {
        1: _statistics(results),
        2: _systems(results, "Overall performance", results["systems"]["rows"], families=True),
        3: _systems(results, "Comparison to dynamic graph models", results["dynamic"]["rows"], families=False),
        4: _paths(results),
        5: _ladder(results),
    }


def write_tables(made: Mapping[int, Table], folder: Path) -> list[Path]:
    """Writes table1.csv and so on; returns their paths in order."""
    paths = []
    for number, table in made.items():
        paths.append(folder / f"table{number}.csv")
        write_text(paths[-1], _csv(table))
    return paths


def write_page(results: Results, made: Mapping[int, Table], figures: Sequence[Path], folder: Path) -> Path:
    """Writes index.html, which has everything in it, and returns its path."""
    write_text(folder / NAME, _page(results, made, figures))
    return folder / NAME


# ---- contents


def _statistics(results: Results) -> Table:
    numbers = results["statistics"]
    own = {
        "log": results["name"] or "this log",
        "users": numbers["users"],
        "items": numbers["items"],
        "events": numbers["events"],
        "events_per_user": numbers["events"] / max(numbers["users"], 1),
        "events_per_item": numbers["events"] / max(numbers["items"], 1),
        "repeat_share": numbers["repeat_share"],
        "same_as_last_share": numbers["same_as_last_share"],
    }
    paper = [
        {"log": f"{published.TITLES[name]}, {PAPER}", "users": users, "items": items, "events": events,
         "events_per_user": events / users, "events_per_item": events / items}
        for name, (users, items, events) in published.STATISTICS.items()
    ]  # fmt: skip
    columns = (
        Column("log", "log"),
        Column("users", "users", "{:,}"),
        Column("items", "items", "{:,}"),
        Column("events", "interactions", "{:,}"),
        Column("events_per_user", "per user", "{:,.1f}"),
        Column("events_per_item", "per item", "{:,.1f}"),
        Column("repeat_share", "repeats of a pair", "{:.1%}"),
        Column("same_as_last_share", "repeats of the last item", "{:.1%}"),
    )
    return Table("Statistics", "Counts of the whole log, so they have no interval.", columns, [own, *paper])


def _systems(results: Results, title: str, board: Sequence[Row], *, families: bool) -> Table:
    order = list(dict.fromkeys(results["families"].values()))
    rows = [_system_row(results, row) for row in board]
    if families:
        rows.sort(key=lambda row: order.index(row["family"]))
    columns = (
        *((Column("family", "family", is_text=True),) if families else ()),
        Column("model", "method", is_text=True),
        *METRICS,
        Column("difference", "MRR, difference to best", "{:+.4f}"),
        SECONDS,
        Column("peak_mib", "memory (MiB)", "{:,.0f}"),
        Column("parameters", "parameters", "{:,}"),
        Column("seeds", "seeds"),
        *(PAPER_METRICS if results["paper_log"] else ()),
        Column("error", "remark", is_text=True),
    )
    candidates = describe_candidates(results["protocol"], results["statistics"]["items"])
    caption = (
        f"The item of each of {results['systems']['events']:,} test events is ranked among {candidates}, using only "
        f"earlier events. {results['edge']} is the paper's EDGE. Intervals: 95 % bootstrap over users; for seconds, "
        "fastest to slowest epoch. Bold: best."
    )
    return Table(title, caption, columns, rows)


def _system_row(results: Results, row: Row) -> Row:
    name = row["recipe"] or row["model"]
    family = next((f for n, f in results["families"].items() if n in (name, row["model"].split(" (")[0])), "")
    made: Row = {
        "family": family,
        "model": row["model"],
        **_measured(row),
        "peak_mib": row["peak_mib"],
        "parameters": row["parameters"],
        "seeds": len(row["seeds"]),
        "error": row["error"],
    }
    difference = row["difference_to_best"]
    if difference and difference["mrr"] is not None:
        made |= {"difference": difference["mrr"], **_bounds("difference", difference["intervals"]["mrr"])}
    if results["paper_log"]:
        key = "edge-paper" if name == results["edge"] else name
        known = published.ACCURACY[results["paper_log"]]
        mrr, recall = known.get(key) or (None, None)
        out_of_memory = "-oom-" if key in known and known[key] is None else None
        made |= {"paper_mrr": mrr or out_of_memory, "paper_recall@10": recall or out_of_memory}
    return made


def _paths(results: Results) -> Table:
    known = published.PATHS.get(results["paper_log"] or "")
    paths = results["paths"]
    rows: list[Row] = []
    for k, (dnodes, parts) in enumerate(zip(published.DNODES, published.PARTS, strict=True)):
        row: Row = {"dnodes": dnodes, "parts": parts, "cut_dnodes": paths["cut-by-time"][k]["dnodes"]}
        for key, method in (("algorithm2", "longest-path"), ("best", "best"), ("cut", "cut-by-time")):
            found = paths[method][k]
            row |= {f"{key}_path": found["path"], **_bounds(f"{key}_path", found["path_interval"])}
        if known:
            cut_dnodes, cut_path = known[1][k]
            row |= {"paper_path": known[0][k], "paper_cut_dnodes": cut_dnodes, "paper_cut_path": cut_path}
        rows.append(row)
    paper = [Column("paper_path", f"Algorithm 2, {PAPER}")] if known else []
    paper_cut = [
        Column("paper_cut_dnodes", f"d-nodes (cut by time), {PAPER}"),
        Column("paper_cut_path", f"cut by time, {PAPER}"),
    ]
    columns = (
        Column("dnodes", "d-nodes per window"),
        Column("algorithm2_path", "longest path: Algorithm 2", "{:.2f}"),
        *paper,
        Column("best_path", "best (this package)", "{:.2f}"),
        Column("parts", "parts"),
        Column("cut_dnodes", "d-nodes (cut by time)", "{:.1f}"),
        Column("cut_path", "longest path: cut by time", "{:.2f}"),
        *(paper_cut if known else ()),
    )
    caption = f"Means over {paths['windows']} windows of training events, with 95 % intervals over windows."
    return Table("Longest path by number of d-nodes", caption, columns, rows)


def _ladder(results: Results) -> Table:
    known = published.LADDER.get(results["paper_log"] or "", {})
    rows = []
    for row in results["ladder"]:
        threshold = None if row["threshold"] is None else (row["threshold"][0], row["threshold"][1])
        made: Row = {
            "n_users": threshold[0] if threshold else "∞",
            "n_items": threshold[1] if threshold else "∞",
            "active_users": row["active_users"],
            "active_items": row["active_items"],
            "dnodes": row["dnodes"],
            **_measured(row),
            "error": row["error"],
        }
        if known:
            minutes, mrr, recall = known[threshold]
            made |= {"paper_minutes": minutes, "paper_mrr": mrr, "paper_recall@10": recall}
        rows.append(made)
    columns = (
        Column("n_users", "n* of users"),
        Column("n_items", "n* of items"),
        Column("active_users", "active users", "{:,}"),
        Column("active_items", "active items", "{:,}"),
        Column("dnodes", "d-nodes per window"),
        SECONDS,
        *METRICS,
        *((Column("paper_minutes", f"minutes per epoch {PAPER}"), *PAPER_METRICS) if known else ()),
        Column("error", "remark", is_text=True),
    )
    caption = (
        f"{results['edge']} with fewer and fewer active entities: users and items with more than n* training events "
        "have one learned vector instead of an evolving state. Thresholds that no entity exceeds are omitted."
    )
    return Table("Results of using fewer nodes as active nodes", caption, columns, rows)


def _measured(row: Row) -> Row:
    """MRR, Recall@10 and seconds per epoch, with their intervals."""
    made: Row = {}
    for name in ("mrr", "recall@10"):
        made |= {name: row[name], **_bounds(name, (row["intervals"] or {}).get(name))}
    return made | {
        "seconds_per_epoch": row["seconds_per_epoch"],
        **_bounds("seconds_per_epoch", row["seconds_range"]),
    }


def _bounds(name: str, bounds: Sequence[float] | None) -> Row:
    return {f"{name}_low": bounds[0], f"{name}_high": bounds[1]} if bounds else {}


# ---- files


def _csv(table: Table) -> str:
    names = [
        name
        for column in table.columns
        for name in (column.key, f"{column.key}_low", f"{column.key}_high")
        if name == column.key or any(name in row for row in table.rows)
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, extrasaction="ignore", restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if value is None else value for name, value in row.items()} for row in table.rows)
    return text.getvalue()


def _page(results: Results, made: Mapping[int, Table], figures: Sequence[Path]) -> str:
    numbers = results["statistics"]
    name = escape(results["name"] or Path(results["log"]).name)
    title = f"The EDGE paper on {name}"
    last = ""
    if results["last_events"]:
        epochs, edge_epochs = results["epochs"]
        last = (
            f" A quick run on the log's last {results['last_events']:,} events, with at most {epochs} epochs for "
            f"each system and {edge_epochs} for EDGE: it shows the layout, not the accuracy that systems can reach."
        )
    parts = [
        f"<h1>{title}</h1>",
        f"<p>{numbers['events']:,} events, {numbers['users']:,} users, {numbers['items']:,} items, split "
        f"{results['split']}. Tables and figures are numbered as in <i>Efficient Dynamic Graph Representation "
        f"Learning at Scale</i>.{last}</p>",
        _section(1, made),
        _figures("The log and its dependencies", (1, 2, 3), figures),
        _section(2, made),
        _section(3, made),
        _figures("Accuracy and training time", (4, 6), figures),
        _figures("Effect of d-nodes", (5, 8), figures),
        _section(4, made),
        _figures("Longest path", (9,), figures),
        _section(5, made),
        _figures("Degree distribution", (7,), figures),
        f"<p><small>dynedge {__version__}, log <code>{escape(results['log'])}</code>; trained on "
        f"{escape('; '.join(results['machines']))}. The tables are also in "
        "table1.csv to table5.csv, the figures in figure1.svg and so on, beside this page.</small></p>",
    ]
    return html_page(title, parts)


def _section(number: int, made: Mapping[int, Table]) -> str:
    table = made[number]
    shown = [column for column in table.columns if any(row.get(column.key) not in (None, "") for row in table.rows)]
    head = "".join(f"<th{_text_class(column)}>{escape(column.heading)}</th>" for column in shown)
    best = {key: max((row[key] for row in table.rows if row.get(key)), default=None) for key in METRIC_KEYS}
    body, family = "", ""
    for row in table.rows:
        printed = row | {"family": None} if row.get("family", "") == family else row  # once per group
        cells = (_cell(column, printed, is_best=row.get(column.key) == best.get(column.key, "")) for column in shown)
        body += f"<tr>{''.join(cells)}</tr>\n"
        family = row.get("family", "")
    return (
        f"<h2>Table {number}: {escape(table.title)}</h2><p>{escape(table.caption)}</p>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'
    )


def _text_class(column: Column) -> str:
    return ' class="text"' if column.is_text else ""


def _cell(column: Column, row: Row, *, is_best: bool) -> str:
    value = row.get(column.key)
    if value is None or value == "":
        return "<td></td>" if column.is_text else "<td>–</td>"
    text = escape(value if isinstance(value, str) else column.form.format(value))
    text = f"<b>{text}</b>" if is_best else text
    interval = ""
    if f"{column.key}_low" in row:
        bounds = (column.form.format(row[f"{column.key}_{end}"]) for end in ("low", "high"))
        interval = f" <small>{' to '.join(bounds)}</small>"
    return f"<td{_text_class(column)}>{text}{interval}</td>"


def _figures(heading: str, numbers: Sequence[int], figures: Sequence[Path]) -> str:
    parts = [f"<h2>{escape(heading)}</h2>"]
    for number in numbers:
        data = base64.b64encode(figures[number - 1].read_bytes()).decode()
        alt = escape(CAPTIONS[number])
        parts.append(
            f'<figure class="paper"><img src="data:image/svg+xml;base64,{data}" alt="{alt}">'
            f"<figcaption>Figure {number}. {alt}</figcaption></figure>"
        )
    return "\n".join(parts)
