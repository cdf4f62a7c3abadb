"""Training speed and memory of the paper's baselines on a large log on one GPU.

    python benchmarks/baselines_gpu.py --log ml-25m-like --seconds 30

The log is generated on this machine. Each model trains for --seconds as in `dynedge train`; the first tenth is a
warm-up, and the time of an epoch is extrapolated from the rest. Models that do not fit are shown as "out of memory".
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from gpu import print_kernels
from machine_info import describe_machine, peak_memory_mib

from dynedge.data.log import EventLog
from dynedge.data.synthetic import synthesize
from dynedge.models.base import Step
from dynedge.models.baselines.dynamic.coevolving_rnn import CoevolvingRNN
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


if __name__ == "__main__":
    main()
