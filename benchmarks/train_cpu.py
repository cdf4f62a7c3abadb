"""Training speed on a CPU, in events per second and by phase: plan, forward and loss, backward, optimizer.

    python benchmarks/train_cpu.py            # compared with a level-by-level loop in plain torch
    python benchmarks/train_cpu.py --peers    # and with PyG's TGN at batch size 200 (extra `peers`)

All systems train on the same events in one process, alternating, --repeats times; the fastest measurement of each
counts, since other load on the machine only ever slows one down. The model is that of paper_setting.py without
active entities and d-nodes (exact states, ten negatives per chunk), the setting with the longest paths. The
level-by-level loop is the same model with the reference implementations of ops/ for all operators. Small windows run
on one thread, as in `dynedge train`; TGN runs on one thread or on all, whichever is faster. Logs are read from --data
if available, else generated.
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
from load_log import DATA, DATA_HELP, load_log
from machine_info import describe_machine
from paper_setting import PAPER
from torch.nn import functional as F

from dynedge.data.log import EventLog
from dynedge.models.base import Step
from dynedge.models.edge.config import RecurrenceConfig
from dynedge.models.edge.recurrence import Recurrence
from dynedge.ops import adam, gather_linear, level_gru, read_states, sampled_softmax
from dynedge.training.loop import threads_for
from dynedge.training.optimizer import Adam

MAX_WINDOW_EVENTS = 20_000  # with larger windows the level-by-level loop would take minutes
PHASES = "plan", "forward and loss", "backward", "optimizer"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help=DATA_HELP)
    parser.add_argument("--logs", default="wikipedia,ml-100k,globo", help="Names of logs, separated by commas.")
    parser.add_argument("--events", type=int, default=6000, help="Minimum number of events per measurement.")
    parser.add_argument("--repeats", type=int, default=5, help="Number of measurements of each system.")
    parser.add_argument("--windows", default="300,30", help="Numbers of windows per epoch, separated by commas.")
    parser.add_argument("--dim", type=int, default=64, help="Width of states.")
    parser.add_argument("--peers", action="store_true", help="Comparison with PyG's TGN.")
    args = parser.parse_args()
    print(
        f"{describe_machine()}; torch {torch.__version__}, {torch.get_num_threads()} threads, float32, d = {args.dim}"
    )
    with tempfile.TemporaryDirectory(prefix="train-") as folder:
        for name in args.logs.split(","):
            log = load_log(name, Path(folder), args.data)
            for count in map(int, args.windows.split(",")):
                if len(log) < MAX_WINDOW_EVENTS * count:
                    compare(name, log, count, args)


def compare(log_name: str, log: EventLog, count: int, args: argparse.Namespace) -> None:
    config = replace(PAPER, active_users=None, active_items=None, dnodes=None, dim=args.dim, windows=count)
    systems: dict[str, Callable[[], Timing]] = {
        "dynedge": Trainer(config, log, args.events).measure,
        "level by level": Trainer(config, log, args.events, plain=True).measure,
    }
    if args.peers:
        peer = TGN(log, args.events, args.dim)
        systems["PyG TGN, batch 200"] = lambda: max(
            (peer.measure(threads) for threads in {1, torch.get_num_threads()}), key=lambda timing: timing.rate
        )
    best: dict[str, Timing] = {}
    for _ in range(args.repeats):
        for name, measure in systems.items():
            timing = measure()
            if name not in best or timing.rate > best[name].rate:
                best[name] = timing
    width = best["dynedge"].rows / max(best["dynedge"].levels, 1)
    print(f"\n{log_name}, {count} windows: {width:.1f} states per level on average")
    for name, timing in best.items():
        ratio = f"  dynedge is {best['dynedge'].rate / timing.rate:.1f} times as fast" if name != "dynedge" else ""
        print(f"  {name:20} {timing.rate:10,.0f} events/s{ratio}")
    for name in ("dynedge", "level by level"):
        phases = best[name].phases
        shown = ", ".join(f"{phase} {1e6 * phases[phase] / best[name].events:.1f}" for phase in PHASES)
        print(f"  {name}, µs per event: {shown}")


class Timing:
    """Seconds by phase of training on some windows, and the windows' sizes."""

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
    """Trains dynedge on some windows from the middle of the log."""

    def __init__(self, config: RecurrenceConfig, log: EventLog, events: int, *, plain: bool = False) -> None:
        self.plain, self.log, self.train_end = plain, log, log.split.bounds(len(log))[0]
        self.model = Recurrence.create(config, log, self.train_end, seed=0)
        self.optimizer = Adam(self.model.named_parameters(), 1e-3, 1e-2)
        self.count = -(-events * config.windows // self.train_end)
        self.first = config.windows // 2
        self.windows = self.model.training_windows(self.train_end)

    def measure(self) -> Timing:
        timing, state = Timing(), self.model.start()
        with reference_operators() if self.plain else nullcontext(), threads_for(self.windows):
            # The first window is a warm-up and not counted.
            batches = islice(self.model.batches(self.log, self.windows, self.first - 1), self.count + 1)
            for number in range(self.count + 1):
                if number == 1:
                    timing = Timing()
                with timing.time("plan"):
                    batch = next(batches)
                with timing.time("forward and loss"):
                    loss = self.model.loss(batch, state, Step(0, 0, number))
                with timing.time("backward"):
                    self.optimizer.zero_grad()
                    loss.total.backward()
                with timing.time("optimizer"):
                    self.optimizer.clip(1.0)
                    self.optimizer.step()
                timing.events += len(batch.window)
                timing.levels += batch.schedule.depth
                timing.rows += len(batch.schedule.event)
        return timing


@contextmanager
def reference_operators() -> Iterator[None]:
    """Replaces all operators by their reference implementations in plain torch."""
    tables = (
        adam.DENSE_BY_DEVICE,
        adam.ROWS_BY_DEVICE,
        adam.SQUARES_BY_DEVICE,
        adam.COALESCE_BY_DEVICE,
        read_states.BY_DEVICE,
        sampled_softmax.BY_DEVICE,
        gather_linear.LINEAR_BY_DEVICE,
        gather_linear.ROWS_BY_DEVICE,
    )
    with ExitStack() as stack:
        for by_device in tables:
            stack.enter_context(patch.dict(by_device, clear=True))
        stack.enter_context(patch.dict(level_gru.BY_DEVICE, cpu=level_gru.reference.level_gru))
        yield


class TGN:
    """PyG's TGN: memory, attention over the last ten neighbours, one negative per event, batches of 200 events."""

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
        self.row = torch.empty(nodes, dtype=torch.long)  # of each node in the batch's memory
        modules = nn.ModuleList([self.memory, self.attention, self.score])
        self.optimizer = torch.optim.Adam(modules.parameters(), lr=1e-4)

    def measure(self, threads: int) -> Timing:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return self._measure()
        finally:
            torch.set_num_threads(before)

    def _measure(self) -> Timing:
        timing = Timing()
        self.memory.train()
        self.memory.reset_state()
        self.neighbours.reset_state()
        for start in range(0, len(self.source), self.BATCH):
            with timing.time("forward and loss"):
                self._step(slice(start, start + self.BATCH))
            timing.events += self.BATCH
        return timing

    def _step(self, batch: slice) -> None:
        source, target, times = self.source[batch], self.target[batch], self.times[batch]
        negative = torch.randint(self.users, self.users + self.items, target.shape)
        nodes, edges, ids = self.neighbours(torch.cat([source, target, negative]).unique())
        self.row[nodes] = torch.arange(len(nodes))
        memory, updated = self.memory(nodes)
        age = (updated[edges[0]] - self.times[ids]).to(memory.dtype)
        edge_features = torch.cat([self.memory.time_enc(age), self.message[ids]], 1)
        vectors = self.attention(memory, edges, edge_features)
        users = vectors[self.row[source]]
        positive_score, negative_score = (self.score(users, vectors[self.row[items]]) for items in (target, negative))
        loss = F.softplus(-positive_score).mean() + F.softplus(negative_score).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.memory.update_state(source, target, times, self.message[batch])
        self.neighbours.insert(source, target)
        self.memory.detach()


if __name__ == "__main__":
    main()
