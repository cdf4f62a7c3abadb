"""The run folder: the output of training, consistent at any time. The model loads without its training data.

config.toml · model.safetensors · state.safetensors · coverage.safetensors · ids/ · metrics.jsonl · run_info.json ·
env.json · manifest.json · README.md · checkpoints/; after an evaluation also ranks/; if the run was saved with a
state that has consumed events after training, also current_state.safetensors.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dynedge import __version__
from dynedge.config import flatten, free_keys, to_toml
from dynedge.data.id_index import ExternalId
from dynedge.data.item_metadata import copy_item_table
from dynedge.data.log import EventLog, read_log
from dynedge.data.log_writer import LogWriter
from dynedge.errors import DataError, UsageError
from dynedge.models.base import LogShape, Model, State
from dynedge.models.registry import find_entry
from dynedge.ops.dispatch import set_cuda_device
from dynedge.runs.event_coverage import Coverage
from dynedge.runs.manifest import MANIFEST, verify_manifest, write_manifest
from dynedge.runs.readme import readme
from dynedge.runs.run_config import RunConfig, parse_config
from dynedge.training.checkpoint import Checkpoints
from dynedge.training.config import TrainingConfig
from dynedge.training.optimizer import Adam
from dynedge.training.train_state import TrainState
from dynedge.utils.atomic_io import atomic_folder, write_text
from dynedge.utils.file_checks import check_regular, read_json_object
from dynedge.utils.file_lock import FileLock
from dynedge.utils.process_group import ALONE, ProcessGroup
from dynedge.utils.tensor_io import load_tensors, save_tensors, select_prefix

KEPT_METADATA = "features", "split", "source", "time", "one_population", "user_features"  # of the log, with the ids
CONFIG, MODEL, STATE, IDS = "config.toml", "model.safetensors", "state.safetensors", "ids"
COVERAGE, CURRENT_STATE = "coverage.safetensors", "current_state.safetensors"
ADDED_IDS = "added_ids.json"  # of users and items that the current state has and the log has not
RUN_INFO, ENV, README = "run_info.json", "env.json", "README.md"
RUN_FILES = MODEL, STATE, COVERAGE, CURRENT_STATE, ADDED_IDS, RUN_INFO, ENV, IDS  # in the manifest
FORMAT, VERSION = "dynedge-run", 6
UPDATE = "update"  # key of run_info.json: what `dynedge update` continued, and how


class RunFolder:
    """A run folder to train in.

    with RunFolder(out, resume=…, force=…) as run: run.begin(config, log, run_info); …; run.finish(train_state, …)

    Inside the context the folder is locked: no other process trains in it. Of the processes of a `group` only the
    first locks and writes it; all write checkpoints.
    """

    def __init__(
        self, folder: Path, *, resume: bool = False, force: bool = False, group: ProcessGroup = ALONE
    ) -> None:
        self.folder, self.resume, self.force = Path(os.path.abspath(folder)), resume, force
        self.group = group
        self._locks: list[FileLock] = []

    @property
    def exists(self) -> bool:
        return self.folder.exists()

    def __enter__(self) -> RunFolder:
        if self.resume and self.force:
            raise UsageError("--resume continues a run and --force starts it anew: pass one of them.")
        if self.exists:
            if not self.resume and not self.force:
                raise DataError(
                    f"{self.folder} already exists; pass --resume to continue it, or --force to replace it."
                )
            if not is_run_folder(self.folder):
                raise DataError(f"{self.folder} exists and is not a run folder of dynedge; choose another --out.")
            if self.resume:
                check_version(self.folder)
            if self.group.is_first:
                self._locks.append(FileLock(self.folder))
        elif not self.folder.parent.is_dir():
            raise DataError(f"{self.folder.parent} is not a folder; create it first, or choose another --out.")
        return self

    def __exit__(self, *error: Any) -> None:
        for lock in self._locks:
            lock.release()

    def config(self) -> RunConfig:
        """Returns the config that the run was started with."""
        return read_config(self.folder)

    def check_log(self, log: EventLog) -> None:
        """Raises DataError if `log` is not the log of this run; the message names the difference."""
        trained_on = read_log(self.folder / IDS).metadata.get("trained_on", {})
        where = f"{log.path or 'this log'} is not the log of {self.folder}"
        for name, value in _describe(log).items():
            if trained_on.get(name) != value:
                counts = f"it has {value} {name}, and the run's log has {trained_on.get(name)}"
                same_size = "it has the same number of events, but different ones"
                raise DataError(f"{where}: {same_size if name == 'fingerprint' else counts}.")

    def begin(self, config: RunConfig, log: EventLog, run_info: dict[str, Any]) -> None:
        """Creates the folder. Of a resumed run only config.toml is rewritten: its free settings may differ."""
        if not self.group.is_first:
            return
        if self.resume and self.exists:
            write_text(self.folder / CONFIG, to_toml(config))
            self._warn_if_threads_differ()
            return
        with atomic_folder(self.folder, force=self.force, is_ours=is_run_folder) as temporary:
            self._locks.append(FileLock(temporary))  # it moves with the folder, which is therefore never unlocked
            (temporary / "checkpoints").mkdir()
            (temporary / CONFIG).write_text(to_toml(config), encoding="utf-8")
            (temporary / ENV).write_text(json.dumps(_environment(config), indent=1) + "\n", encoding="utf-8")
            (temporary / README).write_text(readme(self.folder, config, log, None), encoding="utf-8")
            (temporary / RUN_INFO).write_text(json.dumps(run_info) + "\n", encoding="utf-8")
            _write_ids(temporary / IDS, log)

    def _warn_if_threads_differ(self) -> None:
        """The number of threads decides in which order sums are rounded."""
        before, now = read_json_object(self.folder / ENV).get("threads"), torch.get_num_threads()
        if before != now:
            change = f"{self.folder} was started with {before} threads and resumes with {now}"
            print(f"dynedge: warning: {change}: the result may differ in its last bits.", file=sys.stderr)

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder / "checkpoints", self.group)

    def finish(self, train_state: TrainState, config: RunConfig, log: EventLog) -> None:
        """Writes the model of the best epoch, its state at the end of the training events, and the README."""
        if not self.group.is_first:
            return
        tensors = train_state.best.tensors if train_state.best else train_state.snapshot()
        for outdated in (MANIFEST, STATE, CURRENT_STATE, ADDED_IDS):
            (self.folder / outdated).unlink(missing_ok=True)  # does not belong to the model written next
        coverage = Coverage.empty(log.num_items)
        coverage.add(log, config.training.train_valid_ranges(log)[0])
        save_tensors(self.folder / MODEL, select_prefix(tensors, "model"))
        save_tensors(self.folder / COVERAGE, coverage.tensors())
        save_tensors(self.folder / STATE, select_prefix(tensors, "state"))
        write_manifest(self.folder, RUN_FILES)
        write_text(self.folder / README, readme(self.folder, config, log, train_state))


@dataclass(frozen=True)
class LoadedRun:
    """A finished run, loaded without its training data."""

    model: Model
    state: State  # at the end of the training events
    log: EventLog  # the training log's ids, item categories and feature width, without its events
    config: RunConfig


def load_run(folder: str | os.PathLike[str], device: str = "cpu") -> LoadedRun:
    """Returns the model of the best epoch, in evaluation mode, and its state."""
    path = Path(folder)
    check_finished(path)
    config = read_config(path)
    entry = find_entry(config.name)
    log = read_log(path / IDS)
    verify_manifest(path)
    tensors = load_tensors(path / MODEL)
    for name, tensor in tensors.items():
        if bool(tensor.isnan().any()) or bool((tensor == torch.inf).any()):
            raise DataError(f"{path / MODEL} is damaged: '{name}' has a number that is not finite.")
    set_cuda_device(device)
    try:
        model = entry.model.restore(config.model, LogShape.of(log), tensors).to(device).eval()
        if config.training.precision == "float64":
            model.double().load_state_dict(tensors)  # again: restoring in float32 lost bits
    except (RuntimeError, KeyError, ValueError, TypeError, IndexError, DataError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path / MODEL} does not fit the run's config.toml: {reason}.") from None
    state = State(load_tensors(path / STATE))
    with damage_in(path / STATE):
        model.check_state(state)
    return LoadedRun(model, state if device == "cpu" else state.placed_like(model.start()), log, config)


def load_optimizer(folder: Path, model: Model, training: TrainingConfig) -> Adam:
    """The run's optimizer as training left it; without moments if the run has no checkpoints, as a saved copy."""
    optimizer = Adam(model.named_parameters(), training.lr, training.row_lr)
    checkpoint = Checkpoints(folder / "checkpoints").load()
    if checkpoint is not None:
        optimizer.load(select_prefix(checkpoint.parts["current"], "optim"))
    return optimizer


