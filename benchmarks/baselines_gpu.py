"""How fast the paper's other systems train on a large log on one GPU, and how much of its memory they take.

    python benchmarks/baselines_gpu.py --log ml-25m-like --seconds 30

The log is made on this machine. Each model takes training steps for so many seconds after the first tenth of them, as
it would with `dynedge train`; the epoch's time is what that comes to. Want of memory is told as -oom-.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from machine_info import machine, peak_mib

from dynedge.data.log import EventLog
from dynedge.data.synthetic import synthesize
from dynedge.models.base import Step
from dynedge.runs.run_config import build_model, recipe_config, resolve_config
from dynedge.training.optimizer import Adam
from dynedge.training.step import TrainingStep

NAMES = "sum-pooling,gru4rec,sasrec,dien,mimn,gcmc,gcmc-sage,gcmc-gat,tgat,dynaernn"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", default="ml-25m-like")
    parser.add_argument("--events", type=int, default=None, help="a log of so many events instead of a full one")
    parser.add_argument("--models", default=NAMES)
    parser.add_argument("--seconds", type=float, default=30.0, help="for each model")
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, {machine()}; torch {torch.__version__}, bfloat16")
    with tempfile.TemporaryDirectory(prefix="thirteen-gpu-") as folder:
        log = synthesize(args.log, Path(folder) / "log", events=args.events, quiet=True)
        train_end = log.split.bounds(len(log))[0]
        print(f"{args.log}: {len(log):,} events, {train_end:,} of them for training\n")
        print("| model | events/s | an epoch, min | GPU GiB | host GiB |\n|---|---|---|---|---|", flush=True)
        for name in args.models.split(","):
            try:
                rate = events_a_second(name, log, train_end, args.seconds)
                told = f"{rate:,.0f} | {train_end / rate / 60:.1f}"
            except torch.OutOfMemoryError:
                told = "-oom- | "
            memory = f"{torch.cuda.max_memory_reserved() / 2**30:.1f} | {peak_mib() / 1024:.1f}"
            print(f"| {name} | {told} | {memory} |", flush=True)


def events_a_second(name: str, log: EventLog, train_end: int, seconds: float) -> float:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    config = recipe_config(name)
    config = resolve_config(replace(config, training=replace(config.training, device="cuda")), log)
    model = build_model(config, log).train()
    steps = TrainingStep(
        model, Adam(model.named_parameters(), config.training.lr, config.training.row_lr), config.training
    )
    state, count, began, warm = model.start(), model.num_windows(train_end), time.perf_counter(), (0.0, 0)
    for window, ready in enumerate(model.batches(log, model.training_windows(train_end))):
        loss, _ = steps.run(ready, state, Step(0, 0, window))
        model.after_step(ready, state)
        float(loss.total)  # as training reads it
        now = time.perf_counter()
        if not warm[1] and now - began > seconds / 10:
            warm = now, window
        if now - began > seconds and window > warm[1]:
            break
    return (window - warm[1]) * train_end / count / (time.perf_counter() - (warm[0] or began))


if __name__ == "__main__":
    main()
