"""First-order Markov chain with a popularity prior: P(j | last item i) = (N[i, j] + m q[j]) / (N[i] + m)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dynedge.config import option
from dynedge.data.windows import Window
from dynedge.models.base import LogShape, Loss, Model, State, Step
from dynedge.models.capabilities import Growable
from dynedge.models.registry import Entry


@dataclass(frozen=True)
class MarkovConfig:
    windows: int = option(100, "Number of training windows per epoch.", least=1)
    prior_events: float = option(1.0, "Initial weight of the prior, in events.", least=0.01)


class Markov(Model, Growable):
    def __init__(self, config: MarkovConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        self.log_prior = nn.Parameter(torch.tensor(config.prior_events).log())

    def start(self) -> State:
        users, items = self.shape.users, self.shape.items
        # `row` of a user: which row of `counts` predicts the next item; 0 before the first event, then last item + 1.
        return State(row=torch.zeros(users).long(), counts=torch.zeros(items + 1, items), total=torch.ones(items))

    def score_query(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        counts, share = state["counts"][state["row"][users]], state["total"] / state["total"].sum()
        prior = self.log_prior.exp()
        scores = ((counts + prior * share) / (counts.sum(1, keepdim=True) + prior)).log()
        return scores if candidates is None else scores.gather(1, candidates)

    def score(self, batch: Window, candidates: Tensor | None, state: State) -> Tensor:
        candidates = torch.arange(self.shape.items).expand(len(batch), -1) if candidates is None else candidates
        scores = torch.empty(candidates.shape)
        for k, (user, item) in enumerate(zip(batch.user, batch.item, strict=True)):
            scores[k] = self.score_query(torch.tensor([user]), torch.zeros(1), candidates[k : k + 1], state)[0]
            state["counts"][state["row"][user], item] += 1
            state["total"][item] += 1
            state["row"][user] = item + 1
        return scores

    def loss(self, batch: Window, state: State, step: Step) -> Loss:
        scores = self.score(batch, torch.from_numpy(batch.item).long()[:, None], state)
        return Loss(-scores.sum() / max(len(batch), 1), {})

    def grow(self, users: int, items: int, state: State) -> None:
        more_users, more_items = users - len(state["row"]), items - len(state["total"])
        self.shape = replace(self.shape, users=users, items=items)
        state["row"] = nn.functional.pad(state["row"], (0, more_users))
        state["counts"] = nn.functional.pad(state["counts"], (0, more_items, 0, more_items))
        state["total"] = nn.functional.pad(state["total"], (0, more_items), value=1.0)


ENTRY = Entry(Markov, MarkovConfig, training={"markov": {"epochs": 3, "lr": 0.05}})
