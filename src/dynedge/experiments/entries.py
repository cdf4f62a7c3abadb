"""Who takes part in a tournament: names on a command line become configs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynedge.config import set_key
from dynedge.errors import UsageError
from dynedge.models.registry import entries, find_entry
from dynedge.runs.run_config import RunConfig, parse_config, read_config_file, recipe_config

ALL, TOML = "all", ".toml"


@dataclass(frozen=True)
class Entrant:
    """One line of the table: a model, or the recipes of a plain one, of which the best by validation is shown."""

    name: str
    configs: Mapping[str, RunConfig]  # by recipe
    plain: bool = False  # one seed says all


def entrants(names: Sequence[str], epochs: int | None = None) -> list[Entrant]:
    """By name: models, recipes, config files, a plain entry as the best of its recipes, or all there are."""
    found: dict[str, Entrant] = {}
    for name in (one for given in names for one in (_all() if given == ALL else [given])):
        entry = entries().get(name)
        if entry is not None and name not in entry.recipes and entry.heuristic:
            configs = {recipe: _config(recipe, epochs) for recipe in entry.recipes}
            found[name] = Entrant(f"best {name}", configs, plain=True)
        else:
            config = _config(name, epochs)
            entry = find_entry(config.name)
            found[name] = Entrant(name, {name: config}, plain=entry.heuristic)
    if not found:
        raise UsageError("--models names nobody; for example: --models all, or --models edge,counts,heuristic")
    return list(found.values())


def _all() -> Iterator[str]:
    for key, entry in entries().items():
        yield from (key,) if entry.heuristic or not entry.recipes else entry.recipes


def _config(name: str, epochs: int | None) -> RunConfig:
    """With no more than so many epochs: a recipe that states fewer has its reasons."""
    if name.endswith(TOML):
        config, stated = _read(Path(name)), True
    else:
        entry, config = find_entry(name, "--models"), recipe_config(name, "--models")
        stated = "epochs" in entry.training.get(name, {})
    most = min(config.training.epochs, epochs or 0) if stated else epochs
    return config if epochs is None else set_key(config, "training.epochs", most, "--epochs")


def _read(file: Path) -> RunConfig:
    return parse_config(read_config_file(file, "--models "), str(file))
