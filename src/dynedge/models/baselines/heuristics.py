"""Heuristics: the simplest recommenders, as models without parameters; and `counts`, a learned mixture of them.

All of them are the count memory (models/count_memory/contexts.py) with fixed weights on a few of its sources. The
heuristics count all earlier events, `counts` as many as the memory.

    popular       the most frequent items; with a half-life in events, the most frequent recently
    recent        the user's own items, most recent first, then all others by popularity
    next          what followed the user's last item, by its share; with a half-life, newer events count more
    next-five     what came within five events after the last five items, with less weight for older ones
    near          what occurred near the last ten items, before or after

Each exists with all items and, as NAME-unseen, with the user's own items ranked last. `counts` mixes the sources of
`recent`, `next` and `near` with popularity at several half-lives, by constant weights learned on the training events.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dynedge.config import option
from dynedge.models.base import LogShape
from dynedge.models.count_memory.config import MemoryConfig, StandaloneMemoryConfig
from dynedge.models.count_memory.contexts import CONTEXT_SOURCES, NEAR_DISTANCE, SOURCE, decay_factors, near_weights
from dynedge.models.count_memory.model import CountMemory

CONTEXTS = {"popular": None, "recent": "user", "next": "last", "next-five": "near", "near": "near"}  # by kind
TIE_BREAK = 1e-6  # weight of popularity where it only breaks ties
UNIFORM = 1e-12  # weight of the uniform source: items without events rank last
SEEN = -60.0  # log factor of seen items where they are ranked last
UNLIMITED = 1 << 30
WINDOWS = 300  # progress is shown by window


@dataclass(frozen=True)
class HeuristicConfig:
    """Settings of a heuristic."""

    kind: str = option("popular", "Name of the heuristic.", choices=tuple(CONTEXTS))
    half_life: float = option(0.0, "Half-life of counts in events of the log; 0: no decay.", least=0)
    unseen: bool = option(False, "Whether the user's own items are ranked last.")


def counts_config(config: HeuristicConfig) -> MemoryConfig:
    """What a heuristic counts."""
    context = CONTEXTS[config.kind]
    return MemoryConfig(
        contexts=tuple(name for name in (context, "user" if config.unseen else None) if name),
        half_lives=(config.half_life if context is None and config.half_life else 1e12,),
        gating_hidden=0,
        rescaling_hidden=0,
        history_events=UNLIMITED,
        occurrences=UNLIMITED,
        training_examples=0,
    )


class Heuristic(CountMemory):
    """A count memory with fixed weights: it counts events and learns nothing."""

    def __init__(self, config: HeuristicConfig, shape: LogShape) -> None:
        super().__init__(config, shape, counts_config(config))
        context = CONTEXTS[config.kind]
        if config.half_life and context:
            self.settings = self.settings._replace(log_decay=decay_factors(config.half_life))
        if config.kind == "next-five":
            weights = near_weights(np.zeros(NEAR_DISTANCE), np.ones(NEAR_DISTANCE))
            self.settings = self.settings._replace(near_weights=weights, near_items=5)
        weight = np.zeros(2 + CONTEXT_SOURCES, np.float32)
        weight[0], weight[1] = UNIFORM, TIE_BREAK if context else 1.0
        if context:
            kind = "recency" if config.kind == "recent" else "log-decayed" if config.half_life else "plain"
            weight[2 + SOURCE[context, kind]] = 1.0
        with np.errstate(divide="ignore"):
            self.mixture.logits.data = torch.from_numpy(np.log(weight))
        self.mixture.rescaling_seen.data.fill_(SEEN if config.unseen else 0.0)
        self.requires_grad_(False)

    def num_windows(self, train_end: int) -> int:
        return WINDOWS


COUNTS = StandaloneMemoryConfig(contexts=("user", "last", "near"), gating_hidden=0, rescaling_hidden=0)


def _recipes() -> dict[str, HeuristicConfig]:
    half_lives_of = {
        "popular": (0, 50, 300, 2000, 20_000),
        "recent": (0,),
        "next": (0, 300, 1000),
        "next-five": (0, 300, 1000),
        "near": (0,),
    }
    recipes = {}
    for kind, half_lives in half_lives_of.items():
        for half_life in half_lives:
            for unseen in (False, True):
                name = kind + (f"-{half_life}" if half_life else "") + ("-unseen" if unseen else "")
                recipes[name] = HeuristicConfig(kind, float(half_life), unseen)
    return recipes


RECIPES = _recipes()
TRAINING = {name: {"epochs": 1} for name in RECIPES}  # one pass to count the events
