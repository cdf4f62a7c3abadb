"""What a person may want to see of the run that is served: how it learned, how good it is. From its folder alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dynedge.config import to_toml
from dynedge.errors import DynedgeError
from dynedge.inference.session import Live
from dynedge.runs.evaluate_run import PARTS, evaluate_run
from dynedge.runs.folder import MODEL, RUN_INFO, STATE
from dynedge.training.logging import METRICS
from dynedge.utils.atomic_io import file_sha256
from dynedge.utils.jsonl import read_jsonl

CURVE = "epoch", "loss", "memory_loss", "residual", "weight", "valid_mrr", "valid_recall@10", "seconds"


def facts(live: Live) -> dict[str, Any]:
    found = _json(live.folder / RUN_INFO)
    return {
        "run": live.folder.name,
        "model": live.config.name,
        "users": live.ids.num_users,
        "items": live.ids.num_items,
        "features": [str(name) for name in live.ids.metadata.get("features", [])],
        "time_unit": live.time_unit,
        "config": to_toml(live.config),
        "curve": [{key: line[key] for key in CURVE if key in line} for line in _history(live.folder)],
        "parameters": found.get("parameters"),
        "longest_path": {"with": found.get("longest_path", []), "without": found.get("longest_path_uncut", [])},
        "dnodes": found.get("dnodes", []),
        "metrics": _verdicts(live.folder),
    }


def _verdicts(folder: Path) -> dict[str, Any] | None:
    """Metrics with intervals, where this very run was evaluated and its log is still there; nothing is walked."""
    told = _json(folder / "ranks" / "full.json")
    try:
        if any(told.get(name) != file_sha256(folder / file) for name, file in (("model", MODEL), ("state", STATE))):
            return None
        ranked = evaluate_run(folder, quiet=True)
        return {part: ranked.summary(part) for part in PARTS}
    except (DynedgeError, OSError):
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}


def _history(folder: Path) -> list[dict[str, Any]]:
    try:
        return read_jsonl(folder / METRICS)
    except (OSError, DynedgeError):
        return []