def newest_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The manifest of the run's newest checkpoint; None if it has none."""
    manifests = sorted((folder / "checkpoints").glob("*.json"))
    return read_json_object(manifests[-1]) if manifests else None


@contextmanager
def damage_in(path: Path) -> Iterator[None]:
    """Context in which a DataError about the content of a file gets its name and what to do."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{path} is damaged: {error}; copy the run again, or train it again.") from None


def read_added_ids(folder: Path) -> tuple[list[ExternalId], list[ExternalId]]:
    """Returns the ids of users and of items that a run's current state has and its log has not."""
    path = folder / ADDED_IDS
    if not path.exists():
        return [], []
    content = read_json_object(path)
    users, items = content.get("users"), content.get("items")
    if isinstance(users, list) and isinstance(items, list) and all(type(i) in (int, str) for i in [*users, *items]):
        return users, items
    raise DataError(f"{path} is damaged: it does not hold lists of ids; copy the run again, or train it again.")


def read_coverage(folder: Path, items: int) -> Coverage:
    """Returns the coverage of a run's state at the end of its training events."""
    tensors = load_tensors(folder / COVERAGE)
    with damage_in(folder / COVERAGE):
        return Coverage.from_tensors(tensors, items)


def check_finished(folder: Path) -> None:
    """Raises DataError unless `folder` is a run folder of this version whose training has finished."""
    if not is_run_folder(folder):
        raise DataError(
            f"{folder} is not a run folder; create one with: dynedge train LOG --out {folder.name or 'RUN'}"
        )
    check_version(folder)
    if not is_finished(folder):
        update = update_info(folder)
        command = "dynedge train LOG" if update is None else f"dynedge update {update.get('parent', 'RUN')} LOG"
        raise DataError(f"{folder} has not finished training; continue with: {command} --out {folder} --resume")


