"""Who takes part in a tournament: names on a command line become configs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynedge.config import set_key
from dynedge.errors import DataError, UsageError
from dynedge.training.run import config_from_toml
from dynedge.training.settings import Config, Entry, choose

ALL, TOML = "all", ".toml"


@dataclass(frozen=True)
class Entrant:
    """One line of the table: a model, or the recipes of a plain one, of which the best by validation is shown."""

    name: str
    configs: Mapping[str, Config]  # by recipe
    plain: bool = False  # one seed says all


def entrants(models: Mapping[str, Entry], names: Sequence[str], epochs: int | None = None) -> list[Entrant]:
    """By name: models, recipes, config files, a plain entry as the best of its recipes, or all there are."""
    found: dict[str, Entrant] = {}
    for name in (one for given in names for one in (_all(models) if given == ALL else [given])):
        entry = models.get(name)
        if entry is not None and name not in entry.recipes and getattr(entry, "plain", False):
            configs = {recipe: _config(models, recipe, epochs) for recipe in entry.recipes}
            found[name] = Entrant(f"best {name}", configs, plain=True)
        else:
            config = _config(models, name, epochs)
            entry, _ = choose(models, config.name)
            found[name] = Entrant(name, {name: config}, plain=getattr(entry, "plain", False))
    if not found:
        raise UsageError("--models names nobody; for example: --models all, or --models edge,counts,rule")
    return list(found.values())


def _all(models: Mapping[str, Entry]) -> Iterator[str]:
    for key, entry in models.items():
        yield from (key,) if getattr(entry, "plain", False) or not entry.recipes else entry.recipes


def _config(models: Mapping[str, Entry], name: str, epochs: int | None) -> Config:
    """With no more than so many epochs: a recipe that states fewer has its reasons."""
    if name.endswith(TOML):
        config, stated = _read(models, Path(name)), True
    else:
        entry, config = choose(models, name, "--models")
        stated = "epochs" in getattr(entry, "training", {}).get(name, {})
    most = min(config.training.epochs, epochs or 0) if stated else epochs
    return config if epochs is None else set_key(config, "training.epochs", most, "--epochs")


def _read(models: Mapping[str, Entry], file: Path) -> Config:
    try:
        return config_from_toml(file.read_text(encoding="utf-8"), models, str(file))
    except (OSError, UnicodeDecodeError):
        raise DataError(f"--models {file}: there is no such config file, or it is not text.") from None
