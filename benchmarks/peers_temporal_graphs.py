"""JODIE and TGAT beside PyTorch Geometric's memory networks: the same training events, candidates, loss and ranks.

    pip install --no-deps --target PEERS torch_geometric tqdm psutil xxhash pyparsing requests aiohttp …
    PYTHONPATH=PEERS python benchmarks/peers_temporal_graphs.py LOG --epochs 3

PyTorch Geometric has TGN (Rossi et al. 2020): `memory`, its TGNMemory alone, with JODIE's projection to the time
asked, is the JODIE-style model of its field; `attention`, with a TransformerConv over each entity's last ten
neighbours as in its examples/tgn.py, is what stands nearest to TGAT. Both are its own modules with its own defaults.
They are asked as ours are: what a user wants is a linear layer of its embedding, a candidate is its embedding and a
vector and bias of its id, and the loss is cross-entropy over all items. Its memory takes events in batches of 200, as
in its example, and is stale within one. Ranked are the same validation events, after each batch it is moved on.

No maintained package ranks all items with the others: GCMC is an example script of DGL's, CTDNE is in StellarGraph
(last released in 2020), dynAERNN in its authors' DynamicGEM, and DeepCoevolve in its authors' code only.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine_info import describe_machine
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import TGNMemory, TransformerConv
from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator, LastNeighborLoader

from dynedge.config import override
from dynedge.data.log import EventLog, read_log
from dynedge.evaluation.metrics import mean
from dynedge.ops.ranks import ranks
from dynedge.runs.run_config import build_model, recipe_config
from dynedge.training.loop import fit

DIM, TIMES, NEIGHBOURS, AT_ONCE = 64, 64, 10, 200
PEERS = {"jodie": "memory", "tgat": "attention"}


class Peer(nn.Module):
    """Entities are users, then items."""

    def __init__(self, kind: str, users: int, items: int) -> None:
        super().__init__()
        self.kind, self.users, self.items, everyone = kind, users, items, users + items
        self.memory = TGNMemory(everyone, 1, DIM, TIMES, IdentityMessage(1, DIM, TIMES), LastAggregator())
        self.near = LastNeighborLoader(everyone, NEIGHBOURS)
        self.conv = TransformerConv(DIM, DIM // 2, heads=2, dropout=0.1, edge_dim=TIMES)
        self.ahead, self.wants = nn.Parameter(torch.zeros(DIM)), nn.Linear(DIM, 2 * DIM)
        self.static, self.bias = nn.Parameter(torch.zeros(items, DIM)), nn.Parameter(torch.zeros(items))
        self.place = torch.empty(everyone, dtype=torch.long)

    def begin(self) -> None:
        self.memory.reset_state()
        self.near.reset_state()
        self.times = torch.zeros(0, dtype=torch.long)  # of the events so far

    def _embedded(self, entities: Tensor) -> tuple[Tensor, Tensor]:
        """(vectors, the times of their last events)"""
        if self.kind == "memory":
            found: tuple[Tensor, Tensor] = self.memory(entities)
            return found
        near, edges, events = self.near(entities)
        self.place[near] = torch.arange(len(near))
        vectors, last = self.memory(near)
        since = self.memory.time_enc((last[edges[0]] - self.times[events]).to(vectors))
        vectors = self.conv(vectors, edges, since)
        return vectors[self.place[entities]], last[self.place[entities]]

    def scores(self, user: Tensor, time: Tensor) -> Tensor:
        """[n, I]: all of a batch from what was before it."""
        distinct, where = user.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        asked = torch.cat([distinct, self.users + torch.arange(self.items)])
        vectors, last = self._embedded(asked)
        mine, items = vectors[: len(distinct)][where], vectors[len(distinct) :]
        if self.kind == "memory":
            since = torch.log1p((time - last[: len(distinct)][where]).clamp_min(0).to(mine))[:, None] / 10
            mine = (1 + self.ahead * since) * mine
        wanted = self.wants(mine)
        return wanted[:, :DIM] @ items.T + wanted[:, DIM:] @ self.static.T + self.bias

    def move(self, user: Tensor, item: Tensor, time: Tensor) -> None:
        self.memory.update_state(user, self.users + item, time, torch.zeros(len(user), 1))
        self.near.insert(user, self.users + item)
        self.times = torch.cat([self.times, time])


def walk(model: Peer, log: EventLog, events: range, optimiser: Any = None) -> list[Any]:
    """Batch after batch: learn, or rank; then move on."""
    found = []
    for start in range(events.start, events.stop, AT_ONCE):
        some = slice(start, min(start + AT_ONCE, events.stop))
        user, item = (torch.from_numpy(np.array(ids[some])).long() for ids in (log.user, log.item))
        time = torch.from_numpy(np.array(log.time[some])).long()
        with torch.set_grad_enabled(optimiser is not None):
            scores = model.scores(user, time)
            if optimiser is None:
                found.append(ranks(scores, item))
            else:
                optimiser.zero_grad()
                F.cross_entropy(scores, item).backward()
                optimiser.step()
            model.move(user, item, time)
        model.memory.detach()
    return found


def theirs(kind: str, log: EventLog, train: range, valid: range, args: argparse.Namespace) -> dict[str, float]:
    torch.manual_seed(args.seed)
    model = Peer(kind, log.num_users, log.num_items)
    optimiser = torch.optim.Adam(model.parameters(), args.peer_lr)
    history = []
    for epoch in range(args.epochs):
        model.begin()
        began = time.process_time()
        walk(model.train(), log, train, optimiser)
        seconds = time.process_time() - began
        found = np.concatenate(walk(model.eval(), log, valid))
        kept = {"valid_mrr": mean("mrr", found), "valid_recall@10": mean("recall@10", found), "seconds": seconds}
        history.append(kept | {"epoch": epoch + 1})
    return max(history, key=lambda record: record["valid_mrr"])


def ours(name: str, log: EventLog, args: argparse.Namespace) -> dict[str, float]:
    told = {"epochs": args.epochs, "validation_events": args.validation_events, "seed": args.seed, "device": "cpu"}
    config = override(recipe_config(name), [*(f"training.{key}={value}" for key, value in told.items()), *args.set])
    began = time.process_time()
    history = fit(build_model(config, log), log, config.training).history
    best = dict(max(history, key=lambda record: record["valid_mrr"]))
    return best | {"seconds": (time.process_time() - began) / len(history)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--models", default=",".join(PEERS))
    parser.add_argument("--who", default="ours,theirs")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--validation-events", type=int, default=10_000)
    parser.add_argument("--peer-lr", type=float, default=1e-3)
    parser.add_argument("--set", action="append", default=[], help="of ours, as model.dim=32")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    log = read_log(args.log)
    parts = log.split.ranges(len(log))
    train, valid = parts["train"], parts["valid"][: args.validation_events]
    print(f"{describe_machine()}; torch {torch.__version__}; {args.log.name}: {len(log)} events")
    print("| | valid MRR | Recall@10 | best epoch | CPU s/epoch |\n|---|---|---|---|---|")
    for name in args.models.split(","):
        for who in args.who.split(","):
            best = ours(name, log, args) if who == "ours" else theirs(PEERS[name], log, train, valid, args)
            shown = name if who == "ours" else f"{PEERS[name]} (PyTorch Geometric)"
            cells = f"{best['valid_mrr']:.4f} | {best['valid_recall@10']:.4f} | {best['epoch']}"
            print(f"| {shown} | {cells} | {best['seconds']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
