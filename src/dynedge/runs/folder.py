"""The run folder: what training leaves behind, whole at any moment, and enough to use the model without its data.

config.toml · model.safetensors · state.safetensors · known.safetensors · ids/ · metrics.jsonl · facts.json · env.json
README.md and checkpoints/; once it was evaluated, ranks/; saved with a state that went on, now.safetensors.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dynedge import __version__
from dynedge.config import flatten, free_keys, to_toml
from dynedge.data.log import EventLog, LogWriter, read_log
from dynedge.errors import DataError, UsageError
from dynedge.models.base import Model, State
from dynedge.models.registry import find_entry
from dynedge.ops.dispatch import set_cuda_device
from dynedge.runs.coverage import Known
from dynedge.runs.readme import readme
from dynedge.runs.run_config import RunConfig, parse_config
from dynedge.training.checkpoint import Checkpoints
from dynedge.training.train_state import Course
from dynedge.utils.atomic_io import atomic_folder, write_text
from dynedge.utils.tensor_io import load_tensors, save_tensors, select_prefix

CONFIG, MODEL, STATE, IDS = "config.toml", "model.safetensors", "state.safetensors", "ids"
KNOWN, NOW = "known.safetensors", "now.safetensors"
FACTS, ENV, README, LOCK = "facts.json", "env.json", "README.md", ".lock"
FORMAT, VERSION = "dynedge-run", 1


class Run:
    """with Run(out, resume=…, force=…) as run: run.begin(config, log, facts); …; run.finish(course)

    While the block lasts the folder is locked: no other process trains into it.
    """

    def __init__(self, folder: Path, *, resume: bool = False, force: bool = False) -> None:
        self.folder, self.resume, self.force = Path(os.path.abspath(folder)), resume, force
        self._locks: list[int] = []

    @property
    def there(self) -> bool:
        return self.folder.exists()

    def __enter__(self) -> Run:
        if self.resume and self.force:
            raise UsageError("--resume goes on with a run and --force starts it anew: pass one of them.")
        if self.there:
            if not self.resume and not self.force:
                raise DataError(
                    f"{self.folder} already exists; pass --resume to go on with it, or --force to replace."
                )
            if not is_run(self.folder):
                raise DataError(f"{self.folder} exists and is not a run folder of dynedge; choose another --out.")
            self._lock(self.folder)
        elif not self.folder.parent.is_dir():
            raise DataError(f"{self.folder.parent} is not a folder; create it first, or choose another --out.")
        return self

    def __exit__(self, *error: Any) -> None:
        for lock in self._locks:
            os.close(lock)

    def config(self) -> RunConfig:
        """The config the run was started with."""
        return read_config(self.folder)

    def check_log(self, log: EventLog) -> None:
        """Refuse to go on with another log than the run's, and say what is other about it."""
        told = read_log(self.folder / IDS).metadata.get("trained_on", {})
        where = f"{log.path or 'this log'} is not the log of {self.folder}"
        for name, value in _describe(log).items():
            if told.get(name) != value:
                counts = f"it has {value} {name}, and the run's has {told.get(name)}"
                raise DataError(f"{where}: {'as many events, but other ones' if name == 'fingerprint' else counts}.")

    def begin(self, config: RunConfig, log: EventLog, facts: dict[str, Any]) -> None:
        """Make the folder. Of a run that is gone on with, only config.toml may be new: what is free in it."""
        if self.resume and self.there:
            write_text(self.folder / CONFIG, to_toml(config))
            self._say_if_threads_differ()
            return
        with atomic_folder(self.folder, force=self.force, is_ours=is_run) as beside:
            self._lock(beside)  # the lock moves with the folder: it is never there unlocked
            (beside / "checkpoints").mkdir()
            (beside / CONFIG).write_text(to_toml(config), encoding="utf-8")
            (beside / ENV).write_text(json.dumps(_environment(config), indent=1) + "\n", encoding="utf-8")
            (beside / README).write_text(readme(self.folder, config, log, None), encoding="utf-8")
            (beside / FACTS).write_text(json.dumps(facts) + "\n", encoding="utf-8")
            _write_ids(beside / IDS, log)

    def _say_if_threads_differ(self) -> None:
        """Sums over several threads are rounded in another order over fewer."""
        before, now = json.loads((self.folder / ENV).read_bytes()).get("threads"), torch.get_num_threads()
        if before != now:
            told = f"{self.folder} was started with {before} threads and goes on with {now}"
            print(f"dynedge: {told}: the result may differ in its last bits.", file=sys.stderr)

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder / "checkpoints")

    def finish(self, course: Course, config: RunConfig, log: EventLog) -> None:
        """Write the best model, its state at the end of training, and the README that says so."""
        tensors = course.best.tensors if course.best else course.snapshot()
        for earlier in (STATE, NOW):
            (self.folder / earlier).unlink(missing_ok=True)  # does not fit the model from here on
        known = Known.nothing(log.num_items)
        known.add(log, config.training.ranges(log)[0])
        save_tensors(self.folder / MODEL, select_prefix(tensors, "model"))
        save_tensors(self.folder / KNOWN, known.tensors())
        save_tensors(self.folder / STATE, select_prefix(tensors, "state"))
        write_text(self.folder / README, readme(self.folder, config, log, course))

    def _lock(self, folder: Path) -> None:
        path = folder / LOCK
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.read(lock, 20).decode("ascii", "replace").strip() or "unknown"
            os.close(lock)
            raise DataError(f"{folder} is in use by another process ({other}); wait for it, or stop it.") from None
        self._locks.append(lock)
        if not path.exists() or os.fstat(lock).st_ino != path.stat().st_ino:
            raise DataError(f"{folder} was replaced by another process just now; run this again.")
        os.truncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)


