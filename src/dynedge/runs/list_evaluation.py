"""Metrics beyond accuracy of a run: the lists it would have recommended at test events.

They are cached in RUN/ranks/lists.npz. A pass of its own over the validation and test events: not every model
computes the scores of all items to rank one. Only sampled events are scored; the states advance over the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.evaluation.list_metrics import list_metrics
from dynedge.evaluation.protocol import CHUNK, chunks
from dynedge.evaluation.top_lists import SAMPLE, K, TopListCollector, TopLists, sampled_blocks
from dynedge.models.base import Model, State
from dynedge.runs.evaluate_run import RunRanks, cache_key, load_for
from dynedge.runs.evaluation_cache import FOLDER, read_cached, write_cached
from dynedge.training.precision import autocast
from dynedge.utils.progress import Progress

FULL = "full"  # lists are of all items, whatever protocol ranks are of


def with_lists(asked: bool | None, protocol: str) -> bool:
    """Whether to evaluate lists: as asked, by default where ranks are of all items too."""
    return protocol == FULL if asked is None else asked


def evaluate_lists(ranked: RunRanks, *, quiet: bool = False) -> dict[str, Any]:
    """Returns the metrics of the lists of sampled test events, and `list_events`, the number of lists."""
    path = ranked.run / FOLDER / "lists.npz"
    key = cache_key(ranked.run, ranked.config, ranked.log, FULL) | {"k": K, "sample": SAMPLE}
    lists = read_cached(path, key, partial(_load, events=sampled_blocks(ranked.ranges["test"])))
    if lists is None:
        lists = _collect(ranked, quiet)
        write_cached(path, key, partial(_save, lists))
    return {"list_events": len(lists.events), **list_metrics(lists, ranked.log, ranked.ranges["train"].stop)}


def _save(lists: TopLists, file: BinaryIO) -> None:
    np.savez(file, allow_pickle=False, **lists.arrays())


def _load(path: Path, extra: dict[str, Any], events: list[range]) -> TopLists | None:
    with np.load(path, allow_pickle=False) as arrays:
        lists = TopLists(**{name: arrays[name] for name in ("events", "items", "confidence", "diversity")})
    return lists if len(lists.events) == len(lists.items) == sum(map(len, events)) else None


@torch.no_grad()
def _collect(ranked: RunRanks, quiet: bool) -> TopLists:
    """The lists of the moments just before the sampled events: states advance as in ranking."""
    log, parts = ranked.log, ranked.ranges
    run = load_for(ranked.run, log)
    model, state = run.model, run.state
    blocks = sampled_blocks(parts["test"])
    lists = TopListCollector(model, state, blocks)
    total, position = parts["test"].stop - parts["valid"].start, parts["valid"].start
    title = f"lists of {ranked.run.name}"
    with Progress(title, total=total, quiet=quiet) as progress, autocast(ranked.config.training):
        for block in blocks:
            for skipped in _observe(model, log, range(position, block.start), state):
                progress.advance(skipped)
            for chunk in chunks(model, log, block, FULL):
                lists.add(chunk.window.events, model.score(chunk.batch, None, state))
                progress.advance(len(chunk.window))
            position = block.stop
        progress.advance(parts["test"].stop - position)
    return lists.result()


def _observe(model: Model, log: EventLog, events: range, state: State) -> Iterator[int]:
    """Advances the state over events; yields how many at a time."""
    for start in range(events.start, events.stop, CHUNK):
        window = Window(log, range(start, min(start + CHUNK, events.stop)))
        model.observe(window, state)
        yield len(window)
