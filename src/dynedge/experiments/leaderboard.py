"""The leaderboard of a benchmark: one row per model, averaged over seeds, best test MRR first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from dynedge.evaluation.list_metrics import LIST_METRICS
from dynedge.evaluation.metrics import mean
from dynedge.evaluation.summary import difference, summarize
from dynedge.runs.evaluate_run import RunRanks
from dynedge.runs.folder import RUN_INFO
from dynedge.runs.list_evaluation import evaluate_lists
from dynedge.training.logging import METRICS
from dynedge.utils.array_type import Array
from dynedge.utils.file_checks import read_json_object
from dynedge.utils.jsonl import read_jsonl

EntryRanks = Mapping[tuple[str, int], RunRanks]  # by recipe and seed
SHOWN = "mrr", "recall@10"
EMPTY_ROW = dict.fromkeys(
    (
        *SHOWN,
        "ci95",
        "intervals",
        "valid_mrr",
        "seconds_per_epoch",
        "peak_mib",
        "parameters",
        "recipe",
        "difference_to_best",
        "lists",
    )
)


def leaderboard(
    ranks: Mapping[str, EntryRanks], errors: Mapping[str, str | None], *, lists: bool = False
) -> dict[str, Any]:
    """Returns {"events", "users", "best", "rows"}, with a row for every entry, failed ones included.

    `lists` adds the metrics of recommended lists to each row.
    """
    rows = [
        (_row(name, seeds := _best_recipe(runs)) | {"error": errors[name]}, seeds) for name, runs in ranks.items()
    ]
    if lists:
        for row, seeds in rows:
            row["lists"] = _list_metrics(seeds)
    rows.sort(key=lambda row: (not row[1], -(row[0]["mrr"] or 0.0)))
    first, best = rows[0]
    for row, seeds in rows[1:]:
        if seeds:
            row["difference_to_best"] = _shown(difference(_test_ranks(seeds), _test_ranks(best), _test_users(best)))
    return {
        "events": len(_test_users(best)) if best else 0,
        "users": len(np.unique(_test_users(best))) if best else 0,
        "best": first["model"] if best else None,
        "rows": [row for row, _ in rows],
    }


def _list_metrics(seeds: Mapping[int, RunRanks]) -> dict[str, float | None] | None:
    """The metrics of recommended lists, each the mean over seeds."""
    values = [evaluate_lists(run) for run in seeds.values()]
    if not values:
        return None
    columns = {name: [one[name] for one in values] for name in LIST_METRICS}
    return {name: None if None in column else fmean(column) for name, column in columns.items()}


def _test_ranks(seeds: Mapping[int, RunRanks]) -> Array:
    """float64[S, n]: the ranks of the test events, per seed."""
    return np.stack([run.part("test")[0] for run in seeds.values()])


def _test_users(seeds: Mapping[int, RunRanks]) -> Array:
    return next(iter(seeds.values())).part("test")[1]


def _best_recipe(runs: EntryRanks) -> dict[int, RunRanks]:
    """Returns the ranks by seed of the recipe with the best validation MRR."""
    by_recipe: dict[str, dict[int, RunRanks]] = {}
    for (recipe, seed), ranks in runs.items():
        by_recipe.setdefault(recipe, {})[seed] = ranks
    return max(by_recipe.values(), key=_valid_mrr, default={})


def _valid_mrr(seeds: Mapping[int, RunRanks]) -> float:
    return fmean(mean("mrr", run.part("valid")[0]) or 0.0 for run in seeds.values())


def row(name: str, runs: EntryRanks) -> dict[str, Any]:
    """Returns the row of an entry without its difference to the best one."""
    return _row(name, _best_recipe(runs))


def _row(name: str, seeds: Mapping[int, RunRanks]) -> dict[str, Any]:
    row: dict[str, Any] = {"model": name, **EMPTY_ROW, "seeds": []}
    if not seeds:
        return row
    any_run = next(iter(seeds.values()))
    recipe = any_run.config.name
    histories = {seed: read_jsonl(run.run / METRICS) for seed, run in seeds.items()}
    epochs = [[record["seconds"] for record in history] for history in histories.values()]
    peaks = [record["peak_mib"] for history in histories.values() for record in history]
    return row | {
        "model": name if Path(name).stem == recipe else f"{name} ({recipe})",
        **_shown(summarize(_test_ranks(seeds), _test_users(seeds))),
        "valid_mrr": _valid_mrr(seeds),
        "seconds_per_epoch": fmean(map(median, epochs)) if all(epochs) else None,
        "peak_mib": max(peaks, default=None),
        "parameters": read_json_object(any_run.run / RUN_INFO).get("parameters"),
        "recipe": recipe,
        "device": any_run.config.training.device,
        "seeds": [
            {
                "seed": seed,
                "run": str(run.run),
                "mrr": mean("mrr", run.part("test")[0]),
                "valid": [record["valid_mrr"] for record in histories[seed]],  # by epoch
                "seconds": sum(record["seconds"] + record["valid_seconds"] for record in histories[seed]),
            }
            for seed, run in seeds.items()
        ],
    }


def _shown(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a summary that the leaderboard shows: MRR and Recall@10."""
    return {name: summary[name] for name in (*SHOWN, "ci95")} | {
        "intervals": {name: summary["intervals"][name] for name in SHOWN}
    }