@dataclass(frozen=True)
class Trained:
    """A finished run, opened without its training data."""

    model: Model
    state: State  # at the end of the training events
    log: EventLog  # the log's ids, categories and feature width; it has no events
    config: RunConfig


def load_run(folder: str | os.PathLike[str], device: str = "cpu") -> Trained:
    """Open a run folder: the best model, ready to score."""
    path = Path(folder)
    check_finished(path)
    config = read_config(path)
    entry = find_entry(config.name)
    log = read_log(path / IDS)
    tensors = load_tensors(path / MODEL)
    set_cuda_device(device)
    try:
        model = entry.restore(config.model, log, tensors).to(device).eval()
        if config.training.precision == "float64":
            model.double().load_state_dict(tensors)  # once more: what was restored in float32 lost bits
    except (RuntimeError, KeyError, ValueError) as error:
        what = " ".join(str(error).split())
        raise DataError(f"{path / MODEL} does not fit the run's config.toml: {what}.") from None
    state = State(load_tensors(path / STATE))
    return Trained(model, state if device == "cpu" else state.beside(model.start()), log, config)


def check_finished(folder: Path) -> None:
    """Refuse what is no run folder, or one without a model yet."""
    if not is_run(folder):
        raise DataError(
            f"{folder} is not a run folder; make one with: dynedge train LOG --out {folder.name or 'RUN'}"
        )
    if not (folder / STATE).is_file():  # written after the model
        raise DataError(f"{folder} has not finished training; go on with: dynedge train LOG --out {folder} --resume")


def read_config(folder: Path) -> RunConfig:
    try:
        text = (folder / CONFIG).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise DataError(f"{folder / CONFIG} is missing or damaged.") from None
    return parse_config(text, str(folder / CONFIG))


def check_same(old: RunConfig, new: RunConfig, folder: Path) -> None:
    """A resumed run changes nothing that would have led elsewhere, except what is marked free."""
    before, now = flatten(old), flatten(new)
    for key in before.keys() | now.keys():
        if before.get(key) != now.get(key) and key not in free_keys(new):
            raise UsageError(
                f"{folder} was started with {key} = {before.get(key)}, not {now.get(key)}: "
                "resume with the same, or choose another --out."
            )


def is_run(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / ENV).read_bytes())["format"] == FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _environment(config: RunConfig) -> dict[str, Any]:
    device = torch.device(config.training.device)
    packages = ("torch", "numpy", "numba", "safetensors")
    return {
        "format": FORMAT,
        "version": VERSION,
        "dynedge": __version__,
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "precision": config.training.precision,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _write_ids(folder: Path, log: EventLog) -> None:
    """A log without events: own ids, item categories, feature width. `read_log` opens it."""
    with LogWriter(folder) as writer:
        for name, dtype in (("user", np.int32), ("item", np.int32), ("time", np.float64)):
            writer.column(name, dtype)
        if log.features.shape[1]:
            writer.column("features", np.float32, log.features.shape[1])
        writer.ids("user_ids", log.user_ids)
        writer.ids("item_ids", log.item_ids)
        if log.item_categories.shape[1]:
            writer.column("item_categories", np.int32, log.item_categories.shape[1]).append(log.item_categories)
        for k, ids in enumerate(log.category_ids):
            writer.ids(f"category_{k}_ids", ids)
        writer.finish(
            **{name: log.metadata[name] for name in ("features", "split", "source", "time") if name in log.metadata},
            events=0,
            users=log.num_users,
            items=log.num_items,
            item_features=log.metadata.get("item_features", []),
            trained_on=_describe(log) | ({"path": os.path.abspath(log.path)} if log.path else {}),
        )


def _describe(log: EventLog) -> dict[str, Any]:
    return {
        "users": log.num_users,
        "items": log.num_items,
        "features": log.features.shape[1],
        "item features": log.item_categories.shape[1],
        "events": len(log),
        "fingerprint": log.fingerprint,
    }
