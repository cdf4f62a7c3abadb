"""Compares JODIE, TGAT and TGN with PyTorch Geometric's TGN: same training events, candidates, loss and ranking.

    pip install --no-deps --target PEERS torch_geometric tqdm psutil xxhash pyparsing requests aiohttp …
    PYTHONPATH=PEERS python benchmarks/peers_temporal_graphs.py LOG --epochs 3

PyTorch Geometric has TGN (Rossi et al. 2020). `memory`, its TGNMemory alone with JODIE's projection to the query
time, is compared with JODIE; `attention`, with a TransformerConv over each entity's last ten neighbours as in its
examples/tgn.py, is compared with TGAT and TGN. Both use its modules with their defaults. Scores and loss are
dynedge's: the query vector is a linear layer of the user's embedding, a candidate has its embedding and a vector and
bias of its id, and the loss is cross-entropy over all items. The memory is updated in batches of 200 events, as in
the example, and is stale within a batch. The same validation events are ranked; the memory advances after each batch.

No maintained package ranks all items with the other baselines: GCMC is an example script of DGL, CTDNE is in
StellarGraph (last released in 2020), dynAERNN in its authors' DynamicGEM, and DeepCoevolve only in its authors' code.
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
from dynedge.ops.item_ranks import ranks
from dynedge.runs.run_config import build_model, recipe_config
from dynedge.training.loop import fit

DIM, TIME_DIM, NEIGHBOURS, BATCH_EVENTS = 64, 64, 10, 200
PEERS = {"jodie": "memory", "tgat": "attention", "tgn": "attention"}


class TGN(nn.Module):
    """TGN memory, optionally with attention over neighbours. Nodes are users, then items."""

    def __init__(self, kind: str, users: int, items: int) -> None:
        super().__init__()
        self.kind, self.users, self.items, nodes = kind, users, items, users + items
        self.memory = TGNMemory(nodes, 1, DIM, TIME_DIM, IdentityMessage(1, DIM, TIME_DIM), LastAggregator())
        self.neighbours = LastNeighborLoader(nodes, NEIGHBOURS)
        self.conv = TransformerConv(DIM, DIM // 2, heads=2, dropout=0.1, edge_dim=TIME_DIM)
        self.projection, self.head = nn.Parameter(torch.zeros(DIM)), nn.Linear(DIM, 2 * DIM)
        self.static, self.bias = nn.Parameter(torch.zeros(items, DIM)), nn.Parameter(torch.zeros(items))
        self.row = torch.empty(nodes, dtype=torch.long)

    def reset(self) -> None:
        """Forgets all events."""
        self.memory.reset_state()
        self.neighbours.reset_state()
        self.times = torch.zeros(0, dtype=torch.long)  # of all events so far

    def _embed(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the embeddings of nodes and the times of their last events."""
        if self.kind == "memory":
            memory, last = self.memory(nodes)
            return memory, last
        sampled, edges, events = self.neighbours(nodes)
        self.row[sampled] = torch.arange(len(sampled))
        vectors, last = self.memory(sampled)
        since = self.memory.time_enc((last[edges[0]] - self.times[events]).to(vectors))
        vectors = self.conv(vectors, edges, since)
        return vectors[self.row[nodes]], last[self.row[nodes]]

    def scores(self, user: Tensor, time: Tensor) -> Tensor:
        """[n, I]: scores of all items for each event of a batch, from the state before the batch."""
        distinct, row = user.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        vectors, last = self._embed(torch.cat([distinct, self.users + torch.arange(self.items)]))
        users, items = vectors[: len(distinct)][row], vectors[len(distinct) :]
        if self.kind == "memory":
            since = torch.log1p((time - last[: len(distinct)][row]).clamp_min(0).to(users))[:, None] / 10
            users = (1 + self.projection * since) * users
        query = self.head(users)
        return query[:, :DIM] @ items.T + query[:, DIM:] @ self.static.T + self.bias

    def observe(self, user: Tensor, item: Tensor, time: Tensor) -> None:
        self.memory.update_state(user, self.users + item, time, torch.zeros(len(user), 1))
        self.neighbours.insert(user, self.users + item)
        self.times = torch.cat([self.times, time])


