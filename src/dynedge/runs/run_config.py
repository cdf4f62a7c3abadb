"""The config of a run: the model's settings and the training settings, from recipes and TOML files."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dynedge.config import flatten, from_toml, option, set_key
from dynedge.data.log import EventLog
from dynedge.data.splits import DEFAULT_SPLIT, Split
from dynedge.errors import DataError, UsageError
from dynedge.models.base import Model
from dynedge.models.registry import default_model, find_entry
from dynedge.ops.dispatch import set_cuda_device
from dynedge.training.config import TrainingConfig


@dataclass(frozen=True)
class RunConfig:
    """The complete config of a run; `model` is the config dataclass of the chosen model."""

    name: str = option("", "Name of the model or recipe.")
    model: Any = None
    training: TrainingConfig = field(default_factory=TrainingConfig)


def recipe_config(name: str, flag: str = "--model") -> RunConfig:
    """Returns the default config of a model or recipe."""
    entry = find_entry(name, flag)
    config = RunConfig(name, entry.recipe(name))
    for key, value in entry.training.get(name, {}).items():
        config = set_key(config, f"training.{key}", value)
    return config


def parse_config(text: str, source: str, model: str | None = None) -> RunConfig:
    """Returns the settings of a TOML text on top of the recipe that it names, or else of `model`."""
    try:
        name = str(tomllib.loads(text).get("name", ""))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{source} is not TOML: {error}.") from None
    if name and model and name != model:
        raise UsageError(f"{source} is for the model {name}, but --model is {model}.")
    return from_toml(recipe_config(name or model or default_model()), text, source)


def read_config_file(file: Path, flag: str = "") -> str:
    """Returns the text of a config file; `flag` precedes its name in an error message."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{flag}{file}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise DataError(f"{flag}{file} is not a text file.") from None


def resolve_key(config: RunConfig, name: str, source: str) -> str:
    """Returns the dotted key of a setting given by its short name: "lr" is "training.lr"."""
    keys = [key for key in flatten(config) if key.split(".")[-1] == name]
    if not keys:
        settings = ", ".join(key for key in flatten(config) if key.startswith("model.")) or "none"
        close = difflib.get_close_matches(name, [key.split(".")[-1] for key in flatten(config)], 1, 0.7)
        hint = f"; did you mean {close[0]}? Its" if close else "; its"
        raise UsageError(f"the model {config.name} has no {source}{hint} settings are: {settings}.")
    return keys[0]


def resolve_config(config: RunConfig, log: EventLog) -> RunConfig:
    """Returns the config with split, device and precision chosen for this log and machine where they are open."""
    devices = find_entry(config.name).devices
    split = config.training.split or log.metadata.get("split") or str(DEFAULT_SPLIT)
    Split.parse(split)
    device = config.training.device
    if device == "auto":
        device = next(name for name in devices if name == "cpu" or torch.cuda.is_available())
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = "unknown"
    if kind not in ("cpu", "cuda"):
        raise UsageError(f"--device {device!r} must be auto, cpu, cuda or cuda:N.")
    if kind not in devices:
        raise UsageError(f"--device {device}: the model {config.name} runs on {' or '.join(devices)} only.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device {device}: this machine has no GPU that torch can use; try --device cpu.")
    precision = config.training.precision
    if precision == "auto":
        precision = "bfloat16" if kind == "cuda" else "float32"
    return replace(config, training=replace(config.training, split=split, device=device, precision=precision))


def build_model(config: RunConfig, log: EventLog) -> Model:
    """Returns a new model for the log, on the device and in the precision of a resolved config."""
    training = config.training
    torch.manual_seed(training.seed)  # for layers that initialize themselves
    train, _ = training.train_valid_ranges(log)
    return place_model(find_entry(config.name).model.create(config.model, log, train.stop, training.seed), training)


def place_model(model: Model, training: TrainingConfig) -> Model:
    """Returns the model on the device and in the precision of a resolved config."""
    set_cuda_device(training.device)
    return model.to(training.device, torch.float64 if training.precision == "float64" else torch.float32)


def usable_device(training: TrainingConfig) -> str:
    """Returns the device that a run was trained on, or the CPU where there is no GPU."""
    usable = torch.device(training.device).type == "cpu" or torch.cuda.is_available()
    return training.device if usable else "cpu"
