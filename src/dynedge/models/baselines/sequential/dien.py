"""DIEN: interests that evolve towards a candidate (Zhou et al., *Deep Interest Evolution Network*, 2019).

Legend: n events, C candidates, L items of a history, d width of item vectors, s width of the evolving interest; e_t
item vectors, ê_{t+1} the vector of another user's item, e_c the candidate's vector.

    extractor   h_t = GRU(e_t): the interest after each item
    auxiliary   h_t tells the next item from another user's: −log σ(h_t·e_{t+1}) − log(1 − σ(h_t·ê_{t+1}))
    attention   a_t = softmax_t(h_t W e_c): relevance of each interest to the candidate
    evolution   AUGRU, a GRU over h_t whose update gate is multiplied by a_t: irrelevant interests are skipped
    score       MLP of the evolved interest, the candidate, the sum of the history, and the product of the last two

Differences from the paper:
- Published for click prediction, with one negative. Here the loss is a softmax over the true item and negatives, plus
  the auxiliary loss. Negatives are the 20 newest items of the history, the hardest ones, and sampled ones: with a
  history of 200 items, to score all of them takes most of the time.

The evolution depends on the candidate, so every (event, candidate) pair has its own AUGRU and no shortcut is exact:
scoring all I items of an event takes I·L steps of 3s² products. What does not depend on the candidate is computed
once per event. With s = 32 and L = 10 a pair takes 3 µs on one core: 3 ms per event for a thousand items, 0.14 s for
the 46,000 items of globo, where only a sampled ranking (499 items) is practical.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.config import MAX_WIDTH, option
from dynedge.models.base import LogShape
from dynedge.models.baselines.sequential.base import Dropout, SequenceConfig, gather_history, oldest_first
from dynedge.models.baselines.sequential.pair_scoring import PairModel


@dataclass(frozen=True)
class DIENConfig(SequenceConfig):
    """Settings of DIEN."""

    window_events: int = option(256, "Number of events per training step.", least=1)
    negatives: int = option(31, "Number of negative samples per step, besides each user's own items.", least=1)
    full_softmax_up_to: int = option(0, "Largest number of items for a softmax over all items.", least=0)
    own_negatives: int = option(20, "Number of the newest items of a user's history that are negatives.", least=0)
    interest_dim: int = option(32, "Width of the evolving interest.", least=1, most=MAX_WIDTH)
    hidden: int = option(64, "Number of hidden units of the MLP.", least=1)
    auxiliary_weight: float = option(0.5, "Weight of the auxiliary loss.", least=0)


class Interests(NamedTuple):
    """The encoding of histories: everything that does not depend on the candidate."""

    states: Tensor  # [n, L, d]: h_t, oldest first
    mask: Tensor  # bool[n, L]
    gate_inputs: Tensor  # [n, L, 3s]: the contribution of each h_t to the gates of the AUGRU
    history_sum: Tensor  # [n, d]
    auxiliary: Tensor  # [n]: auxiliary losses


class DIEN(PairModel):
    def __init__(self, config: DIENConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        d, s = config.dim, config.interest_dim
        self.extractor = nn.GRU(d, d, batch_first=True)
        self.attention = nn.Linear(d, d, bias=False)
        self.gate_input, self.gate_hidden = nn.Linear(d, 3 * s), nn.Linear(s, 3 * s)
        self.initial_interest = nn.Parameter(torch.zeros(s))
        self.interest_out = nn.Linear(s, config.hidden, bias=False)
        self.dropout = Dropout(config.dropout)

    def encode_rows(self, history: Tensor, mask: Tensor, vectors: Tensor) -> Interests:
        ordered, length = oldest_first(history, mask)
        mask = torch.arange(history.shape[1], device=length.device) < length[:, None]
        items = gather_history(ordered, vectors) * mask[..., None]
        with torch.autocast(items.device.type, enabled=False):  # cuDNN would use float16: gradients vanish
            states, _ = self.extractor(self.dropout(items))
        history_sum = items.sum(1) * history.shape[1] ** -0.5
        gate_inputs = self.gate_input(states)
        return Interests(states, mask, gate_inputs, history_sum, self._auxiliary_losses(states, items, mask))

    def _auxiliary_losses(self, states: Tensor, items: Tensor, mask: Tensor) -> Tensor:
        """[n]; negatives are other users' items at the same position of their histories, rarely the same item."""
        if not self.training:
            return states.new_zeros(len(states))
        states, next_items = states[:, :-1], items[:, 1:]
        positive, negative = ((states * vectors).sum(2) for vectors in (next_items, next_items.roll(1, 0)))
        both = (mask & mask.roll(1, 0))[:, 1:]
        log_likelihood = F.logsigmoid(positive) * mask[:, 1:] + F.logsigmoid(-negative) * both
        return -log_likelihood.sum(1) / mask[:, 1:].sum(1).clamp_min(1)

    def auxiliary_loss(self, encoding: Interests) -> Tensor:
        return self.config.auxiliary_weight * encoding.auxiliary.mean()

    def score_pairs(self, encoding: Interests, vectors: Tensor) -> Tensor:
        keys = self.attention(encoding.states)  # [n, L, d]
        logits = keys @ vectors.T if vectors.dim() == 2 else keys @ vectors.transpose(1, 2)  # [n, L, C]
        padding = ~encoding.mask[..., None]
        weight = logits.masked_fill(padding, torch.finfo(logits.dtype).min).softmax(1).masked_fill(padding, 0)
        evolved = self._evolve(encoding.gate_inputs, weight)
        return self.mlp(encoding.history_sum, vectors, self.interest_out(evolved))

    def _evolve(self, gate_inputs: Tensor, weight: Tensor) -> Tensor:
        """[n, C, s]: the AUGRU; where the attention weight is zero the interest does not change."""
        s = self.config.interest_dim
        interest = self.initial_interest.expand(len(gate_inputs), weight.shape[2], s)
        for step_input, step_weight in zip(gate_inputs.unbind(1), weight.unbind(1), strict=True):
            hidden_gates, hidden_new = torch.split(self.gate_hidden(interest), [2 * s, s], 2)
            input_gates, input_new = torch.split(step_input[:, None], [2 * s, s], 2)
            reset, update = (hidden_gates + input_gates).sigmoid().chunk(2, 2)
            new = (input_new + reset * hidden_new).tanh()
            interest = torch.lerp(interest, new, update * step_weight[..., None])
        return interest
