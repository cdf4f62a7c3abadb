"""MIMN: a memory of many interests (Pi et al., *Practice on Long Sequential User Behavior Modeling*, 2019).

Legend: n events, C candidates, L items of a history, d width of item vectors, m slots of the memory, w their width.

A neural Turing machine walks over a user's items. With e_t the item's vector and cos the cosine:

    controller   h_t = GRU([e_t, r_{t−1}], h_{t−1}), which says keys, what to erase and what to add
    read         r_t = Σ_i softmax_i(β cos(key, M(i))) M(i)
    write        M(i) ← (1 − v(i) erase) M(i) + v(i) add, with weights v like those of reading, times softmax(W g)
    utilisation  g = Σ_t v, what each slot has been written so far; its variance over the slots is part of the loss
    induction    S(i) ← GRU([M(i), e_t], S(i)) for the k slots read most: what went on in each interest

A candidate takes part only in what is read in the end: from the memory by a key of its own, and from the channels S
by attention. An MLP of both, of the candidate, the sum of the history, and the product of these two, is the score.

What has been written does not depend on the candidate, so that all I items of an event cost I small reads. The
memory follows from the user's last L items; the State keeps these, not the memory: so it is never a memory written
with parameters that have changed since, and L steps are cheap beside ranking all items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.config import option
from dynedge.errors import UsageError
from dynedge.models.base import LogShape
from dynedge.models.baselines.sequential.base import Dropout, SequenceConfig, in_order, vectors_of
from dynedge.models.baselines.sequential.pair_scoring import PairModel


@dataclass(frozen=True)
class MIMNConfig(SequenceConfig):
    """A memory of many interests."""

    negatives: int = option(127, "items drawn for each step, beside the true ones and the users' own", least=1)
    full_softmax_up_to: int = option(0, "with no more items than this, all are candidates", least=0)
    slots: int = option(4, "slots of the memory, and channels of interest", least=1)
    width: int = option(32, "width of a slot", least=1)
    read_most: int = option(2, "channels that an item moves: those of the slots read most", least=1)
    hidden: int = option(64, "hidden units of the MLP", least=1)
    utilisation: float = option(0.1, "weight of the slots' uneven use in the loss", least=0)


class Memories(NamedTuple):
    """What is left of histories."""

    memory: Tensor  # [n, m, w]
    channels: Tensor  # [n, m, w]
    use: Tensor  # [n, m]
    summed: Tensor  # [n, d]


class MIMN(PairModel):
    def __init__(self, config: MIMNConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        if config.read_most > config.slots:
            raise UsageError(f"--read-most {config.read_most} should be at most --slots {config.slots}.")
        d, m, w = config.dim, config.slots, config.width
        self.begin = nn.Parameter(0.1 * torch.randn(m, w))  # slots that differ, or they would stay alike
        self.controller = GRU(d, w, w)
        self.says = nn.Linear(w, 4 * w + 2)
        self.rebalance = nn.Linear(m, m)
        self.induction = GRU(d, w, w)
        self.key, self.strength = nn.Linear(d, w), nn.Parameter(torch.ones(()))
        self.attention = nn.Linear(d, w, bias=False)
        self.of_memory, self.of_channels = (nn.Linear(w, config.hidden, bias=False) for _ in range(2))
        self.drop = Dropout(config.dropout)

    def remember(self, history: Tensor, there: Tensor, vectors: Tensor) -> Memories:
        with torch.autocast(vectors.device.type, enabled=False):  # what is written in bfloat16 is soon forgotten
            walked, long = in_order(history, there)
            there = torch.arange(history.shape[1], device=long.device) < long[:, None]
            items = vectors_of(walked, vectors) * there[..., None]
            summed = items.sum(1) * history.shape[1] ** -0.5
            return Memories(*self._walk(self.drop(items), there), summed)

    def _walk(self, items: Tensor, there: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(memory, channels, use) after items [n, L, d]; what is not `there` bool[n, L] changes nothing."""
        n, m, w = len(items), self.config.slots, self.config.width
        memory, channels = self.begin.expand(n, -1, -1), items.new_zeros(n, m, w)
        use, state, read = items.new_zeros(n, m), items.new_zeros(n, w), items.new_zeros(n, w)
        given = self.controller.given(items).unbind(1), self.induction.given(items).unbind(1)
        for now, to_controller, to_channels in zip(there.unbind(1), *given, strict=True):
            here = now[:, None]
            state = torch.where(here, self.controller(to_controller, read, state), state)
            read_key, write_key, erase, add, strengths = torch.split(self.says(state), [w, w, w, w, 2], 1)
            reading, writing = F.softplus(strengths).chunk(2, 1)
            place = F.normalize(memory, dim=2)
            look = similar(place, read_key, reading)
            write = similar(place, write_key, writing) * self.rebalance(use).softmax(1) * here
            read = torch.where(here, (look[..., None] * memory).sum(1), read)
            rows = write[..., None]
            memory = memory * (1 - rows * erase.sigmoid()[:, None]) + rows * add.tanh()[:, None]
            use = use + write
            most = torch.zeros_like(look).scatter(1, look.topk(self.config.read_most, 1).indices, 1.0) * here
            moved = self.induction(to_channels[:, None], memory, channels)
            channels = torch.lerp(channels, moved, most[..., None])
        return memory, channels, use

    def beside(self, reading: Memories) -> Tensor:
        return self.config.utilisation * reading.use.var(1, correction=0).sum() / max(len(reading.use), 1)

    def meet(self, reading: Memories, vectors: Tensor) -> Tensor:
        keys, asks = F.normalize(self.key(vectors), dim=-1), self.attention(vectors)
        place = F.normalize(reading.memory, dim=2)
        look = (F.softplus(self.strength) * (keys @ place.transpose(1, 2))).softmax(2)  # [n, C, m]
        near = (asks @ reading.channels.transpose(1, 2) * self.config.width**-0.5).softmax(2)
        read = look @ self.of_memory(reading.memory) + near @ self.of_channels(reading.channels)
        return self.judge(reading.summed, vectors, read)


def similar(place: Tensor, key: Tensor, strength: Tensor) -> Tensor:
    """[n, m]: how much each slot (of unit length) is like a key, as weights that add up to one."""
    return (strength * (place * F.normalize(key, dim=1)[:, None]).sum(2)).softmax(1)


class GRU(nn.Module):
    """A GRU step whose input has two parts, one of them known for all steps beforehand."""

    def __init__(self, known: int, other: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.given = nn.Linear(known, 3 * width)
        self.other, self.own = nn.Linear(other, 3 * width, bias=False), nn.Linear(width, 3 * width)

    def forward(self, given: Tensor, other: Tensor, state: Tensor) -> Tensor:
        sizes = [2 * self.width, self.width]
        gates, fresh = torch.split(given + self.other(other), sizes, -1)
        own_gates, own_fresh = torch.split(self.own(state), sizes, -1)
        reset, update = (gates + own_gates).sigmoid().chunk(2, -1)
        return torch.lerp((fresh + reset * own_fresh).tanh(), state, update)
