"""MIMN: a memory of many interests (Pi et al., *Practice on Long Sequential User Behavior Modeling*, 2019).

Legend: n events, C candidates, L items of a history, d width of item vectors, m slots of the memory, w their width.

A neural Turing machine reads a user's items in order. With e_t the item's vector, M(i) slot i of the memory, S(i)
channel i of the interests, and cos the cosine:

    controller   h_t = GRU([e_t, r_{t−1}], h_{t−1}), which emits a read and a write key, an erase and an add vector
    read         r_t = Σ_i softmax_i(β cos(key, M(i))) M(i)
    write        M(i) ← (1 − v(i) erase) M(i) + v(i) add, with weights v like those of reading, times softmax(W g)
    utilization  g = Σ_t v, how much each slot has been written so far; its variance over slots is part of the loss
    induction    S(i) ← GRU([M(i), e_t], S(i)) for the k slots read most: the evolution of each interest

A candidate reads the final memory by its own key, and the channels S by attention. An MLP of both, the candidate, the
sum of the history, and the product of the last two gives the score. Writing does not depend on the candidate, so
scoring all I items of an event costs I small reads.

Differences from the paper:
- The memory is recomputed from the user's last L items; the State holds these items, not the memory. So a memory is
  never written by outdated parameters, and L steps are cheap compared with ranking all items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.config import MAX_WIDTH, option
from dynedge.errors import UsageError
from dynedge.models.base import LogShape
from dynedge.models.baselines.sequential.base import Dropout, SequenceConfig, gather_history, oldest_first
from dynedge.models.baselines.sequential.pair_scoring import PairModel


@dataclass(frozen=True)
class MIMNConfig(SequenceConfig):
    """Settings of MIMN."""

    negatives: int = option(127, "Number of negative samples per step, besides each user's own items.", least=1)
    full_softmax_up_to: int = option(0, "Largest number of items for a softmax over all items.", least=0)
    slots: int = option(4, "Number of memory slots and interest channels.", least=1)
    slot_dim: int = option(32, "Width of a memory slot.", least=1, most=MAX_WIDTH)
    updated_channels: int = option(2, "Number of channels updated per item, those of the slots read most.", least=1)
    hidden: int = option(64, "Number of hidden units of the MLP.", least=1)
    utilization_weight: float = option(0.1, "Weight of the variance of slot utilization in the loss.", least=0)


class Memories(NamedTuple):
    """The encoding of histories."""

    memory: Tensor  # [n, m, w]
    channels: Tensor  # [n, m, w]
    utilization: Tensor  # [n, m]
    history_sum: Tensor  # [n, d]


class MIMN(PairModel):
    def __init__(self, config: MIMNConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        if config.updated_channels > config.slots:
            raise UsageError(
                f"--updated-channels {config.updated_channels} should be at most --slots {config.slots}."
            )
        d, m, w = config.dim, config.slots, config.slot_dim
        self.initial_memory = nn.Parameter(0.1 * torch.randn(m, w))  # equal slots would stay equal
        self.controller = TwoInputGRU(d, w, w)
        self.interface = nn.Linear(w, 4 * w + 2)
        self.rebalance = nn.Linear(m, m)
        self.induction = TwoInputGRU(d, w, w)
        self.key, self.strength = nn.Linear(d, w), nn.Parameter(torch.ones(()))
        self.attention = nn.Linear(d, w, bias=False)
        self.memory_out, self.channels_out = (nn.Linear(w, config.hidden, bias=False) for _ in range(2))
        self.dropout = Dropout(config.dropout)

    def encode_rows(self, history: Tensor, mask: Tensor, vectors: Tensor) -> Memories:
        with torch.autocast(vectors.device.type, enabled=False):  # small writes are lost in bfloat16
            ordered, length = oldest_first(history, mask)
            mask = torch.arange(history.shape[1], device=length.device) < length[:, None]
            items = gather_history(ordered, vectors) * mask[..., None]
            history_sum = items.sum(1) * history.shape[1] ** -0.5
            return Memories(*self._write_memory(self.dropout(items), mask), history_sum)

    def _write_memory(self, items: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(memory, channels, utilization) after items [n, L, d]; masked items, bool[n, L], change nothing."""
        n, m, w = len(items), self.config.slots, self.config.slot_dim
        memory, channels = self.initial_memory.expand(n, -1, -1), items.new_zeros(n, m, w)
        utilization, state, read = items.new_zeros(n, m), items.new_zeros(n, w), items.new_zeros(n, w)
        inputs = self.controller.input(items).unbind(1), self.induction.input(items).unbind(1)
        for step_mask, controller_input, channel_input in zip(mask.unbind(1), *inputs, strict=True):
            valid = step_mask[:, None]
            state = torch.where(valid, self.controller(controller_input, read, state), state)
            read_key, write_key, erase, add, strengths = torch.split(self.interface(state), [w, w, w, w, 2], 1)
            read_strength, write_strength = F.softplus(strengths).chunk(2, 1)
            unit_slots = F.normalize(memory, dim=2)
            read_weight = content_weights(unit_slots, read_key, read_strength)
            write_weight = content_weights(unit_slots, write_key, write_strength)
            write_weight = write_weight * self.rebalance(utilization).softmax(1) * valid
            read = torch.where(valid, (read_weight[..., None] * memory).sum(1), read)
            per_slot = write_weight[..., None]
            memory = memory * (1 - per_slot * erase.sigmoid()[:, None]) + per_slot * add.tanh()[:, None]
            utilization = utilization + write_weight
            top = read_weight.topk(self.config.updated_channels, 1).indices
            updated = torch.zeros_like(read_weight).scatter(1, top, 1.0) * valid
            new_channels = self.induction(channel_input[:, None], memory, channels)
            channels = torch.lerp(channels, new_channels, updated[..., None])
        return memory, channels, utilization

    def auxiliary_loss(self, encoding: Memories) -> Tensor:
        variance = encoding.utilization.var(1, correction=0).sum()
        return self.config.utilization_weight * variance / max(len(encoding.utilization), 1)

    def score_pairs(self, encoding: Memories, vectors: Tensor) -> Tensor:
        keys, queries = F.normalize(self.key(vectors), dim=-1), self.attention(vectors)
        unit_slots = F.normalize(encoding.memory, dim=2)
        memory_weight = (F.softplus(self.strength) * (keys @ unit_slots.transpose(1, 2))).softmax(2)  # [n, C, m]
        channel_weight = (queries @ encoding.channels.transpose(1, 2) * self.config.slot_dim**-0.5).softmax(2)
        read = memory_weight @ self.memory_out(encoding.memory) + channel_weight @ self.channels_out(
            encoding.channels
        )
        return self.mlp(encoding.history_sum, vectors, read)


def content_weights(unit_slots: Tensor, key: Tensor, strength: Tensor) -> Tensor:
    """[n, m]: content-based addressing, the softmax over slots of strength times the cosine with a key."""
    return (strength * (unit_slots * F.normalize(key, dim=1)[:, None]).sum(2)).softmax(1)


class TwoInputGRU(nn.Module):
    """A GRU step with two inputs, of which the first can be transformed for all steps at once (`input`)."""

    def __init__(self, input_dim: int, other_dim: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.input = nn.Linear(input_dim, 3 * width)
        self.other, self.hidden = nn.Linear(other_dim, 3 * width, bias=False), nn.Linear(width, 3 * width)

    def forward(self, transformed: Tensor, other: Tensor, state: Tensor) -> Tensor:
        sizes = [2 * self.width, self.width]
        input_gates, input_new = torch.split(transformed + self.other(other), sizes, -1)
        hidden_gates, hidden_new = torch.split(self.hidden(state), sizes, -1)
        reset, update = (input_gates + hidden_gates).sigmoid().chunk(2, -1)
        return torch.lerp((input_new + reset * hidden_new).tanh(), state, update)
