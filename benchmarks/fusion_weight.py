"""How the fusion weight of trained `edge` runs is chosen on validation events, and what it gives on test events.

    dynedge train LOG --out RUN --epochs 6
    python benchmarks/fusion_weight.py RUN…

For every run: the weight with the best validation MRR, and the smallest within a half, one and two standard errors of
it, each with its test MRR less that of weight 0; last, the best weight on the test events, in hindsight.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from machine_info import describe_machine

from dynedge.evaluation.protocol import chunks, first_near_best
from dynedge.models.edge.model import Edge
from dynedge.runs.evaluate_run import evaluate_run
from dynedge.runs.folder import load_run

ERRORS = 0.5, 1.0, 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="Run folders of `edge`.")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(describe_machine())
    print("run | best | " + " | ".join(f"within {errors:g}" for errors in ERRORS) + " | best on test")
    for run in args.runs:
        print(f"{run.name} | " + " | ".join(row(run)), flush=True)


def row(run: Path) -> list[str]:
    """Weight and gain by each rule."""
    weights, valid, test, user = rewards(run)
    rules = [int(valid.mean(1).argmax())]
    rules += [first_near_best(valid, user, errors) for errors in ERRORS]
    rules.append(int(test.mean(1).argmax()))
    gain = test.mean(1) - test[0].mean()
    return [f"{weights[rule]:g}: {gain[rule]:+.4f}" for rule in rules]


@torch.no_grad()
def rewards(run: Path) -> tuple[list[float], np.ndarray, np.ndarray, np.ndarray]:
    """(weights, reciprocal ranks of validation and of test events by weight, users of the validation events)."""
    loaded, evaluated = load_run(run), evaluate_run(run, quiet=True)
    model, state, log = loaded.model, loaded.state, evaluated.log
    assert isinstance(model, Edge), f"{run} is not a run of edge"
    valid, last = evaluated.ranges["valid"], evaluated.ranges["test"].stop
    ranks = [
        model.calibration_ranks(chunk.batch, chunk.candidates, chunk.true, state)
        for chunk in chunks(model, log, range(valid.start, last), "full")
    ]
    rewards = 1 / np.concatenate(ranks, 1)
    user = np.asarray(log.user[valid.start : valid.stop])
    return list(model.calibration_options()), rewards[:, : len(valid)], rewards[:, len(valid) :], user


if __name__ == "__main__":
    main()
