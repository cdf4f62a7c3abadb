"""The experiments of the EDGE paper on any log: its Tables 1 to 5, and what its figures show.

FOLDER/runs has a run folder for each system, and for `edge-paper-small` or `-large` with other numbers of d-nodes and
other thresholds n*. Runs that are trained and evaluated are not repeated, so an interrupted call resumes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.data.frames import user_table
from dynedge.data.ingest.pipeline import prepare
from dynedge.data.ingest.schema import Schema
from dynedge.data.log import EventLog, read_log
from dynedge.data.statistics import degrees, describe
from dynedge.errors import DataError
from dynedge.experiments import published_results as published
from dynedge.experiments.compare_models import rank_entries
from dynedge.experiments.compared_models import BenchmarkEntry, benchmark_entries
from dynedge.experiments.leaderboard import EntryRanks, leaderboard, row
from dynedge.experiments.published_results import Threshold
from dynedge.experiments.subprocess_training import announce
from dynedge.models.edge.recurrence import make_plan
from dynedge.plan.planner import DNodeRequest, Plan
from dynedge.runs.folder import ENV
from dynedge.runs.run_config import RunConfig, recipe_config
from dynedge.training.logging import METRICS
from dynedge.utils.file_checks import read_json_object
from dynedge.utils.jsonl import read_jsonl

# The paper's systems by family, then this package's own; `edge-paper` stands for the recipe that fits the log.
EDGE = "edge-paper"
FAMILIES = {
    "GNNs": ("gcmc", "gcmc-sage", "gcmc-gat"),
    "sequence models": ("sum-pooling", "gru4rec", "dien", "mimn", "sasrec"),
    "dynamic graphs": ("ctdne", "deepcoevolve", "jodie", "dynaernn", "tgat", EDGE),
    "this package": ("edge", "memory", "counts", "popular", "recent", "next"),
}
LARGE_ITEMS = 10_000  # beyond, a log counts as large: sampled negatives, and active entities
DNODE_FACTORS = (0.0, 0.25, 0.5, 1.0, 2.0)  # of the recipe's number of d-nodes
SURVEYED_EVENTS = 5_000_000  # of a larger log, Table 4 has means over evenly spaced windows


@dataclass(frozen=True)
class Extent:
    """How much of the paper's experiments is run."""

    events: int | None = None  # the last events of the log; None: all
    epochs: int | None = None  # at most; None: as each recipe says
    edge_epochs: int | None = None  # the same for EDGE with its variants
    dnode_factors: tuple[float, ...] = DNODE_FACTORS
    windows: int = 300  # surveyed in Table 4


QUICK = Extent(events=30_000, epochs=4, edge_epochs=60, dnode_factors=(0.0, 1.0), windows=60)


@dataclass(frozen=True)
class Variant:
    """EDGE with some number of d-nodes per window and thresholds n*."""

    dnodes: int
    threshold: Threshold
    entry: BenchmarkEntry


