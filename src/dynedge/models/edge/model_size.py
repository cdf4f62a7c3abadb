"""Sizes of `edge` for a log, without building it: what the predictions of plan/scaling.py depend on."""

from __future__ import annotations

import numpy as np
import torch

from dynedge.models.base import LogShape
from dynedge.models.count_memory.config import MemoryConfig
from dynedge.models.count_memory.model import CountMemory
from dynedge.models.edge.config import RecurrenceConfig
from dynedge.models.edge.recurrence import Recurrence
from dynedge.models.edge.user_profile import has_profile
from dynedge.plan.levels import NO_DNODES
from dynedge.plan.planner import Plan
from dynedge.plan.scaling import ModelSize

COUNTED = 16  # windows in which touched rows are counted, evenly spaced


def model_size(plan: Plan, config: RecurrenceConfig | None = None) -> ModelSize:
    """Sizes of `edge` with this recurrence (default: its defaults), trained by the plan."""
    config = config or RecurrenceConfig()
    shape = LogShape.of(plan.log)
    masks = plan.linker.active_user, plan.linker.active_item
    lists = plan.config.train_end <= config.listed_events
    ids, profile = shape.items <= config.candidate_id_up_to, has_profile(config, shape.items)
    with torch.device("meta"):
        recurrence = Recurrence(config, shape, masks, NO_DNODES, lists=lists, candidate_id=ids, profile=profile)
    tables = {id(table) for table in (*recurrence.items.tables, *recurrence.psi)}
    whole = sum(parameter.numel() for parameter in recurrence.parameters() if id(parameter) not in tables)
    whole += CountMemory(MemoryConfig(), shape).num_parameters
    pairs = 16 * plan.config.train_end if recurrence.lists else 0  # a table of pairs, half full at most
    return ModelSize(config.dim, whole, shape.users, shape.items, _touched_rows(plan), pairs)


def _touched_rows(plan: Plan) -> float:
    """Mean number of item rows that a window reads: of its items, and of its users' last items before it."""
    log, counts = plan.log, []
    for window in plan.windows[:: max(1, len(plan) // COUNTED)]:
        events = slice(window.start, window.stop)
        items, users = (len(np.unique(column[events])) for column in (log.item, log.user))
        counts.append(min(items + users, log.num_items + 1))
    return float(np.mean(counts))
