"""Metrics beyond accuracy of a run: the lists it would have recommended at test events.

A pass of its own over the validation and test events: not every model computes the scores of all items to rank one.
"""

from __future__ import annotations

from typing import Any

import torch

from dynedge.evaluation.list_metrics import list_metrics
from dynedge.evaluation.protocol import chunks
from dynedge.evaluation.top_lists import TopListCollector
from dynedge.runs.evaluate_run import RunRanks
from dynedge.runs.folder import load_run
from dynedge.runs.run_config import usable_device
from dynedge.training.precision import autocast
from dynedge.utils.progress import Progress


@torch.no_grad()
def evaluate_lists(ranked: RunRanks, *, quiet: bool = False) -> dict[str, Any]:
    """Returns the metrics of the lists of sampled test events, and `list_events`, the number of lists.

    States advance as in ranking: each list is that of the moment just before its event.
    """
    training, log, parts = ranked.config.training, ranked.log, ranked.ranges
    run = load_run(ranked.run, usable_device(training))
    model, state = run.model, run.state
    lists = TopListCollector(model, state, parts["test"])
    events = range(parts["valid"].start, parts["test"].stop)
    with Progress(f"lists of {ranked.run.name}", total=len(events), quiet=quiet) as progress, autocast(training):
        for chunk in chunks(model, log, events, "full"):
            lists.add(chunk.window.events, model.score(chunk.batch, None, state))
            progress.advance(len(chunk.window))
    found = lists.result()
    return {"list_events": len(found.events), **list_metrics(found, log, parts["train"].stop)}
