"""Training speed on a GPU of PyG's TGN and of a JODIE-style model built from PyG's modules, for `gpu.py --peers`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from train_cpu import TGN

from dynedge.data.log import EventLog


class Jodie(TGN):
    """JODIE-style model: a memory updated by a GRU and projected by the elapsed time; no neighbours."""

    def __init__(self, log: EventLog, events: int, dim: int) -> None:
        super().__init__(log, events, dim)
        self.project = nn.Linear(1, dim)
        modules = nn.ModuleList([self.memory, self.project, self.score])
        self.optimizer = torch.optim.Adam(modules.parameters(), lr=1e-4)

    def _step(self, batch: slice) -> None:
        source, target, times = self.source[batch], self.target[batch], self.times[batch]
        negative = torch.randint(self.users, self.users + self.items, target.shape)
        nodes, row = torch.cat([source, target, negative]).unique(return_inverse=True)
        memory, updated = self.memory(nodes)
        users, positives, negatives = row.view(3, -1)
        elapsed = (times - updated[users]).to(memory.dtype)[:, None]
        query = memory[users] * (1 + self.project(elapsed))
        positive_score, negative_score = (self.score(query, memory[items]) for items in (positives, negatives))
        loss = F.softplus(-positive_score).mean() + F.softplus(negative_score).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.memory.update_state(source, target, times, self.message[batch])
        self.memory.detach()


def rates(log: EventLog, dim: int, events: int = 10_000) -> dict[str, float]:
    """Returns the events per second of each model at batch sizes 200 and 2,000, after a warm-up."""
    rate = {}
    for kind in (TGN, Jodie):
        for size in (200, 2000):
            with torch.device("cuda"):
                peer = type(kind.__name__, (kind,), {"BATCH": size})(log, events * size // 200, dim)
                for name in ("source", "target", "times"):
                    setattr(peer, name, getattr(peer, name).cuda())
                peer.measure(torch.get_num_threads())
                torch.cuda.synchronize()
                rate[f"{kind.__name__}, batch {size}"] = peer.measure(torch.get_num_threads()).rate
    return rate
