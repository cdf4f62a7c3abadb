"""DIEN: interests that evolve towards a candidate (Zhou et al., *Deep Interest Evolution Network*, 2019).

Legend: n events, C candidates, L items of a history, d width of item vectors, s of the evolving interest.

    extractor   h_t = GRU(e_t): what the user was after, item by item
    auxiliary   h_t should tell the next item from another user's: −log σ(h_t·e_{t+1}) − log(1 − σ(h_t·ê_{t+1}))
    attention   a_t = softmax_t(h_t W e_c): how near each interest is to the candidate
    evolution   AUGRU, a GRU over h_t whose update gate is multiplied by a_t: far interests pass by
    score       MLP of the evolved interest, the candidate, the sum of the history, and the product of the last two

Published for click prediction, with one negative. Here the loss is a softmax over the true item and negatives, the
auxiliary loss beside it.

The candidate decides how the interest evolves, so that every (event, candidate) pair has an AUGRU of its own and no
shortcut is exact. All I items of an event take I·L steps of 3s² products. What does not depend on the candidate is
worked out once an event. With s = 32 and L = 10 a pair takes 3 µs on one core: all of a thousand items 3 ms an event,
all of 46,000 (globo) 0.14 s; there, 499 drawn ones are what can be waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.config import option
from dynedge.models.base import LogShape
from dynedge.models.baselines.sequential.base import Dropout, SequenceConfig, in_order, vectors_of
from dynedge.models.baselines.sequential.pair_scoring import PairModel


@dataclass(frozen=True)
class DIENConfig(SequenceConfig):
    """Interests that evolve towards a candidate."""

    window_events: int = option(256, "events a step learns from", least=1)
    negatives: int = option(31, "items drawn for each step, beside the true ones and the users' own", least=1)
    full_softmax_up_to: int = option(0, "with no more items than this, all are candidates", least=0)
    interest: int = option(32, "width of the evolving interest", least=1)
    hidden: int = option(64, "hidden units of the MLP", least=1)
    auxiliary: float = option(0.5, "weight of the auxiliary loss", least=0)


class Interests(NamedTuple):
    """What is made of a history, before a candidate is known."""

    states: Tensor  # [n, L, d]: h_t, oldest first
    there: Tensor  # bool[n, L]
    steps: Tensor  # [n, L, 3s]: what each h_t gives the AUGRU
    summed: Tensor  # [n, d]
    auxiliary: Tensor  # [n]


class DIEN(PairModel):
    def __init__(self, config: DIENConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        d, s = config.dim, config.interest
        self.extractor = nn.GRU(d, d, batch_first=True)
        self.attention = nn.Linear(d, d, bias=False)
        self.steps, self.own = nn.Linear(d, 3 * s), nn.Linear(s, 3 * s)
        self.begin = nn.Parameter(torch.zeros(s))  # the interest before the first item
        self.evolved = nn.Linear(s, config.hidden, bias=False)
        self.drop = Dropout(config.dropout)

    def remember(self, history: Tensor, there: Tensor, vectors: Tensor) -> Interests:
        walked, long = in_order(history, there)
        there = torch.arange(history.shape[1], device=long.device) < long[:, None]
        items = vectors_of(walked, vectors) * there[..., None]
        with torch.autocast(items.device.type, enabled=False):  # cuDNN's would be in float16: gradients vanish
            states, _ = self.extractor(self.drop(items))
        summed = items.sum(1) * history.shape[1] ** -0.5
        return Interests(states, there, self.steps(states), summed, self._auxiliary(states, items, there))

    def _auxiliary(self, states: Tensor, items: Tensor, there: Tensor) -> Tensor:
        """Other users' items, at the same place of their histories, are the negatives; rarely it is the same."""
        if not self.training:
            return states.new_zeros(len(states))
        states, after = states[:, :-1], items[:, 1:]
        near, far = ((states * some).sum(2) for some in (after, after.roll(1, 0)))
        right = F.logsigmoid(near) * there[:, 1:] + F.logsigmoid(-far) * (there & there.roll(1, 0))[:, 1:]
        return -right.sum(1) / there[:, 1:].sum(1).clamp_min(1)

    def beside(self, reading: Interests) -> Tensor:
        return self.config.auxiliary * reading.auxiliary.mean()

    def meet(self, reading: Interests, vectors: Tensor) -> Tensor:
        keys = self.attention(reading.states)  # [n, L, d]
        near = keys @ vectors.T if vectors.dim() == 2 else keys @ vectors.transpose(1, 2)  # [n, L, C]
        nothing = ~reading.there[..., None]
        weight = near.masked_fill(nothing, torch.finfo(near.dtype).min).softmax(1).masked_fill(nothing, 0)
        evolved = self._evolve(reading.steps, weight)
        return self.judge(reading.summed, vectors, self.evolved(evolved))

    def _evolve(self, steps: Tensor, weight: Tensor) -> Tensor:
        """[n, C, s] by the AUGRU; where the weight is zero the interest stays as it is."""
        s = self.config.interest
        interest = self.begin.expand(len(steps), weight.shape[2], s)
        for step, near in zip(steps.unbind(1), weight.unbind(1), strict=True):
            gates, fresh = torch.split(self.own(interest), [2 * s, s], 2)
            given, offered = torch.split(step[:, None], [2 * s, s], 2)
            reset, update = (gates + given).sigmoid().chunk(2, 2)
            fresh = (offered + reset * fresh).tanh()
            interest = torch.lerp(interest, fresh, update * near[..., None])
        return interest