def run_paper(log: EventLog, folder: Path, extent: Extent, *, seeds: int = 1) -> dict[str, Any]:
    """Trains and evaluates the runs missing in FOLDER/runs; returns all results as plain values."""
    name = log.path.name if log.path else ""
    log = log if extent.events is None else last_events(log, extent.events, folder / "log")
    is_large = log.num_items > LARGE_ITEMS
    protocol, recipe = ("sampled-499", f"{EDGE}-large") if is_large else ("full", f"{EDGE}-small")
    names = {recipe if name == EDGE else name: family for family, group in FAMILIES.items() for name in group}
    systems = benchmark_entries(list(names), extent.epochs)
    (edge,) = benchmark_entries([recipe], extent.edge_epochs)
    systems = [edge if entry.name == recipe else entry for entry in systems]
    grid = _variants(log, edge, _grid_thresholds(log, edge), extent.dnode_factors)
    ladder = _variants(log, edge, _ladder_thresholds(log), (1.0,))
    entries = {entry.name: entry for entry in (*systems, *(one.entry for one in (*grid, *ladder)))}
    ranks, errors = rank_entries(log, list(entries.values()), folder / "runs", seeds=seeds, protocol=protocol)
    of_systems = {entry.name: ranks[entry.name] for entry in systems}
    dynamic = {name: of for name, of in of_systems.items() if names.get(name) == "dynamic graphs"}
    dataset = str(log.metadata.get("source", {}).get("dataset", ""))
    return {
        "log": str(log.path),
        "name": dataset or name,
        "paper_log": dataset if dataset in published.STATISTICS and extent.events is None else None,
        "last_events": extent.events,
        "epochs": [extent.epochs, extent.edge_epochs],
        "protocol": protocol,
        "split": str(log.split),
        "machines": _machines(folder / "runs", entries),
        "edge": recipe,
        "families": {entry.name: names.get(entry.name, "this package") for entry in systems},
        "statistics": describe(log),
        "systems": _with_seconds(leaderboard(of_systems, errors)),
        "dynamic": _with_seconds(leaderboard(dynamic, errors)),
        "paths": _paths(uncut_plan(log, recipe), extent.windows),
        "dnodes": [_variant_row(log, one, ranks, errors) for one in grid],
        "ladder": [_variant_row(log, one, ranks, errors) for one in ladder],
    }


def last_events(log: EventLog, count: int, out: Path) -> EventLog:
    """The last `count` events of a log as a log of their own at `out`, made unless it is there."""
    source = {"last_events_of": log.fingerprint, "count": count}
    if out.exists():
        made = read_log(out)
        if made.metadata.get("source", {}).get("part") != source:
            raise DataError(f"{out} belongs to another log: choose another --out, or delete that folder.")
        return made
    part = slice(max(0, len(log) - count), None)
    columns = {name: getattr(log, name)[part] for name in ("user", "item", "time", "features")}
    label = None if log.label is None else log.label[part]
    table = replace(log, **columns, label=label, event_id=None, event_ids=None).to_arrow()
    kept = tuple(log.metadata.get("item_features", ()))
    features = tuple(name for name in table.column_names[3:] if name not in (*kept, "label"))
    schema = Schema(label=None if label is None else "label", features=features, item_features=kept, time_unit="s")
    out.parent.mkdir(parents=True, exist_ok=True)
    return prepare(
        table,
        out,
        schema,
        user_table=user_table(log),
        user_features=log.metadata.get("user_features", ()),
        split=log.split,
        source={**log.metadata.get("source", {}), "part": source},
    )


# ---- EDGE with other d-nodes and thresholds


def _grid_thresholds(log: EventLog, edge: BenchmarkEntry) -> list[Threshold]:
    """Those of the recipe and, where these are ∞, the lowest of Table 5 that makes some entity active."""
    own = _threshold(_config(edge))
    return [own, *(_ladder_thresholds(log)[:1] if own is None else ())]


def _ladder_thresholds(log: EventLog) -> list[Threshold]:
    """The thresholds of Table 5, without those that make no entity active, which are the same as ∞."""
    train_end, _ = log.split.bounds(len(log))
    most = [int(degrees(ids[:train_end], count).max(initial=0)) for ids, count in _sides(log)]
    return [one for one in published.THRESHOLDS if one is None or most[0] > one[0] or most[1] > one[1]]


def _sides(log: EventLog) -> tuple[tuple[Any, int], tuple[Any, int]]:
    return (log.user, log.num_users), (log.item, log.num_items)


def _config(entry: BenchmarkEntry) -> RunConfig:
    return next(iter(entry.configs.values()))


def _threshold(config: RunConfig) -> Threshold:
    return None if config.model.active_users is None else (config.model.active_users, config.model.active_items)


