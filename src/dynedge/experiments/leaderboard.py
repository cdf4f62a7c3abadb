"""The table of a tournament: what run folders say of each model, means over seeds, the best first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from dynedge.evaluation.metrics import mean
from dynedge.evaluation.summary import difference, verdict
from dynedge.runs.evaluate_run import Ranked
from dynedge.runs.folder import FACTS
from dynedge.training.logging import METRICS
from dynedge.utils.arrays import Array

Played = Mapping[tuple[str, int], Ranked]  # by recipe and seed
TOLD = "mrr", "recall@10"
NOTHING = dict.fromkeys(
    (*TOLD, "ci95", "intervals", "valid_mrr", "seconds_per_epoch", "peak_mib", "parameters", "recipe", "less_best")
)


def standings(played: Mapping[str, Played], errors: Mapping[str, str | None]) -> dict[str, Any]:
    """{"events", "users", "best", "rows"}: a row for every model, also where nothing came of it but an error."""
    told = [
        (_row(name, seeds := _best_recipe(some)) | {"error": errors[name]}, seeds) for name, some in played.items()
    ]
    told.sort(key=lambda one: (not one[1], -(one[0]["mrr"] or 0.0)))
    first, best = told[0]
    for row, seeds in told[1:]:
        if seeds:
            row["less_best"] = _told(difference(_ranks(seeds), _ranks(best), _users(best)))
    return {
        "events": len(_users(best)) if best else 0,
        "users": len(np.unique(_users(best))) if best else 0,
        "best": first["model"] if best else None,
        "rows": [row for row, _ in told],
    }


def _ranks(seeds: Mapping[int, Ranked]) -> Array:
    """float64[S, n]: of the test events."""
    return np.stack([one.of("test")[0] for one in seeds.values()])


def _users(seeds: Mapping[int, Ranked]) -> Array:
    return next(iter(seeds.values())).of("test")[1]


def _best_recipe(some: Played) -> dict[int, Ranked]:
    """{seed: ranked} of the recipe that is best on the validation events."""
    by_recipe: dict[str, dict[int, Ranked]] = {}
    for (recipe, seed), ranked in some.items():
        by_recipe.setdefault(recipe, {})[seed] = ranked
    return max(by_recipe.values(), key=_valid_mrr, default={})


def _valid_mrr(seeds: Mapping[int, Ranked]) -> float:
    return fmean(mean("mrr", one.of("valid")[0]) or 0.0 for one in seeds.values())


def _row(name: str, seeds: Mapping[int, Ranked]) -> dict[str, Any]:
    row: dict[str, Any] = {"model": name, **NOTHING, "seeds": []}
    if not seeds:
        return row
    one = next(iter(seeds.values()))
    recipe = one.config.name
    histories = {seed: _history(ranked.run) for seed, ranked in seeds.items()}
    epochs = [[record["seconds"] for record in history] for history in histories.values()]
    peaks = [record["peak_mib"] for history in histories.values() for record in history]
    return row | {
        "model": name if Path(name).stem == recipe else f"{name} ({recipe})",
        **_told(verdict(_ranks(seeds), _users(seeds))),
        "valid_mrr": _valid_mrr(seeds),
        "seconds_per_epoch": fmean(map(median, epochs)) if all(epochs) else None,
        "peak_mib": max(peaks, default=None),
        "parameters": json.loads((one.run / FACTS).read_bytes())["parameters"],
        "recipe": recipe,
        "device": one.config.training.device,
        "seeds": [
            {
                "seed": seed,
                "run": str(ranked.run),
                "mrr": mean("mrr", ranked.of("test")[0]),
                "valid": [record["valid_mrr"] for record in histories[seed]],  # epoch by epoch
                "seconds": sum(record["seconds"] + record["valid_seconds"] for record in histories[seed]),
            }
            for seed, ranked in seeds.items()
        ],
    }


def _told(said: Mapping[str, Any]) -> dict[str, Any]:
    """MRR and Recall@10 alone."""
    return {name: said[name] for name in (*TOLD, "ci95")} | {
        "intervals": {name: said["intervals"][name] for name in TOLD}
    }


def _history(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / METRICS).read_text(encoding="utf-8").splitlines()]
