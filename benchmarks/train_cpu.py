"""How fast a training step is on a CPU: plan, forward, loss, backward, optimiser; and beside what.

    python benchmarks/train_cpu.py            # beside a plain level-by-level loop in torch
    python benchmarks/train_cpu.py --peers    # and beside PyG's TGN at batch 200 (extra `peers`)

All run the same events of the same log in one process, in turns, several times; the best turn of each counts, since
what else the machine does only ever slows one down. The model is `edge-paper` without active entities and d-nodes
(states exact, ten negatives a chunk): the deepest setting. The plain loop is the same model and the same step with
the references of ops/, plain torch, in place of all operators. Small windows run on one thread, as `train` does it;
TGN on one thread or all, whichever is faster. Logs are read from --data, else made.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import torch
from machine_info import machine

from dynedge.data.ingest.pipeline import prepare
from dynedge.data.ingest.schema import Schema
from dynedge.data.log import EventLog
from dynedge.data.synthetic import synthesize
from dynedge.data.windows import cut_windows
from dynedge.models.base import Step
from dynedge.models.edge.config import PAPER, RecurrenceConfig
from dynedge.models.edge.recurrence import Recurrence
from dynedge.ops import adam, gather_linear, level_gru, read_states, sampled_softmax
from dynedge.training.loop import threads_for
from dynedge.training.optimizer import Adam

DATA = Path(__file__).parents[2] / "shared" / "data"
LARGEST = 20_000  # events of a window
PHASES = "plan", "forward and loss", "backward", "optimiser"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="a folder of NAME.parquet with user, item, timestamp")
    parser.add_argument("--logs", default="wikipedia,ml-100k,globo")
    parser.add_argument("--events", type=int, default=6000, help="events of one turn, at least")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument(
        "--windows", default="300,30", help="numbers of windows an epoch is cut into, one after the other"
    )
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--peers", action="store_true")
    args = parser.parse_args()
    print(f"{machine()}; torch {torch.__version__}, {torch.get_num_threads()} threads, float32, d = {args.dim}")
    with tempfile.TemporaryDirectory(prefix="train-") as folder:
        for name in args.logs.split(","):
            log = load(name, args.data, Path(folder))
            for count in map(int, args.windows.split(",")):
                if len(log) < LARGEST * count:  # larger ones would keep the plain loop busy for minutes
                    compare(name, log, count, args)


def load(name: str, data: Path, folder: Path) -> EventLog:
    if (data / f"{name}.parquet").exists():
        schema = Schema(user="user", item="item")
        return prepare(data / f"{name}.parquet", folder / name, schema)
    return synthesize("lastfm-like", folder / name, events=200_000)


def compare(name: str, log: EventLog, count: int, args: argparse.Namespace) -> None:
    config = replace(PAPER, active_users=None, active_items=None, dnodes=None, dim=args.dim, windows=count)
    runs: dict[str, Callable[[], Turn]] = {
        "dynedge": Trainer(config, log, args.events).turn,
        "level by level": Trainer(config, log, args.events, plain=True).turn,
    }
    if args.peers:
        peer = TGN(log, args.events, args.dim)
        runs["PyG TGN, batch 200"] = lambda: max(
            (peer.turn(threads) for threads in {1, torch.get_num_threads()}), key=lambda turn: turn.rate
        )
    best: dict[str, Turn] = {}
    for _ in range(args.turns):
        for who, turn in runs.items():
            one = turn()
            if who not in best or one.rate > best[who].rate:
                best[who] = one
    width = best["dynedge"].rows / max(best["dynedge"].levels, 1)
    print(f"\n{name}, {count} windows: {width:.1f} states a level on the mean")
    for who, turn in best.items():
        beside = f"  dynedge is {best['dynedge'].rate / turn.rate:.1f} times as fast" if who != "dynedge" else ""
        print(f"  {who:20} {turn.rate:10,.0f} events/s{beside}")
    for who in ("dynedge", "level by level"):
        parts = best[who].phases
        shown = ", ".join(f"{phase} {1e6 * parts[phase] / best[who].events:.1f}" for phase in PHASES)
        print(f"  {who}, µs an event: {shown}")


class Turn:
    """A few windows, timed by phase."""

    def __init__(self) -> None:
        self.events = self.levels = self.rows = 0
        self.phases = dict.fromkeys(PHASES, 0.0)

    @property
    def rate(self) -> float:
        return self.events / sum(self.phases.values())

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.phases[phase] += time.perf_counter() - start


class Trainer:
    """The training step of this project, from the middle of the log on."""

    def __init__(self, config: RecurrenceConfig, log: EventLog, events: int, *, plain: bool = False) -> None:
        self.plain, self.log, self.train_end = plain, log, log.split.bounds(len(log))[0]
        self.model = Recurrence.create(config, log, self.train_end, seed=0)
        self.optimiser = Adam(self.model.named_parameters(), 1e-3, 1e-2)
        self.count = -(-events * config.windows // self.train_end)
        self.first = config.windows // 2
        self.cuts = cut_windows(self.train_end, config.windows)

    def turn(self) -> Turn:
        turn, state = Turn(), self.model.start()
        with plain_operators() if self.plain else nullcontext(), threads_for(self.cuts):
            # A window more than is counted: whatever is slow once is slow in the first.
            prepared = islice(
                self.model.batches(self.log, self.model.training_windows(self.train_end), self.first - 1),
                self.count + 1,
            )
            for number in range(self.count + 1):
                if number == 1:
                    turn = Turn()
                with turn.time("plan"):
                    window = next(prepared)
                with turn.time("forward and loss"):
                    loss = self.model.loss(window, state, Step(0, 0, number))
                with turn.time("backward"):
                    self.optimiser.zero_grad()
                    loss.total.backward()
                with turn.time("optimiser"):
                    self.optimiser.clip(1.0)
                    self.optimiser.step()
                turn.events += len(window.window)
                turn.levels += window.schedule.depth
                turn.rows += len(window.schedule.event)
        return turn


@contextmanager
def plain_operators() -> Iterator[None]:
    """The references, plain torch, in place of all operators."""
    fast = (
        adam.DENSE_BY_DEVICE,
        adam.ROWS_BY_DEVICE,
        adam.SQUARES_BY_DEVICE,
        adam.COALESCE_BY_DEVICE,
        read_states.BY_DEVICE,
        sampled_softmax.BY_DEVICE,
    )
    with ExitStack() as stack:
        for by_device in (*fast, gather_linear.LINEAR_BY_DEVICE, gather_linear.ROWS_BY_DEVICE):
            stack.enter_context(patch.dict(by_device, clear=True))
        stack.enter_context(patch.dict(level_gru.BY_DEVICE, cpu=level_gru.reference.level_gru))
        yield


class TGN:
    """PyG's temporal graph network: memory, attention over the ten last neighbours, one negative, batches of 200."""

    BATCH = 200

    def __init__(self, log: EventLog, events: int, dim: int) -> None:
        from torch import nn
        from torch_geometric.nn import TGNMemory, TransformerConv
        from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator, LastNeighborLoader

        middle = log.split.bounds(len(log))[0] // 2
        span = slice(middle, middle + -(-events // self.BATCH) * self.BATCH)
        self.source = torch.from_numpy(log.user[span].astype("int64"))
        self.target = torch.from_numpy(log.item[span].astype("int64")) + log.num_users
        self.times = torch.from_numpy((log.time[span] - log.time[0]).astype("int64"))
        self.items, self.users = log.num_items, log.num_users
        nodes = log.num_users + log.num_items
        self.message = torch.zeros(len(self.source), 1)
        self.memory = TGNMemory(nodes, 1, dim, dim, IdentityMessage(1, dim, dim), LastAggregator())
        self.attention = TransformerConv(dim, dim // 2, heads=2, dropout=0.1, edge_dim=dim + 1)
        self.score = nn.Bilinear(dim, dim, 1)
        self.neighbours = LastNeighborLoader(nodes, size=10)
        self.place = torch.empty(nodes, dtype=torch.long)
        modules = nn.ModuleList([self.memory, self.attention, self.score])
        self.optimiser = torch.optim.Adam(modules.parameters(), lr=1e-4)

    def turn(self, threads: int) -> Turn:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return self._turn()
        finally:
            torch.set_num_threads(before)

    def _turn(self) -> Turn:
        turn = Turn()
        self.memory.train()
        self.memory.reset_state()
        self.neighbours.reset_state()
        for start in range(0, len(self.source), self.BATCH):
            with turn.time("forward and loss"):
                self._step(slice(start, start + self.BATCH))
            turn.events += self.BATCH
        return turn

    def _step(self, batch: slice) -> None:
        source, target, times = self.source[batch], self.target[batch], self.times[batch]
        wrong = torch.randint(self.users, self.users + self.items, target.shape)
        asked = torch.cat([source, target, wrong]).unique()
        asked, edges, ids = self.neighbours(asked)
        self.place[asked] = torch.arange(len(asked))
        memory, updated = self.memory(asked)
        age = (updated[edges[0]] - self.times[ids]).to(memory.dtype)
        described = torch.cat([self.memory.time_enc(age), self.message[ids]], 1)
        found = self.attention(memory, edges, described)
        users = found[self.place[source]]
        right, other = (self.score(users, found[self.place[items]]) for items in (target, wrong))
        loss = torch.nn.functional.softplus(-right).mean() + torch.nn.functional.softplus(other).mean()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.memory.update_state(source, target, times, self.message[batch])
        self.neighbours.insert(source, target)
        self.memory.detach()


if __name__ == "__main__":
    main()