def run_batches(model: TGN, log: EventLog, events: range, optimizer: Any = None) -> list[Any]:
    """Trains on the events if there is an optimizer, else returns their ranks; the memory advances by batches."""
    batch_ranks = []
    for start in range(events.start, events.stop, BATCH_EVENTS):
        batch = slice(start, min(start + BATCH_EVENTS, events.stop))
        user, item = (torch.from_numpy(np.array(ids[batch])).long() for ids in (log.user, log.item))
        time = torch.from_numpy(np.array(log.time[batch])).long()
        with torch.set_grad_enabled(optimizer is not None):
            scores = model.scores(user, time)
            if optimizer is None:
                batch_ranks.append(ranks(scores, item))
            else:
                optimizer.zero_grad()
                F.cross_entropy(scores, item).backward()
                optimizer.step()
            model.observe(user, item, time)
        model.memory.detach()
    return batch_ranks


def train_tgn(kind: str, log: EventLog, train: range, valid: range, args: argparse.Namespace) -> dict[str, float]:
    """Trains TGN; returns the record of its best epoch."""
    torch.manual_seed(args.seed)
    model = TGN(kind, log.num_users, log.num_items)
    optimizer = torch.optim.Adam(model.parameters(), args.peer_lr)
    history = []
    for epoch in range(args.epochs):
        model.reset()
        began = time.process_time()
        run_batches(model.train(), log, train, optimizer)
        seconds = time.process_time() - began
        valid_ranks = np.concatenate(run_batches(model.eval(), log, valid))
        record = {f"valid_{metric}": mean(metric, valid_ranks) or 0.0 for metric in ("mrr", "recall@10")}
        history.append({**record, "seconds": seconds, "epoch": epoch + 1})
    return max(history, key=lambda record: record["valid_mrr"])


def train_dynedge(name: str, log: EventLog, args: argparse.Namespace) -> dict[str, float]:
    """Trains a model of dynedge; returns the record of its best epoch."""
    settings = {
        "epochs": args.epochs,
        "validation_events": args.validation_events,
        "seed": args.seed,
        "device": "cpu",
    }
    config = override(
        recipe_config(name), [*(f"training.{key}={value}" for key, value in settings.items()), *args.set]
    )
    began = time.process_time()
    history = fit(build_model(config, log), log, config.training).history
    best = dict(max(history, key=lambda record: record["valid_mrr"]))
    return best | {"seconds": (time.process_time() - began) / len(history)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help="Log folder.")
    parser.add_argument("--models", default=",".join(PEERS), help="Models, separated by commas.")
    parser.add_argument("--systems", default="dynedge,pyg", help="Implementations: dynedge, pyg or both.")
    parser.add_argument("--epochs", type=int, default=3, help="Number of training epochs.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of training.")
    parser.add_argument("--validation-events", type=int, default=10_000, help="Number of events ranked.")
    parser.add_argument("--peer-lr", type=float, default=1e-3, help="Learning rate of TGN.")
    parser.add_argument(
        "--set", action="append", default=[], help="Setting of dynedge's models, such as model.dim=32."
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    log = read_log(args.log)
    parts = log.split.ranges(len(log))
    train, valid = parts["train"], parts["valid"][: args.validation_events]
    print(f"{describe_machine()}; torch {torch.__version__}; {args.log.name}: {len(log)} events")
    print("| | valid MRR | Recall@10 | best epoch | CPU s/epoch |\n|---|---|---|---|---|")
    for name in args.models.split(","):
        for system in args.systems.split(","):
            if system == "dynedge":
                shown, best = name, train_dynedge(name, log, args)
            else:
                shown = f"{PEERS[name]} (PyTorch Geometric)"
                best = train_tgn(PEERS[name], log, train, valid, args)
            cells = f"{best['valid_mrr']:.4f} | {best['valid_recall@10']:.4f} | {best['epoch']}"
            print(f"| {shown} | {cells} | {best['seconds']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
