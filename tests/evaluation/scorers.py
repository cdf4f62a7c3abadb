"""Minimal models in plain Python for tests: one event at a time, nothing learned."""

import torch

from dynedge.models.base import Loss, Model, State


class Scorer(Model):
    """Base class; subclasses return the scores of all items for one event in `row`."""

    def __init__(self, users, items):
        super().__init__(None, None)
        self.users, self.items = users, items

    @classmethod
    def of(cls, log):
        return cls(log.num_users, log.num_items)

    def row(self, user, time, state):
        raise NotImplementedError

    def num_windows(self, train_end):
        return 1

    def start(self):
        return State(seen=torch.zeros(self.items), last=torch.full((self.users,), -1))

    def loss(self, prepared, state, step):
        return Loss(torch.zeros(()), {})

    def score(self, prepared, candidates, state):
        rows = []
        for user, item, time in zip(prepared.user, prepared.item, prepared.time, strict=True):
            rows.append(self.row(int(user), float(time), state).clone())
            state["seen"][int(item)] += 1
            state["last"][int(user)] = int(item)
        every = torch.stack(rows) if rows else torch.zeros(0, self.items)
        return every if candidates is None else every.gather(1, candidates)

    def score_query(self, users, times, candidates, state):
        every = torch.stack([self.row(int(u), float(t), state) for u, t in zip(users, times, strict=True)])
        return every if candidates is None else every.gather(1, candidates)


class Constant(Scorer):
    def row(self, user, time, state):
        return torch.zeros(self.items)


class Popular(Scorer):
    """Popularity, with many ties: items with equal counts, and all unseen items."""

    def row(self, user, time, state):
        return state["seen"]


class PopularById(Scorer):
    """The classic mistake: ties go to the lower id, as in a stable sort."""

    def row(self, user, time, state):
        return state["seen"] - 1e-3 * torch.arange(self.items)


class NanForUnseen(Scorer):
    """Popularity with NaN as the score of unseen items."""

    def row(self, user, time, state):
        return torch.where(state["seen"] > 0, state["seen"], torch.nan)


class LastItem(Scorer):
    def row(self, user, time, state):
        return (torch.arange(self.items) == state["last"][user]).float()
