"""What is learned: the gate and the reshaping network, from a sample of events walked through in order.

For a sampled event the sources are asked what they say of the true item, of the items the present mixture puts on
top, of a draw from the rest, and of all items together that no context knows. That is the whole softmax, nearly: the
drawn ones stand for the rest they are drawn from.

Legend: m sampled events, K candidates of each (the true item first), M sources in all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.models.count_memory.contexts import FACTS, SOURCES, Fading, Found, Store, forget, look, take_in
from dynedge.models.count_memory.scoring import INPUTS, SEEN, Weights, gate, inputs
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

TOP, REST = 38, 24
CANDIDATES = 2 + TOP + REST  # the true item, what no context knows, the top and the rest's draw
NOT_THERE = np.float32(-1e9)
PACE = 10.0  # a few hundred weights that everything hangs on learn this much faster than the recurrence's


class Examples(NamedTuple):
    """Arrays while they are collected, then tensors."""

    facts: Any  # float32[m, FACTS]
    there: Any  # bool[m, M]
    share: Any  # float32[m, K, M]: what each source says of each candidate
    inputs: Any  # float32[m, K, INPUTS]
    bonus: Any  # float32[m, K]: the logarithm of how many a drawn one stands for; far below 0: no candidate


def room(events: int, sources: int) -> Examples:
    return Examples(
        np.zeros((events, FACTS), np.float32),
        np.zeros((events, sources), np.bool_),
        np.zeros((events, CANDIDATES, sources), np.float32),
        np.zeros((events, CANDIDATES, INPUTS), np.float32),
        np.full((events, CANDIDATES), NOT_THERE),
    )


def tensors(examples: Examples, like: Tensor) -> Examples:
    """Where the parameters are. They stay for all epochs: what sources say in half the bytes, unless like float64."""
    found = Examples(*(torch.from_numpy(part).to(like.device) for part in examples))
    kept = like.dtype if like.dtype == torch.float64 else torch.bfloat16
    return found._replace(share=found.share.to(kept), inputs=found.inputs.to(kept))


@compiled
def collect(
    store: Store,
    fading: Fading,
    keep: Array,
    weights: Weights,
    user: Array,
    item: Array,
    time: Array,
    sampled: Array,
    draws: Array,
    found: Found,
    out: Examples,
) -> None:
    """Walk the events; put the sampled ones (bool[n]) into `out`. `draws` float64[m] in [0, 1): where draws start."""
    m, half_lives = 0, len(store.popular_total)
    weight = np.zeros(len(weights.gate_start), np.float32)
    for k in range(len(user)):
        if sampled[k]:
            size = look(store, fading, keep, user[k], time[k], found)
            gate(weights, found, half_lives, weight)
            out.facts[m] = found.facts
            out.there[m, : 1 + half_lives] = True
            out.there[m, 1 + half_lives :] = found.there
            _candidates(store, found, size, item[k], weight, draws[m], out, m)
            forget(found, size)
            m += 1
        take_in(store, fading, keep, user[k], item[k], time[k])


@compiled
def _put(store: Store, found: Found, item: int, out: Examples, m: int, place: int, bonus: float) -> None:
    half_lives, items = len(store.popular_total), store.items
    share = out.share[m, place]
    share[0] = 1.0 / items
    for h in range(half_lives):
        share[1 + h] = store.popular[h, item] / max(store.popular_total[h], 1e-30)
    if found.slot[item] >= 0:
        share[1 + half_lives :] = found.share[found.slot[item]]
        inputs(store, found, found.slot[item], out.inputs[m, place])
    out.bonus[m, place] = bonus


@compiled
def _candidates(
    store: Store, found: Found, size: int, true: int, weight: Array, draw: float, out: Examples, m: int
) -> None:
    half_lives, items = len(store.popular_total), store.items
    _put(store, found, true, out, m, 0, 0.0)
    mixed = np.zeros(size, np.float32)
    unknown = out.share[m, 1]  # what is left of each source for the items no context knows
    unknown[0] = 1.0
    for h in range(half_lives):
        unknown[1 + h] = 1.0 if store.popular_total[h] > 0 else 0.0
    if found.slot[true] < 0:
        unknown[: 1 + half_lives] -= out.share[m, 0, : 1 + half_lives]
    for slot in range(size):
        item = found.items[slot]
        unknown[0] -= 1.0 / items
        mixed[slot] = weight[0] / items
        for h in range(half_lives):
            share = store.popular[h, item] / max(store.popular_total[h], 1e-30)
            unknown[1 + h] -= share
            mixed[slot] += weight[1 + h] * share
        for s in range(SOURCES):
            mixed[slot] += weight[1 + half_lives + s] * found.share[slot, s]
    for h in range(1 + half_lives):
        unknown[h] = max(unknown[h], np.float32(0))
    out.bonus[m, 1] = 0.0
    bar = np.float32(-1)
    if size > TOP:
        bar = np.partition(mixed, size - TOP)[size - TOP]
    place, top, rest = 2, 0, 0
    is_top = np.zeros(size, np.bool_)
    for slot in range(size):
        if found.items[slot] == true:
            continue
        if mixed[slot] >= bar and top < TOP:
            is_top[slot] = True
            top += 1
            _put(store, found, found.items[slot], out, m, place, 0.0)
            place += 1
        else:
            rest += 1
    drawn = min(rest, REST)
    seen, taken = 0, 0
    for slot in range(size):
        if is_top[slot] or found.items[slot] == true:
            continue
        if taken < drawn and seen >= int((taken + draw) * rest / drawn):
            _put(store, found, found.items[slot], out, m, place, np.log(rest / drawn))
            place += 1
            taken += 1
        seen += 1


class Mixture(nn.Module):
    """The gate and the reshaping network. Hidden sizes of 0: constant weights; a factor for the user's own items."""

    def __init__(self, start: Tensor, gate_hidden: int, shape_hidden: int) -> None:
        super().__init__()
        sources = len(start)
        self.start = nn.Parameter(start)
        self.gate_in = nn.Linear(FACTS, gate_hidden) if gate_hidden else None
        self.gate_out = nn.Parameter(torch.zeros(sources, gate_hidden))
        self.shape_in = nn.Linear(INPUTS + FACTS, shape_hidden) if shape_hidden else None
        self.shape_out = nn.Parameter(torch.zeros(shape_hidden))
        self.seen = nn.Parameter(torch.zeros(1))
        for parameter in self.parameters():
            parameter.pace = PACE  # type: ignore[attr-defined]

    def weights(self) -> Weights:
        """As arrays, for the compiled walk."""

        def array(tensor: Tensor) -> Array:
            return np.ascontiguousarray(tensor.detach().float().cpu().numpy())

        none = torch.zeros(0, FACTS), torch.zeros(0)
        gate_in = (self.gate_in.weight, self.gate_in.bias) if self.gate_in is not None else none
        shape = torch.zeros(INPUTS, 0), torch.zeros(0, FACTS), torch.zeros(0)
        if self.shape_in is not None:
            of_item, of_facts = torch.split(self.shape_in.weight, [INPUTS, FACTS], 1)
            shape = of_item.T, of_facts, self.shape_in.bias.data
        parts = *gate_in, self.gate_out, self.start, *shape, self.shape_out, self.seen
        return Weights(*(array(part) for part in parts))

    def loss(self, examples: Examples) -> tuple[Tensor, Tensor]:
        """([m], [m]): minus the logarithm of the true item's probability, before and after reshaping."""
        with torch.autocast(self.start.device.type, enabled=False):  # shares are small numbers
            return self._loss(examples)

    def _loss(self, examples: Examples) -> tuple[Tensor, Tensor]:
        of = self.start.dtype
        facts, there = examples.facts.to(of), examples.there
        share, inputs, bonus = examples.share.to(of), examples.inputs.to(of), examples.bonus.to(of)
        logits = self.start.expand(len(facts), -1)
        if self.gate_in is not None:
            logits = logits + self.gate_in(facts).relu() @ self.gate_out.T
        weight = logits.masked_fill(~there, -torch.inf).softmax(1)
        mixed = torch.log(torch.bmm(share, weight[:, :, None]).squeeze(2).clamp_min(1e-30))
        reshaped = self.reshaped(facts, inputs, mixed.detach() + bonus)
        return -mixed[:, 0], -F.log_softmax(reshaped, 1)[:, 0]

    def reshaped(self, facts: Tensor, inputs: Tensor, logits: Tensor) -> Tensor:
        change = self.seen * inputs[:, :, SEEN]
        if self.shape_in is not None:
            of_item, of_facts = torch.split(self.shape_in.weight, [INPUTS, FACTS], 1)
            hidden = inputs @ of_item.T + (facts @ of_facts.T + self.shape_in.bias)[:, None]
            known = (inputs != 0).any(2)  # what no context knows of is left as it is
            change = change + (hidden.relu() @ self.shape_out) * known
        return logits + change
