"""Information about the served run, read from its folder: config, learning curve, d-nodes, metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dynedge.config import to_toml
from dynedge.errors import DynedgeError
from dynedge.inference.session import Session
from dynedge.runs.evaluate_run import PARTS, evaluate_run
from dynedge.runs.folder import MODEL, RUN_INFO, STATE
from dynedge.training.logging import METRICS
from dynedge.utils.atomic_io import file_sha256
from dynedge.utils.jsonl import read_jsonl

CURVE = "epoch", "loss", "memory_loss", "residual", "weight", "valid_mrr", "valid_recall@10", "seconds"


def run_info(session: Session) -> dict[str, Any]:
    """Returns what the page shows of a run, as plain values for JSON."""
    folder, recorded = session.folder, _read_json(session.folder / RUN_INFO)
    epochs = _read_history(folder)
    return {
        "run": folder.name,
        "model": session.config.name,
        "users": session.run_log.num_users,
        "items": session.run_log.num_items,
        "features": [str(name) for name in session.run_log.metadata.get("features", [])],
        "time_unit": session.time_unit,
        "config": to_toml(session.config),
        "learning_curve": [{key: epoch[key] for key in CURVE if key in epoch} for epoch in epochs],
        "parameters": recorded.get("parameters"),
        "longest_path": {
            "with_dnodes": recorded.get("longest_path", []),
            "without_dnodes": recorded.get("longest_path_uncut", []),
        },
        "dnodes": recorded.get("dnodes", []),
        "metrics": _metrics(folder),
    }


def _metrics(folder: Path) -> dict[str, Any] | None:
    """Returns metrics with intervals if this run was evaluated and its log still exists; ranks nothing itself."""
    evaluated = _read_json(folder / "ranks" / "full.json")
    try:
        files = ("model", MODEL), ("state", STATE)
        if any(evaluated.get(name) != file_sha256(folder / file) for name, file in files):
            return None
        ranked = evaluate_run(folder, quiet=True)
        return {part: ranked.summary(part) for part in PARTS}
    except (DynedgeError, OSError):
        return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}


def _read_history(folder: Path) -> list[dict[str, Any]]:
    try:
        return read_jsonl(folder / METRICS)
    except (OSError, DynedgeError):
        return []
