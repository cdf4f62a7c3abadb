"""Runs beside each other on the events they were all judged on: every difference is a paired one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynedge.data.log import METADATA, read_log
from dynedge.errors import UsageError
from dynedge.evaluation.summary import difference
from dynedge.runs.evaluate_run import PARTS, Ranked, rank_run
from dynedge.runs.folder import IDS, check_finished, read_config


def compare_runs(folders: Sequence[Path], *, protocol: str = "full") -> dict[str, Any]:
    """Plain values. Runs from the best test MRR down; each but the first with what it has more than that one."""
    check_comparable(folders)
    ranked = [rank_run(folder, protocol=protocol) for folder in folders]
    verdicts = {one: {part: one.verdict(part) for part in PARTS} for one in ranked}
    order = sorted(ranked, key=lambda one: -(verdicts[one]["test"]["mrr"] or 0.0))
    runs = [
        {"run": str(one.run), "model": one.config.name, **verdicts[one]}
        | ({"less_best": _less(one, order[0])} if at else {})
        for at, one in enumerate(order)
    ]
    return {
        "log": str(ranked[0].log.path),
        "protocol": protocol,
        "items": ranked[0].log.num_items,
        "best": runs[0]["run"],
        "second": runs[1]["run"],
        "runs": runs,
    }


def _less(one: Ranked, best: Ranked) -> dict[str, Any]:
    ranks, user = one.of("test")
    return difference(ranks, best.of("test")[0], user)


def check_comparable(folders: Sequence[Path]) -> None:
    """Refuse, before any walk, what is no run, and runs that were not judged on the same events."""
    if len(folders) < 2:
        raise UsageError("compare takes two run folders or more: dynedge compare RUN RUN…")
    judged = {}
    for folder in folders:
        if (folder / METADATA).is_file():
            raise UsageError(
                f"{folder} is a log; compare takes runs, or one log alone, to train on: dynedge compare {folder}"
            )
        check_finished(folder)
        log = read_log(folder / IDS).metadata["trained_on"]
        judged[folder] = (log["fingerprint"], log.get("path"), read_config(folder).training.split)
    first, (fingerprint, path, split) = next(iter(judged.items()))
    for folder, (other, where, parts) in judged.items():
        if other != fingerprint:
            raise UsageError(
                f"{first} was trained on {path} and {folder} on {where}: only runs on the same log are compared."
            )
        if parts != split:
            raise UsageError(
                f"{first} has the split {split} and {folder} {parts}: only runs with the same test events compare."
            )
