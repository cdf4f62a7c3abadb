"""A small model for tests of training: popularity, the user's last item, and embeddings.

It has everything that could be lost on resuming: a table with sparse gradients, dense parameters, dropout that uses
torch's global generator, sampling with the step's generator, a buffer that end_epoch changes, and a state.

Run as a program, it is `dynedge` with this model in the registry:
python tests/training/toy_model.py train LOG --out RUN
"""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dynedge.config import option
from dynedge.data.id_index import IdIndex
from dynedge.data.log import EventLog
from dynedge.data.log_writer import LogWriter
from dynedge.errors import UsageError
from dynedge.models.base import LogShape, Loss, Model, State
from dynedge.models.entity_rows import Rows
from dynedge.models.registry import Entry, use_only


@dataclass(frozen=True)
class ToyConfig:
    dim: int = option(4, "Width of an embedding.", least=1)
    windows: int = option(7, "Number of windows per epoch.", least=1)
    negatives: int = option(5, "Number of negative samples per event.", least=1)
    pause: float = option(0.0, "Seconds to sleep in each window.")
    explode: int | None = option(None, "Window of the second epoch whose loss is NaN.")


class Toy(Model):
    def __init__(self, config, shape):
        super().__init__(config, shape)
        users, items = self.users, self.items = shape.users, shape.items
        self.user = nn.Parameter(torch.zeros(users, config.dim))
        self.item = nn.Parameter(torch.zeros(items, config.dim))
        self.mix = nn.Linear(config.dim, config.dim)
        self.repeat = nn.Parameter(torch.zeros(()))
        self.dropout = nn.Dropout(0.2)
        self.register_buffer("ended", torch.zeros((), dtype=torch.int64))

    @classmethod
    def create(cls, config, log, train_end, seed):
        if config.dim == 13:
            raise UsageError("--dim 13 brings bad luck.")
        model = cls(config, LogShape.of(log))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in (model.user, model.item):
                parameter.normal_(0, 0.1, generator=generator)
        return model

    def entity_rows(self):
        return {"user": Rows(users=True, std=0.1), "item": Rows(items=True, std=0.1)}

    def start(self):
        return State(
            seen=self.item.new_zeros(self.items),
            last=torch.full((self.users,), -1, device=self.item.device),
        )

    def prepare(self, window):
        return torch.from_numpy(window.user).long(), torch.from_numpy(window.item).long()

    def loss(self, prepared, state, step):
        user, item = prepared
        time.sleep(self.config.pause)
        negatives = torch.randint(0, self.items, (len(user), self.config.negatives), generator=step.generator())
        candidates = torch.cat([item[:, None], negatives], 1)
        table = functional.embedding(candidates, self.item, sparse=True)
        query = self.mix(self.dropout(functional.embedding(user, self.user, sparse=True) + 0.1))
        scores = torch.einsum("nd,ncd->nc", query, table) + self._state_scores(user, candidates, state)
        total = -scores.log_softmax(1)[:, 0].mean() if len(user) else scores.sum()
        if (step.epoch, step.window) == (1, self.config.explode):
            total = total * torch.nan
        self._advance(user, item, state)
        return Loss(total, {"residual": float(self.repeat.detach())})

    def end_epoch(self, epoch):
        self.ended += 1
        return {"ended": float(self.ended)}

    def run_info(self):
        return {"colour": "red"}

    def score(self, prepared, candidates, state):
        user, item = prepared
        scores = self.score_query(user, None, candidates, state)
        self._advance(user, item, state)
        return scores

    def score_query(self, users, times, candidates, state):
        if candidates is None:
            candidates = torch.arange(self.items).expand(len(users), -1)
        query = self.mix(self.dropout(self.user[users] + 0.1))
        return torch.einsum("nd,ncd->nc", query, self.item[candidates]) + self._state_scores(users, candidates, state)

    def _state_scores(self, user, candidates, state):
        return torch.log1p(state["seen"][candidates]) + self.repeat * (candidates == state["last"][user][:, None])

    def _advance(self, user, item, state):
        state["seen"].index_add_(0, item, torch.ones_like(item, dtype=state["seen"].dtype))
        state["last"][user] = item


RECIPES = {"toy": ToyConfig(), "toy-wide": ToyConfig(dim=8)}
MODELS = {"toy": Entry(Toy, ToyConfig, RECIPES, training={"toy-wide": {"lr": 0.5}})}


def events(count=600, users=20, items=15, seed=0):
    """Returns users and items; 70 % of the events are of the user's favourite item, which can be learned."""
    rng = np.random.default_rng(seed)
    user = rng.integers(0, users, count)
    item = np.where(rng.random(count) < 0.7, user * 7 % items, rng.integers(0, items, count))
    return user, item


def log_in_memory(**shape):
    user, item = events(**shape)
    return EventLog.from_arrays(user, item, np.arange(len(user)), num_users=user.max() + 1, num_items=item.max() + 1)


def write_log(out: Path, features=0, **shape):
    user, item = events(**shape)
    with LogWriter(out) as writer:
        writer.column("user", np.int32).append(user)
        writer.column("item", np.int32).append(item)
        writer.column("time", np.float64).append(np.arange(len(user)))
        if features:
            writer.column("features", np.float32, features).append(np.ones((len(user), features)))
        writer.ids("user_ids", IdIndex.from_ids([f"user {k}" for k in range(user.max() + 1)]))
        writer.ids("item_ids", IdIndex.from_ids(range(100, 100 + item.max() + 1)))
        writer.column("item_categories", np.int32, 1).append(np.arange(item.max() + 1)[:, None] % 3)
        writer.ids("category_0_ids", IdIndex.from_ids(["red", "green", "blue"]))
        counts = {"events": len(user), "users": int(user.max()) + 1, "items": int(item.max()) + 1}
        writer.finish(**counts, item_features=["colour"], features=["f"] * features, split="0.7,0.1,0.2")
    return out


def register():
    """Makes the toy models the only ones; tests/conftest.py restores the registry after each test file."""
    use_only(MODELS)


def run_as_program():
    from dynedge.cli import main

    torch.set_num_threads(1)
    register()
    main()


if __name__ == "__main__":
    run_as_program()
