"""Starts a model from the vectors of another run: `dynedge train --from RUN`."""

from __future__ import annotations

from pathlib import Path

import torch

from dynedge.data.log import EventLog
from dynedge.errors import DataError, UsageError
from dynedge.models.base import Model
from dynedge.models.capabilities import HasVectors, capable
from dynedge.runs.folder import check_finished, load_run
from dynedge.training.precision import autocast

SIZE = 0.1  # root mean square of the vectors, as tables have it before training


@torch.no_grad()
def start_from_vectors(model: Model, log: EventLog, folder: Path) -> None:
    """Initializes the tables of users and items with a finished run's vectors, scaled; common columns only.

    The run's users and items must be the first ones of the log; the others keep their initial values.
    """
    check_finished(folder)
    run = load_run(folder)
    source = capable(run.model, HasVectors)
    if source is None:
        raise UsageError(f"--from {folder}: the model {run.config.name} has no vectors of users and items.")
    if not (log.user_ids.starts_with(run.log.user_ids) and log.item_ids.starts_with(run.log.item_ids)):
        raise DataError(f"--from {folder}: its users and items are not those of {log.path or 'the log'}.")
    with autocast(run.config.training):
        vectors = [SIZE * part.float() / part.float().square().mean().sqrt() for part in source.vectors(run.state)]
    parameters, changed = dict(model.named_parameters()), False
    for name, rows in model.entity_rows().items():
        table = parameters.get(name)
        if table is None or not table.is_floating_point() or rows.category is not None or table.shape[1] == 1:
            continue
        start = 0
        for side, size in zip([0] * rows.users + [1] * rows.items, rows.blocks(model.shape), strict=False):
            width = min(table.shape[1], vectors[side].shape[1])
            table[start : start + len(vectors[side]), :width] = vectors[side][:, :width].to(table)
            start, changed = start + size, True
    if not changed:
        raise UsageError(f"--from {folder}: the model to train has no tables of users or items to initialize.")
