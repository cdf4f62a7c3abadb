"""PyG's TGN, and a memory as in JODIE made of PyG's parts, on a GPU: what `gpu.py --peers` sets beside dynedge."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from train_cpu import TGN

from dynedge.data.log import EventLog


class Jodie(TGN):
    """JODIE's shape: a memory moved by a GRU, projected by the time that has gone by; no neighbours."""

    def __init__(self, log: EventLog, events: int, dim: int) -> None:
        super().__init__(log, events, dim)
        self.project = nn.Linear(1, dim)
        modules = nn.ModuleList([self.memory, self.project, self.score])
        self.optimiser = torch.optim.Adam(modules.parameters(), lr=1e-4)

    def _step(self, batch: slice) -> None:
        source, target, times = self.source[batch], self.target[batch], self.times[batch]
        wrong = torch.randint(self.users, self.users + self.items, target.shape)
        asked, place = torch.cat([source, target, wrong]).unique(return_inverse=True)
        memory, updated = self.memory(asked)
        users, right, other = place.view(3, -1)
        gone = (times - updated[users]).to(memory.dtype)[:, None]
        wanted = memory[users] * (1 + self.project(gone))
        good, bad = (self.score(wanted, memory[items]) for items in (right, other))
        loss = F.softplus(-good).mean() + F.softplus(bad).mean()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.memory.update_state(source, target, times, self.message[batch])
        self.memory.detach()


def rates(log: EventLog, dim: int, events: int = 10_000) -> dict[str, float]:
    """Events a second of each, in batches of 200 and of 2,000; a first turn is not counted."""
    found = {}
    for kind in (TGN, Jodie):
        for size in (200, 2000):
            with torch.device("cuda"):
                peer = type(kind.__name__, (kind,), {"BATCH": size})(log, events * size // 200, dim)
                for name in ("source", "target", "times"):
                    setattr(peer, name, getattr(peer, name).cuda())
                peer.turn(torch.get_num_threads())
                torch.cuda.synchronize()
                found[f"{kind.__name__}, batch {size}"] = peer.turn(torch.get_num_threads()).rate
    return found
