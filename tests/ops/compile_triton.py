"""Compiles every Triton kernel that training and ranking launch, without a GPU.

    python tests/ops/compile_triton.py       # a few minutes; after any change to a kernel that has not run on a GPU

The interpreter accepts what the compiler refuses (a constant assigned twice, a shape that changes in a branch), so
that a kernel that passes there may still not run. Nothing is launched here: what a kernel would write stays zero.
"""

from __future__ import annotations

import time
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models import window_index
from dynedge.models.base import Step
from dynedge.models.edge import recurrence
from dynedge.models.edge.config import PAPER_LARGE, RecurrenceConfig
from dynedge.ops import (
    adam,
    all_scores,
    bucket_values,
    candidate_scores,
    decayed_counts,
    gather_linear,
    list_log_sum,
    list_values,
    read_states,
    rows_before,
    squared_gap,
    time_gaps,
)
from dynedge.ops.item_ranks import triton as item_ranks
from dynedge.training.optimizer import Adam

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
}
ON_A_GPU = {"rounded": "ieee"}  # precisions that only the interpreter needs
compiled: dict[Any, float] = {}


def compile_only(kernel: JITFunction, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
    """Takes the place of JITFunction.run: compiles the kernel for these arguments and launches nothing."""
    names = [parameter.name for parameter in kernel.params]
    arguments = dict(zip(names, args, strict=False)) | {
        name: kwargs.pop(name) for name in list(kwargs) if name in names
    }
    constants = {p.name: arguments[p.name] for p in kernel.params if p.is_constexpr}
    if "PRECISION" in constants:
        constants["PRECISION"] = ON_A_GPU.get(constants["PRECISION"], constants["PRECISION"])
    signature = {p.name: "constexpr" if p.is_constexpr else _type(arguments[p.name]) for p in kernel.params}
    key = kernel.__name__, kernel.__module__, str(signature), str(constants), str(kwargs)
    if key not in compiled:
        began = time.perf_counter()
        triton.compile(ASTSource(kernel, signature, constexprs=constants), target=TARGET, options=kwargs)
        compiled[key] = time.perf_counter() - began


def _type(value: Any) -> str:
    if isinstance(value, Tensor):
        return "*" + TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32" if abs(int(value)) < 2**31 else "i64"


def make_log() -> EventLog:
    """A log with wide and narrow levels, and features."""
    rng = np.random.default_rng(0)
    users, items = rng.zipf(1.3, 6000) % 3000, rng.integers(0, 200, 6000)
    features = rng.standard_normal((6000, 2))
    return EventLog.from_arrays(users, items, np.arange(6000.0), features=features, num_users=3000, num_items=200)


CONFIGS = {
    "edge-paper": replace(
        PAPER_LARGE,
        windows=2,
        active_users=50,
        active_items=40,
        dnodes=20,
        dnodes_share=None,
        negatives_per_event=False,
        solver="penalty",
    ),
    "recurrence": RecurrenceConfig(windows=2, depth=20),
    "recurrence, candidates split": RecurrenceConfig(windows=20),
    "recurrence, sampled": RecurrenceConfig(windows=2, full_softmax_up_to=0, negatives=64),
    "recurrence, no event features": RecurrenceConfig(windows=2, event_features=False),
    "recurrence, no ids": RecurrenceConfig(windows=2, candidate_id_up_to=0),
    "recurrence, no ids, sampled": RecurrenceConfig(
        windows=2, candidate_id_up_to=0, full_softmax_up_to=0, negatives=64
    ),
}


def main() -> None:
    JITFunction.run = compile_only
    Tensor.new_empty, torch.empty, torch.empty_like = Tensor.new_zeros, torch.zeros, torch.zeros_like
    for module in (window_index, recurrence):
        module.uses_triton = lambda tensor: True
    for package, table, function in (
        (read_states, "BY_DEVICE", "read_states"),
        (read_states, "REPLACE_BY_DEVICE", "replace_rows"),
        (read_states, "STORE_BY_DEVICE", "store_states"),
        (gather_linear, "LINEAR_BY_DEVICE", "gather_linear"),
        (gather_linear, "ROWS_BY_DEVICE", "gather_rows"),
        (gather_linear, "TABLES_BY_DEVICE", "embed"),
        (all_scores, "BY_DEVICE", "all_scores"),
        (bucket_values, "BY_DEVICE", "bucket_values"),
        (rows_before, "BY_DEVICE", "rows_before"),
        (squared_gap, "BY_DEVICE", "squared_gap"),
        (time_gaps, "BY_DEVICE", "time_gaps"),
        (candidate_scores, "BY_DEVICE", "candidate_scores"),
        (decayed_counts, "BY_DEVICE", "decayed_counts"),
        (list_log_sum, "BY_DEVICE", "list_log_sum"),
        (adam, "ROWS_BY_DEVICE", "row_step"),
        (adam, "DENSE_BY_DEVICE", "dense_steps"),
        (adam, "COALESCE_BY_DEVICE", "coalesce"),
        (adam, "COALESCE_ALL_BY_DEVICE", "coalesce_all"),
        (adam, "CLIP_BY_DEVICE", "clip_scale"),
    ):
        module = import_module(f"{package.__name__}.triton")
        getattr(package, table)["cpu"] = getattr(module, function)
    list_values.BY_DEVICE.clear()  # as on a GPU
    item_ranks.count(torch.zeros(5, 500), torch.zeros(5, dtype=torch.int64))
    log = make_log()
    for name, config in CONFIGS.items():
        model = recurrence.Recurrence.create(config, log, len(log), 0)
        state, optimiser = model.start(), Adam(model.named_parameters(), 1e-3, 1e-2)
        with torch.autocast("cpu", torch.bfloat16):
            for number, planned in enumerate(model.plan):
                window = Window(log, planned.events)
                lists = None
                if model.bonus is not None:
                    lists = model.lists.before_events(window, model.lists.start(*model.sizes))
                ready = model._index(window, planned.schedule, model._past(window), number, lists)
                loss = model.loss(ready, state, Step(0, 0, number))
                optimiser.zero_grad()
                loss.total.backward()
                optimiser.clip(1.0)
                optimiser.step()
            with torch.no_grad():
                window = Window(log, range(500))
                model.score(model.prepare(window), None, model.start())
                model.score(model.prepare(window), torch.randint(200, (500, 20)), model.start())
        print(name, len(compiled), f"{sum(compiled.values()):.1f} s", flush=True)
    for (name, module, *_), seconds in compiled.items():
        print(module.split(".")[-2], name, f"{seconds:.1f} s")


if __name__ == "__main__":
    main()