def _variants(
    log: EventLog, edge: BenchmarkEntry, thresholds: Iterable[Threshold], factors: Sequence[float]
) -> list[Variant]:
    """One variant for each threshold and number of d-nodes; that of the recipe is the recipe's own entry."""
    train_end, _ = log.split.bounds(len(log))
    chosen: dict[tuple[Threshold, int], Variant] = {}
    for threshold in thresholds:
        for factor in factors:
            config = _config(edge)
            share = config.model.dnodes_share * factor
            dnodes = math.ceil(share * train_end / config.model.num_windows(train_end))
            users, items = threshold or (None, None)
            model = replace(config.model, dnodes_share=share, active_users=users, active_items=items)
            config = replace(config, model=model)
            name = f"dnodes-{dnodes}-active-{'-'.join(map(str, threshold)) if threshold else 'none'}"
            entry = edge if config == _config(edge) else BenchmarkEntry(name, {name: config})
            chosen.setdefault((threshold, dnodes), Variant(dnodes, threshold, entry))
    return list(chosen.values())


def _variant_row(
    log: EventLog, variant: Variant, ranks: Mapping[str, EntryRanks], errors: Mapping[str, str | None]
) -> dict[str, Any]:
    name = variant.entry.name
    train_end, _ = log.split.bounds(len(log))
    counts = [degrees(ids[:train_end], count) for ids, count in _sides(log)]
    limits = variant.threshold or (math.inf, math.inf)
    active = [int((count > limit).sum()) for count, limit in zip(counts, limits, strict=True)]
    return {
        **row(name, ranks[name]),
        **_seconds(row(name, ranks[name])["seeds"]),
        "error": errors[name],
        "dnodes": variant.dnodes,
        "threshold": variant.threshold,
        "active_users": active[0],
        "active_items": active[1],
    }


# ---- times and paths


def _with_seconds(board: dict[str, Any]) -> dict[str, Any]:
    return {**board, "rows": [{**one, **_seconds(one["seeds"])} for one in board["rows"]]}


def _seconds(seeds: Sequence[Mapping[str, Any]]) -> dict[str, list[float] | None]:
    """The fastest and the slowest epoch of all seeds."""
    seconds = [record["seconds"] for seed in seeds for record in read_jsonl(Path(seed["run"]) / METRICS)]
    return {"seconds_range": [min(seconds), max(seconds)] if seconds else None}


def _machines(runs: Path, names: Iterable[str]) -> list[str]:
    """The machines on which the runs were trained: CPUs, device and precision."""
    paths = [path for name in names for path in sorted(runs.glob(f"{name}-*/{ENV}"))]
    return list(dict.fromkeys(_machine(read_json_object(path)) for path in paths))


def _machine(env: Mapping[str, Any]) -> str:
    packages = f"torch {env['packages']['torch']}"
    return f"{env['cpus']} CPUs ({env['machine']}, {packages}), {env['device']}, {env['precision']}"


def uncut_plan(log: EventLog, recipe: str) -> Plan:
    """The windows of the recipe without d-nodes."""
    uncut = replace(recipe_config(recipe).model, dnodes_share=None)
    return make_plan(uncut, log, log.split.bounds(len(log))[0])


def _paths(plan: Plan, windows: int) -> dict[str, Any]:
    """Table 4: mean number of d-nodes and mean longest path of each method, with the interval over windows."""
    step = max(1, math.ceil(len(plan) / windows), math.ceil(plan.config.train_end / SURVEYED_EVENTS))
    requests = {
        "longest-path": [DNodeRequest("longest-path", max_dnodes=k) for k in published.DNODES],
        "best": [DNodeRequest("best", max_dnodes=k) for k in published.DNODES],
        "cut-by-time": [DNodeRequest("cut-by-time", parts=parts) for parts in published.PARTS],
    }
    surveyed = range(0, len(plan), step)
    announce(f"longest paths of {len(surveyed)} windows", None)
    stats = list(plan.compare_methods([one for group in requests.values() for one in group], surveyed))
    columns = iter(zip(*stats, strict=True))
    return {"windows": len(stats)} | {
        method: [
            {
                "dnodes": float(np.mean([window.dnodes for window in column])),
                **_mean_interval("path", [window.longest_path for window in column]),
            }
            for column in itertools.islice(columns, len(group))
        ]
        for method, group in requests.items()
    }


def _mean_interval(name: str, values: Sequence[float]) -> dict[str, Any]:
    half = 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    mean = float(np.mean(values))
    return {name: mean, f"{name}_interval": [mean - half, mean + half]}
