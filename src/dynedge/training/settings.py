"""What is told to a run: the model's own config and the training's, as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from dynedge.config import flatten, option, set_key, unknown_key
from dynedge.errors import DataError, UsageError
from dynedge.events.log import EventLog
from dynedge.events.split import DEFAULT_SPLIT, Split
from dynedge.models.contract import Model
from dynedge.ops.gpu import use


@dataclass(frozen=True)
class TrainingConfig:
    """How any model is trained."""

    epochs: int = option(20, "passes over the training events, at most", least=0, free=True)
    patience: int = option(4, "stop after so many epochs without a better valid MRR; 0: never", least=0, free=True)
    seed: int = option(0, "all random draws follow from it", least=0)
    split: str = option("", "train,valid,test by position, as 0.8,0.1,0.1; empty: the log's own")
    valid_events: int = option(20_000, "validate on the first so many validation events; 0: all", least=0)
    full_ranking_up_to: int = option(
        200_000, "with more items than this, validate among 9,999 drawn ones, not among all", least=0
    )
    lr: float = option(1e-3, "Adam's learning rate", least=0, free=True)
    row_lr: float = option(1e-2, "the same for table rows (sparse gradients)", least=0, free=True)
    cooling: float = option(0.5, "after an epoch with no better valid MRR, both rates times this; 1: never", least=0)
    clip: float = option(1.0, "gradients are scaled down to this norm; inf: never", least=0, free=True)
    device: str = option("auto", "auto (a GPU where it is there and helps), cpu, cuda or cuda:N", free=True)
    precision: str = option(
        "auto",
        "of the arithmetic; auto: bfloat16 products on a GPU, with float32 states and weights, else float32",
        choices=("auto", "float32", "bfloat16", "float64"),
    )
    deterministic: bool = option(False, "the same bits every time on a GPU too", free=True)
    checkpoint_windows: int = option(0, "save after so many windows; 0: by time only", least=0, free=True)
    checkpoint_minutes: float = option(5.0, "save after so many minutes", least=0, free=True)

    def split_of(self, log: EventLog) -> Split:
        return Split.parse(self.split) if self.split else log.split

    def protocol(self, log: EventLog) -> str:
        """What validation ranks among."""
        return "full" if log.num_items <= self.full_ranking_up_to else "sampled-9999"

    def ranges(self, log: EventLog) -> tuple[range, range]:
        """The events to train on, and those to validate on."""
        parts = self.split_of(log).ranges(len(log))
        if not parts["train"]:
            raise DataError(f"no events to train on: of {len(log)} events, split {self.split_of(log)} leaves none.")
        return parts["train"], parts["valid"][: self.valid_events or None]


@dataclass(frozen=True)
class Config:
    """A run's whole config; `model` is the chosen model's own dataclass."""

    name: str = option("", "the model, or a recipe of it")
    model: Any = None
    training: TrainingConfig = TrainingConfig()


class Entry(Protocol):
    """A model as the registry lists it.

    Optional beside these: `training`, {recipe: {training field: value}}; `search`, {config field: values to try};
    `plain`, whether nothing is learned or drawn.
    """

    @property
    def devices(self) -> Sequence[str]:
        """Where it runs, "cpu" and "cuda": the faster first."""

    @property
    def config(self) -> type[Any]:
        """A frozen dataclass with a default for every field."""

    @property
    def recipes(self) -> Mapping[str, Any]:
        """Named instances of it."""

    def create(self, config: Any, log: EventLog, train_end: int, seed: int) -> Model:
        """A new model for the log, on the CPU in float32; what it draws follows from the seed."""

    def restore(self, config: Any, log: EventLog, tensors: dict[str, Tensor]) -> Model:
        """A trained one from its state_dict. `log` has the ids, categories and feature width, but no events."""


def choose(models: Mapping[str, Entry], name: str, flag: str = "--model") -> tuple[Entry, Config]:
    """The entry and default config of a model or a recipe, by name."""
    for key, entry in models.items():
        if name == key or name in entry.recipes:
            config = Config(name, entry.recipes.get(name) or entry.config())
            for field, value in getattr(entry, "training", {}).get(name, {}).items():
                config = set_key(config, f"training.{field}", value)
            return entry, config
    known = dict.fromkeys(one for key, entry in models.items() for one in (key, *entry.recipes))
    raise UsageError(str(unknown_key(name, known, flag)).replace("has no", "knows no"))


def only(models: Mapping[str, Entry], name: str) -> dict[str, Entry]:
    """The entry of a model or a recipe alone, to be sent to another process."""
    return {key: entry for key, entry in models.items() if name in (key, *entry.recipes)}


def key_of(config: Config, name: str, told_as: str) -> str:
    """The dotted name of the field that a short name means: of the training, or somewhere in the model's config."""
    found = [key for key in flatten(config) if key.split(".")[-1] == name]
    if not found:
        own = ", ".join(key for key in flatten(config) if key.startswith("model.")) or "none"
        raise UsageError(f"the model {config.name} has no {told_as}; its own settings are: {own}.")
    return found[0]


def settled(config: Config, log: EventLog, devices: Sequence[str] = ("cuda", "cpu")) -> Config:
    """The config with what it leaves to the log or the machine written out; `devices` are those the model runs on."""
    split = config.training.split or log.card.get("split") or str(DEFAULT_SPLIT)
    Split.parse(split)
    device = config.training.device
    if device == "auto":
        device = next(one for one in devices if one == "cpu" or torch.cuda.is_available())
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = "unknown"
    if kind not in ("cpu", "cuda"):
        raise UsageError(f"--device {device!r} should be auto, cpu, cuda or cuda:N.")
    if kind not in devices:
        raise UsageError(f"--device {device}: the model {config.name} runs on {' or '.join(devices)} only.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device {device}: this machine has no GPU that torch can use; try --device cpu.")
    precision = config.training.precision
    if precision == "auto":
        precision = "bfloat16" if kind == "cuda" else "float32"
    return replace(config, training=replace(config.training, split=split, device=device, precision=precision))


def build(entry: Entry, config: Config, log: EventLog) -> Model:
    """A new model, where and as precise as the config says."""
    training = config.training
    torch.manual_seed(training.seed)  # for layers that draw their own beginnings
    events, _ = training.ranges(log)
    model = entry.create(config.model, log, events.stop, training.seed)
    use(training.device)
    return model.to(training.device, torch.float64 if training.precision == "float64" else torch.float32)
