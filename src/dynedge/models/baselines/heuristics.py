"""The plain rules: what anyone would try first, as models of the same contract, and `counts`, their learned mixture.

All of them read the memory's counts (models/memory/store.py); a rule is a fixed weight for a few of its sources.

    popular       the items met most often; with a half-life in events, lately
    recent        the user's own items, the latest first, then by popularity
    next          what followed the user's last item, by share; fading: the log's newer events count more
    next-five     what came within five events of the last five items, the older the lighter
    near          what stands near the last ten items, before or after

Each is there with all items and, as NAME-unseen, with the user's own items last. `counts` mixes them all, seen and
unseen, with weights learned on the training events.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dynedge.config import option
from dynedge.data.log import EventLog
from dynedge.models.count_memory.config import MemoryConfig
from dynedge.models.count_memory.contexts import BY_LOG_EVENTS, FIRST, LATELY, PLAIN, SOURCES
from dynedge.models.count_memory.hash_table import fading
from dynedge.models.count_memory.model import Memory
from dynedge.models.modules import Shape

CONTEXTS = {"popular": None, "recent": "user", "next": "last", "next-five": "near", "near": "near"}  # of each kind
LITTLE = 1e-6  # weight of popularity where it only breaks ties
LEAST = 1e-12  # weight of an item no one has met
UNSEEN = -60.0  # what the user's own items' logarithm is lowered by: below all others


@dataclass(frozen=True)
class RuleConfig:
    """One plain rule."""

    kind: str = option("popular", "which rule", choices=tuple(CONTEXTS))
    half_life: float = option(0.0, "in events of the log; 0: nothing fades", least=0)
    unseen: bool = option(False, "the user's own items come last")


class Rule(Memory):
    """Nothing is learned: it only remembers."""

    def __init__(self, config: RuleConfig, shape: Shape) -> None:
        context = CONTEXTS[config.kind]
        kept = tuple(name for name in (context, "user" if config.unseen else None) if name)
        fades = config.half_life if context is None and config.half_life else 1e12
        config_of = MemoryConfig(
            contexts=kept, half_lives=(fades,), gate=0, reshape=0, longest=1 << 30, span=1 << 62, examples=0
        )
        super().__init__(config_of, shape)
        if config.half_life and context:
            self.fading = self.fading._replace(by_log=fading(config.half_life))
        if config.kind == "next-five":
            after = self.fading.after
            self.fading = self.fading._replace(after=np.ones_like(after), before=np.zeros_like(after), near=5)
        weight = np.zeros(2 + SOURCES, np.float32)
        weight[0], weight[1] = LEAST, LITTLE if context else 1.0
        if context:
            way = LATELY if config.kind == "recent" else BY_LOG_EVENTS if config.half_life else PLAIN
            weight[2 + FIRST[context] + way] = 1.0
        with np.errstate(divide="ignore"):
            self.mixture.start.data = torch.from_numpy(np.log(weight))
        self.mixture.seen.data.fill_(UNSEEN if config.unseen else 0.0)
        self.requires_grad_(False)


COUNTS = MemoryConfig(contexts=("user", "last", "near"), gate=0, reshape=0, longest=1 << 30)


def _recipes() -> dict[str, RuleConfig]:
    lives = {
        "popular": (0, 50, 300, 2000, 20_000),
        "recent": (0,),
        "next": (0, 300, 1000),
        "next-five": (0, 300, 1000),
        "near": (0,),
    }
    found = {}
    for kind, half_lives in lives.items():
        for half_life in half_lives:
            for unseen in (False, True):
                name = kind + (f"-{half_life}" if half_life else "") + ("-unseen" if unseen else "")
                found[name] = RuleConfig(kind, float(half_life), unseen)
    return found


RECIPES = _recipes()
TRAINING = {name: {"epochs": 1} for name in RECIPES}  # once through the events is all there is to do


def create(config: RuleConfig, log: EventLog, train_end: int, seed: int) -> Rule:
    return Rule(config, Shape.of(log))


def restore(config: RuleConfig, log: EventLog, tensors: dict[str, Tensor]) -> Rule:
    return Rule(config, Shape.of(log))
