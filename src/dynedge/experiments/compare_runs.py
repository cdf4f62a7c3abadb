"""Comparison of finished runs on the events they were all evaluated on, with paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynedge.data.log import METADATA, read_log
from dynedge.errors import UsageError
from dynedge.evaluation.summary import difference
from dynedge.runs.evaluate_run import PARTS, RunRanks, evaluate_run
from dynedge.runs.folder import IDS, check_finished, read_config
from dynedge.runs.list_evaluation import evaluate_lists, with_lists


def compare_runs(folders: Sequence[Path], *, protocol: str = "full", lists: bool | None = None) -> dict[str, Any]:
    """Returns the runs by descending test MRR as plain values, each but the first with its difference to the best."""
    check_comparable(folders)
    evaluated = [evaluate_run(folder, protocol=protocol) for folder in folders]
    return comparison(evaluated, lists=with_lists(lists, protocol))


def comparison(evaluated: Sequence[RunRanks], *, lists: bool = False, quiet: bool = False) -> dict[str, Any]:
    """Returns runs on the same events by descending test MRR, as plain values; `lists` adds metrics of lists."""
    summaries = {run: {part: run.summary(part) for part in PARTS} for run in evaluated}
    if lists:
        for run, summary in summaries.items():
            summary["test"] |= evaluate_lists(run, quiet=quiet)
    order = sorted(evaluated, key=lambda run: -(summaries[run]["test"]["mrr"] or 0.0))
    runs = [
        {"run": str(run.run), "model": run.config.name, **summaries[run]}
        | ({"difference_to_best": _difference(run, order[0])} if position else {})
        for position, run in enumerate(order)
    ]
    return {
        "log": str(evaluated[0].log.path),
        "protocol": evaluated[0].protocol,
        "items": evaluated[0].log.num_items,
        "best": runs[0]["run"],
        "second": runs[1]["run"],
        "runs": runs,
    }


def _difference(run: RunRanks, best: RunRanks) -> dict[str, Any]:
    ranks, user = run.part("test")
    return difference(ranks, best.part("test")[0], user)


def check_comparable(folders: Sequence[Path]) -> None:
    """Raises UsageError unless these are two or more finished runs with the same log and split."""
    if len(folders) < 2:
        raise UsageError("compare takes two run folders or more: dynedge compare RUN RUN…")
    evaluated_on = {}
    for folder in folders:
        if (folder / METADATA).is_file():
            raise UsageError(
                f"{folder} is a log; compare takes runs, or a single log to train on: dynedge compare {folder}"
            )
        check_finished(folder)
        log = read_log(folder / IDS).metadata["trained_on"]
        evaluated_on[folder] = (log["fingerprint"], log.get("path"), read_config(folder).training.split)
    first, (fingerprint, path, split) = next(iter(evaluated_on.items()))
    for folder, (other_fingerprint, other_path, other_split) in evaluated_on.items():
        if other_fingerprint != fingerprint:
            raise UsageError(
                f"{first} was trained on {path} and {folder} on {other_path}: only runs on the same log are compared."
            )
        if other_split != split:
            raise UsageError(
                f"{first} has the split {split} and {folder} has {other_split}: only runs with the same test events "
                "are compared."
            )
