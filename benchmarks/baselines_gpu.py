"""Training speed and memory of the paper's baselines on a large log on one GPU.

    python benchmarks/baselines_gpu.py --log ml-25m-like --seconds 30
    PYTHONPATH=PEERS python benchmarks/baselines_gpu.py --models gru4rec,sasrec --recbole

The log is generated on this machine. Each model trains for --seconds as in `dynedge train`; the first tenth is a
warm-up, and the time of an epoch is extrapolated from the rest. Models that do not fit are shown as "out of memory".
--recbole trains RecBole's models of the same names too, after each of ours (peers_sequential.py says what PEERS
has): its own loss and defaults (batches of 2,048 events, histories of 50 items, a softmax over all items; and with
BPR, one negative per event), in the same precision. Their batches are made on the GPU, so that RecBole's own loader
costs them nothing.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from gpu import print_kernels
from machine_info import describe_machine, peak_memory_mib

from dynedge.data.log import EventLog
from dynedge.data.synthetic import synthesize
from dynedge.models.base import Step
from dynedge.models.baselines.dynamic.coevolving_rnn import CoevolvingRNN
from dynedge.models.baselines.sequential.base import oldest_first
from dynedge.runs.run_config import build_model, recipe_config, resolve_config
from dynedge.training.optimizer import Adam
from dynedge.training.step import TrainingStep

NAMES = "sum-pooling,gru4rec,sasrec,dien,mimn,gcmc,gcmc-sage,gcmc-gat,tgat,dynaernn,jodie,deepcoevolve"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", default="ml-25m-like", help="Recipe of the log.")
    parser.add_argument("--events", type=int, default=None, help="Number of events of the log; default: full size.")
    parser.add_argument("--models", default=NAMES, help="Names of models, separated by commas.")
    parser.add_argument("--seconds", type=float, default=30.0, help="Seconds of training per model.")
    parser.add_argument("--kernels", type=int, default=0, help="Number of kernels of a step to list, by GPU time.")
    parser.add_argument("--plain-levels", action="store_true", help="JODIE and DeepCoevolve level by level in torch.")
    parser.add_argument("--recbole", action="store_true", help="Comparison with RecBole's GRU4Rec and SASRec.")
    args = parser.parse_args()
    CoevolvingRNN.has_level_kernels = not args.plain_levels
    print(f"{torch.cuda.get_device_name()}, {describe_machine()}; torch {torch.__version__}, bfloat16")
    with tempfile.TemporaryDirectory(prefix="baselines-gpu-") as folder:
        log = synthesize(args.log, Path(folder) / "log", events=args.events, quiet=True)
        train_end = log.split.bounds(len(log))[0]
        print(f"{args.log}: {len(log):,} events, {train_end:,} of them for training\n")
        print("| model | events/s | min/epoch | GPU GiB | host GiB |\n|---|---|---|---|---|", flush=True)
        for name in args.models.split(","):
            try:
                rate = events_per_second(name, log, train_end, args.seconds, args.kernels)
                cells = f"{rate:,.0f} | {train_end / rate / 60:.1f}"
            except torch.OutOfMemoryError:
                cells = "out of memory | "
            memory = f"{torch.cuda.max_memory_reserved() / 2**30:.1f} | {peak_memory_mib() / 1024:.1f}"
            print(f"| {name} | {cells} | {memory} |", flush=True)
            if args.recbole:
                print_recbole(name, log, train_end, args.seconds)


def events_per_second(name: str, log: EventLog, train_end: int, seconds: float, kernels: int) -> float:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    config = recipe_config(name)
    config = resolve_config(replace(config, training=replace(config.training, device="cuda")), log)
    model = build_model(config, log).train()
    step = TrainingStep(
        model, Adam(model.named_parameters(), config.training.lr, config.training.row_lr), config.training
    )
    state, count, began, warm = model.start(), model.num_windows(train_end), time.perf_counter(), (0.0, 0)
    pending: torch.Tensor | None = None
    for window, batch in enumerate(model.batches(log, model.training_windows(train_end))):
        loss, _ = step.run(batch, state, Step(0, 0, window))
        model.after_step(batch, state)
        if pending is not None:
            float(pending)  # waits for the GPU, one step late as training does
        pending = loss.total
        now = time.perf_counter()
        if not warm[1] and now - began > seconds / 10:
            warm = now, window
        if now - began > seconds and window > warm[1]:
            break
    if kernels:
        print_kernels(lambda: step._run(lambda: model.loss(batch, state, Step(0, 0, window))), kernels)
    return (window - warm[1]) * train_end / count / (time.perf_counter() - (warm[0] or began))


def print_recbole(kind: str, log: EventLog, train_end: int, seconds: float) -> None:
    """Prints a row for each loss of a RecBole model, with its usual length of history and with ours."""
    ours = recipe_config(kind).model.history_length
    for loss, length in (("CE", 50), ("CE", ours), ("BPR", ours)):
        rate = recbole_events_per_second(kind, log, train_end, seconds, loss, length)
        name = f"{kind} (RecBole, {loss}, histories of {length})"
        print(f"| {name} | {rate:,.0f} | {train_end / rate / 60:.1f} | | |", flush=True)


def recbole_events_per_second(
    kind: str, log: EventLog, train_end: int, seconds: float, loss_type: str, length: int, size: int = 2048
) -> float:
    from peers_sequential import recbole_model

    torch.manual_seed(0)
    model = recbole_model(kind, log.num_items, length, "cuda", loss_type=loss_type).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = Histories(log, train_end, length)
    steps, began, warm = 0, time.perf_counter(), (0.0, 0)
    while True:
        batch = batches.random(size)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model.calculate_loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        if steps % 10 == 0:
            torch.cuda.synchronize()
            now = time.perf_counter()
            if now - began > seconds:
                return (steps - warm[1]) * size / (now - warm[0])
            if not warm[1] and now - began > seconds / 10:
                warm = now, steps


class Histories:
    """Random training events with their users' histories, oldest first and padded by 0, as RecBole numbers items."""

    def __init__(self, log: EventLog, train_end: int, length: int) -> None:
        user, item = np.array(log.user[:train_end]), np.array(log.item[:train_end])
        order = np.argsort(user, kind="stable")
        starts = np.searchsorted(user[order], user[order])
        self.item = torch.from_numpy(item[order].astype(np.int64) + 1).cuda()
        self.before = torch.from_numpy(np.arange(train_end) - starts).cuda()  # events of the same user
        self.usable = torch.from_numpy(np.flatnonzero(np.arange(train_end) > starts)).cuda()
        self.items, self.ages = log.num_items, torch.arange(length, device="cuda")

    def random(self, size: int) -> dict[str, torch.Tensor]:
        event = self.usable[torch.randint(len(self.usable), (size,), device="cuda")]
        mask = self.ages < self.before[event, None]
        newest_first = self.item[(event[:, None] - 1 - self.ages).clamp_min(0)] * mask
        history, length = oldest_first(newest_first, mask)
        negative = torch.randint(1, self.items + 1, (size,), device="cuda")
        return {"item_list": history, "length": length, "item": self.item[event], "neg_item": negative}


if __name__ == "__main__":
    main()
