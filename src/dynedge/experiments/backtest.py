"""Backtest with a rolling origin: how fast a trained model ages on a log, and what keeping it up to date costs.

The log is cut at N times. At each cut every policy has a model that has seen only earlier events, and is judged on
the events up to the next cut: their items are ranked among all items of the log, or among sampled ones.

RUNS/cut-K is the run folder trained from nothing at cut K, on the events before it, of which the last tenth are for
validation. RUNS/update-K continues the run of the cut before. RUNS/ranks has the ranks of each policy. What is there
is not computed again, so an interrupted backtest resumes.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dynedge import __version__
from dynedge.config import override, set_key
from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.errors import DataError, UsageError
from dynedge.evaluation.frozen import rank_frozen
from dynedge.evaluation.protocol import PROTOCOLS, rank_events
from dynedge.evaluation.summary import difference, summarize
from dynedge.experiments.compare_models import BenchmarkRun, check_reusable, resolve_for
from dynedge.experiments.compared_models import TOML
from dynedge.experiments.subprocess_training import announce, is_trained, train_in_subprocess
from dynedge.runs.folder import MODEL, STATE, RunFolder, is_finished, load_run, update_info
from dynedge.runs.online_evaluation import online_key, rank_run_online
from dynedge.runs.run_config import RunConfig, parse_config, read_config_file, recipe_config, usable_device
from dynedge.runs.update_run import update_run
from dynedge.training.logging import METRICS
from dynedge.training.precision import autocast
from dynedge.utils.array_type import Array
from dynedge.utils.atomic_io import file_sha256, write_atomically, write_text
from dynedge.utils.jsonl import read_jsonl
from dynedge.utils.progress import Progress
from dynedge.utils.signals import StopSignal

POLICIES = {
    "frozen": "the model and the states of the first cut",
    "state": "the parameters of the first cut; states follow the events",
    "online": "the run of the first cut, which learns from each 300 events after ranking them",
    "update": "at each cut the run of the cut before goes on with the new events; states follow the events",
    "retrain": "trained from nothing at each cut; states follow the events",
}
VALID_SHARE = 10  # one in so many of the events before a cut is for validation: the last ones
UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}  # seconds
MAX_CUTS = 200
OBSERVED = 5000  # validation events that states follow at once
SHOWN = "mrr", "recall@10"


@dataclass(frozen=True)
class Cut:
    """A time at which models are trained: what they are trained on and judged on, as positions of events."""

    number: int
    train_end: int
    events: range  # judged: from the cut to the next one

    def split(self, total: int) -> str:
        """The split of a run at this cut, of a log of `total` events; validation ends where the cut is."""
        parts = self.train_end, self.events.start - self.train_end, total - self.events.start
        return ",".join(f"{part}/{total}" for part in parts)


@dataclass(frozen=True, eq=False)
class Judged:
    """The ranks of one policy at one cut, and the seconds that training for this cut took; online, also ranking."""

    ranks: Array
    seconds: float


def cut_log(events: int, count: int, start: float) -> list[Cut]:
    """Returns `count` cuts of a log: the first after a share `start` of the events, the others at equal distances."""
    first = _first_cut(events, start)
    bounds = [first + (events - first) * k // count for k in range(count + 1)]
    if min(np.diff(bounds)) < 1:
        raise UsageError(f"--cuts {count} with --start {start:g}: some cut has no events, of {events} in the log.")
    return _cuts(bounds)


def cut_every(time: Array, every: str, start: float) -> list[Cut]:
    """Returns cuts after a share `start` of the events at these times, and then after each period with events.

    `every` is a number of events, such as "50000", or a time, such as "6h" or "1d".
    """
    parsed = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw]?)", every)
    length, unit = (float(parsed[1]), parsed[2]) if parsed else (0.0, "")
    if length <= 0 or (not unit and length != int(length)):
        raise UsageError(f"--every {every!r} should be a number of events (50000) or a time (30m, 6h, 1d, 1w).")
    first = _first_cut(len(time), start)
    if unit:
        period = length * UNITS[unit]
        count = int((time[-1] - time[first]) // period) + 1
        bounds = np.searchsorted(time, time[first] + period * np.arange(1, count)) if count <= MAX_CUTS else []
    else:
        count, bounds = -(-(len(time) - first) // int(length)), np.arange(first + int(length), len(time), int(length))
    if count > MAX_CUTS:
        raise UsageError(f"--every {every} would cut the log {count:,} times, more than {MAX_CUTS}: cut less often.")
    return _cuts(np.unique([first, *bounds, len(time)]).tolist())


def _first_cut(events: int, start: float) -> int:
    if not 0 < start < 1:
        raise UsageError(f"--start {start:g} should be a share of the events, for example 0.5.")
    if int(events * start) < 2:
        raise UsageError(f"--start {start:g}: fewer than two events before the first cut, of {events} in the log.")
    return int(events * start)


def _cuts(bounds: Sequence[int]) -> list[Cut]:
    return [Cut(k + 1, a - max(a // VALID_SHARE, 1), range(a, b)) for k, (a, b) in enumerate(pairwise(bounds))]


def backtest_config(model: str, epochs: int | None, assignments: Sequence[str]) -> RunConfig:
    """Returns the config of every run: a recipe or a config file, with the settings given on the command line."""
    if model.endswith(TOML):
        config = parse_config(read_config_file(Path(model), "--model "), model)
    else:
        config = recipe_config(model)
    if epochs is not None:
        config = set_key(config, "training.epochs", epochs, "--epochs")
    return override(config, assignments)


def backtest(
    log: EventLog,
    config: RunConfig,
    policies: Sequence[str],
    folder: Path,
    *,
    cuts: int = 5,
    every: str | None = None,
    start: float = 0.5,
    protocol: str = "full",
) -> dict[str, Any]:
    """Trains and ranks what is missing in `folder`; returns the results as plain values, as `--json` prints.

    With `every` the log is cut after every such period (`cut_every`), not into `cuts` parts.
    """
    if protocol not in PROTOCOLS:
        raise UsageError(f"--protocol {protocol!r} must be one of: {', '.join(PROTOCOLS)}.")
    if "online" in policies and protocol != "full":
        raise UsageError(f"--policies online ranks all items: leave out --protocol {protocol}.")
    for policy in policies or [""]:
        if policy not in POLICIES:
            raise UsageError(f"--policies {policy!r} is not one of {', '.join(POLICIES)}.")
    if config.training.split:
        raise UsageError("training.split cannot be set here: the cuts decide what is trained on.")
    cut = cut_log(len(log), cuts, start) if every is None else cut_every(np.asarray(log.time), every, start)
    work = _Backtest(log, config, policies, folder, cut, protocol)
    folder.mkdir(parents=True, exist_ok=True)
    with StopSignal() as work.stop:
        judged = {policy: work.judge(policy) for policy in policies}
    return {
        "log": str(log.path),
        "model": config.name,
        "protocol": protocol,
        "items": log.num_items,
        "runs": str(folder),
        **_results(log, work.cuts, judged),
    }


class _Backtest:
    """The runs and ranks of one backtest."""

    def __init__(
        self, log: EventLog, config: RunConfig, policies: Sequence[str], folder: Path, cuts: list[Cut], protocol: str
    ) -> None:
        self.log, self.policies, self.folder, self.cuts, self.protocol = log, policies, folder, cuts, protocol
        self.stop = StopSignal()
        self.runs = [self._run(config, cut) for cut in cuts]
        for run in self.runs if "retrain" in policies else self.runs[:1]:
            check_reusable(run, log)

    def _run(self, config: RunConfig, cut: Cut) -> BenchmarkRun:
        path = self.folder / f"cut-{cut.number}"
        at_cut = replace(config, training=replace(config.training, split=cut.split(len(self.log))))
        return BenchmarkRun(config.name, config.training.seed, resolve_for(at_cut, self.log, path), path)

    def judge(self, policy: str) -> list[Judged]:
        """Returns the ranks of a policy at every cut."""
        first, run = self._train(0), self.runs[0].folder
        if policy in ("update", "retrain"):
            # At the first cut it is the run of the policy `state`, which follows the events of all cuts.
            ranks, _ = self._ranks("state", run, 0, self.cuts if "state" in self.policies else self.cuts[:1])
            judge = self._judge_updated if policy == "update" else self._judge_retrained
            return [Judged(ranks[0], first), *map(judge, range(1, len(self.cuts)))]
        ranks, seconds = self._ranks(policy, run, 0, self.cuts)
        learning = seconds / sum(map(len, ranks)) if policy == "online" else 0.0  # per event
        return [Judged(part, learning * len(part) + (0.0 if k else first)) for k, part in enumerate(ranks)]

    def _judge_retrained(self, k: int) -> Judged:
        seconds = self._train(k)
        (ranks,), _ = self._ranks("state", self.runs[k].folder, k, self.cuts[k : k + 1])
        return Judged(ranks, seconds)

    def _judge_updated(self, k: int) -> Judged:
        """The run of cut 2 continues that of cut 1, and so on."""
        parent = self.runs[0].folder if k == 1 else self.folder / f"update-{k}"
        folder, seconds_file = self.folder / f"update-{k + 1}", self.folder / f"update-{k + 1}.seconds"
        if not is_finished(folder) or (update_info(folder) or {}).get("parent_model") != file_sha256(parent / MODEL):
            announce(f"cut {k + 1} of {len(self.cuts)}: updating {parent.name}", None)
            started = time.monotonic()
            with RunFolder(folder, resume=True) as run:
                update_run(parent, self.log, run, split=self.cuts[k].split(len(self.log)), stop=self.stop)
            write_text(seconds_file, f"{time.monotonic() - started}\n")
        (ranks,), _ = self._ranks("state", folder, k, self.cuts[k : k + 1])
        return Judged(ranks, float(seconds_file.read_text()))

    def _train(self, k: int) -> float:
        """Trains the run of a cut unless it is trained; returns the seconds that its epochs took."""
        run, title = self.runs[k], f"cut {k + 1} of {len(self.cuts)}"
        if not is_trained(run.folder, run.config):
            announce(f"{title}: training on {self.cuts[k].train_end:,} events", None)
            assert self.log.path is not None
            result = train_in_subprocess(title, run.config, run.folder, self.log.path)
            if result.error is not None:
                raise DataError(f"{title}: training failed: {result.error}")
        return float(sum(record["seconds"] + record["valid_seconds"] for record in read_jsonl(run.folder / METRICS)))

    def _ranks(self, kind: str, run: Path, k: int, cuts: Sequence[Cut]) -> tuple[list[Array], float]:
        """Returns the ranks at `cuts` by a run trained for cut k, and the seconds they took.

        `kind`: states are frozen at the first of `cuts`, follow the events, or learn online.
        """
        events = range(cuts[0].events.start, cuts[-1].events.stop)
        path = self.folder / "ranks" / f"{kind}-{run.name}-{self.protocol}.npy"
        key = {
            "dynedge": __version__,
            "log": self.log.fingerprint,
            "events": [events.start, events.stop],
            "model": file_sha256(run / MODEL),
            "state": file_sha256(run / STATE),
            **(online_key(run) if kind == "online" else {}),
        }
        stored = _read(path, key)
        if stored is None:
            started = time.monotonic()
            stored = self._rank(kind, run, self.cuts[k].train_end, events), time.monotonic() - started
            _write(path, key, *stored)
        return np.split(stored[0], np.cumsum([len(cut.events) for cut in cuts])[:-1]), stored[1]

    def _rank(self, kind: str, folder: Path, train_end: int, events: range) -> Array:
        if kind == "online":
            return rank_run_online(folder, self.log).ranks[-len(events) :]
        config = self.runs[0].config.training
        run = load_run(folder, usable_device(config))
        rank = rank_frozen if kind == "frozen" else rank_events
        title = f"ranking by {folder.name}{', frozen' if kind == 'frozen' else ''}"
        with Progress(title, total=len(events)) as progress, autocast(config), torch.no_grad():
            for start in range(train_end, events.start, OBSERVED):
                window = Window(self.log, range(start, min(start + OBSERVED, events.start)))
                run.model.observe(window, run.state)
            advance = progress.advance
            return rank(run.model, self.log, events, run.state, protocol=self.protocol, on_progress=advance)


def _read(path: Path, key: dict[str, Any]) -> tuple[Array, float] | None:
    """Returns stored ranks and seconds, or None if they are missing, damaged, or those of something else."""
    try:
        stored = json.loads(path.with_suffix(".json").read_bytes())
        seconds = float(stored.pop("seconds"))
        return (np.fromfile(path), seconds) if stored == {**key, "sha256": file_sha256(path)} else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(path: Path, key: dict[str, Any], ranks: Array, seconds: float) -> None:
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, ranks.tofile)
    stored = {**key, "sha256": file_sha256(path), "seconds": seconds}
    write_text(path.with_suffix(".json"), json.dumps(stored, indent=1) + "\n")


def _results(log: EventLog, cuts: Sequence[Cut], judged: Mapping[str, Sequence[Judged]]) -> dict[str, Any]:
    user = [np.asarray(log.user[cut.events.start : cut.events.stop]) for cut in cuts]
    together = {
        policy: Judged(np.concatenate([one.ranks for one in parts]), sum(one.seconds for one in parts))
        for policy, parts in judged.items()
    }
    best = min(together, key=lambda policy: -(1 / together[policy].ranks).mean())

    def row(policy: str, one: Judged, of_best: Judged, users: Array) -> dict[str, Any]:
        compared = (
            {} if policy == best else {"difference_to_best": _shown(difference(one.ranks, of_best.ranks, users))}
        )
        return {"policy": policy, **_shown(summarize(one.ranks, users)), **compared, "seconds": one.seconds}

    return {
        "cuts": [_describe(log, cut, cuts[0]) for cut in cuts],
        "best": best,
        "policies": [row(policy, one, together[best], np.concatenate(user)) for policy, one in together.items()],
        "rows": [
            {"cut": cut.number, **row(policy, one, of_best, users)}
            for policy, parts in judged.items()
            for cut, one, of_best, users in zip(cuts, parts, judged[best], user, strict=True)
        ],
        "gain_of_retraining": [
            {"cut": cut.number, **_shown(difference(new.ranks, old.ranks, users))}
            for cut, new, old, users in zip(
                cuts, judged.get("retrain", ()), judged.get("state", ()), user, strict=False
            )
        ],
    }


def _describe(log: EventLog, cut: Cut, first: Cut) -> dict[str, Any]:
    middle = (cut.events.start + cut.events.stop) // 2
    return {
        "cut": cut.number,
        "position": cut.events.start,
        "events": len(cut.events),
        "time": float(log.time[cut.events.start]),
        "age": float(log.time[middle] - log.time[first.events.start]),  # seconds from the first cut to the middle
    }


def _shown(summary: Mapping[str, Any]) -> dict[str, Any]:
    intervals = {name: summary["intervals"][name] for name in SHOWN}
    return {**{name: summary[name] for name in SHOWN}, "intervals": intervals}