def update_info(folder: Path) -> dict[str, Any] | None:
    """What a run says about the update that made it; None for a run trained from the beginning."""
    try:
        info = read_json_object(folder / RUN_INFO).get(UPDATE)
    except FileNotFoundError:
        raise DataError(f"{folder / RUN_INFO} is missing; copy the run again, or train it again.") from None
    if not isinstance(info, dict | None):
        raise DataError(f"{folder / RUN_INFO} is damaged: its entry '{UPDATE}' is not an object.")
    return None if info is None else dict(info)


def is_finished(folder: Path) -> bool:
    """Returns whether `folder` is a run folder whose training has finished."""
    return is_run_folder(folder) and (folder / STATE).is_file()  # written last, after the model


def check_version(folder: Path) -> None:
    """Raises DataError if a run folder was written in another version of the format."""
    version = read_json_object(folder / ENV).get("version")
    if version != VERSION:
        raise DataError(
            f"{folder} has run format version {version}, and this dynedge reads version {VERSION}: train it again "
            f"with: dynedge train LOG --out {folder} --force"
        )


def read_config(folder: Path) -> RunConfig:
    """Returns the config in a run folder."""
    try:
        check_regular(folder / CONFIG)
        text = (folder / CONFIG).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise DataError(f"{folder / CONFIG} is missing or damaged.") from None
    config = parse_config(text, str(folder / CONFIG))
    try:
        torch.device(config.training.device)
    except RuntimeError:
        raise DataError(f"{folder / CONFIG}: training.device must be cpu, cuda or cuda:N.") from None
    return config


def check_resumable(old: RunConfig, new: RunConfig, folder: Path) -> None:
    """Raises UsageError if the configs differ in a setting that is not marked free."""
    before, now = flatten(old), flatten(new)
    for key in before.keys() | now.keys():
        if before.get(key) != now.get(key) and key not in free_keys(new):
            raise UsageError(
                f"{folder} was started with {key} = {before.get(key)}, not {now.get(key)}: "
                "resume with the same value, or choose another --out."
            )


def is_run_folder(folder: Path) -> bool:
    """Returns whether `folder` is a run folder, of any version."""
    try:
        return read_json_object(folder / ENV).get("format") == FORMAT
    except (OSError, DataError):
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
    """Writes a log without events: external ids, categories, feature width. `read_log` reads it."""
    with LogWriter(folder) as writer:
        for name, dtype in (("user", np.int32), ("item", np.int32), ("time", np.float64)):
            writer.column(name, dtype)
        if log.features.shape[1]:
            writer.column("features", np.float32, log.features.shape[1])
        writer.ids("user_ids", log.user_ids)
        writer.ids("item_ids", log.item_ids)
        writer.categories("item", log.item_categories, log.category_ids)
        writer.categories("user", log.user_categories, log.user_category_ids)
        writer.finish(
            **{name: log.metadata[name] for name in KEPT_METADATA if name in log.metadata},
            events=0,
            users=log.num_users,
            items=log.num_items,
            item_features=log.metadata.get("item_features", []),
            **copy_item_table(log, writer.folder),
            trained_on=_describe(log)
            | {"prefix_checksum": log.prefix_checksum(len(log))}
            | ({"path": os.path.abspath(log.path)} if log.path else {}),
        )


def _describe(log: EventLog) -> dict[str, Any]:
    return {
        "users": log.num_users,
        "items": log.num_items,
        "features": log.features.shape[1],
        "item features": log.item_categories.shape[1],
        **({"user features": len(log.user_category_ids)} if log.user_category_ids else {}),
        "events": len(log),
        "fingerprint": log.fingerprint,
    }
