"""Entries of a benchmark: the configs that names on a command line stand for."""

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
class BenchmarkEntry:
    """One row of the leaderboard: a model, or several heuristics of which the best by validation MRR is shown."""

    name: str
    configs: Mapping[str, RunConfig]  # by recipe
    single_seed: bool = False  # nothing is random


def benchmark_entries(names: Sequence[str], epochs: int | None = None) -> list[BenchmarkEntry]:
    """Returns the entries named: models, recipes, config files, a group of heuristics, or "all".

    `epochs` limits the epochs of each.
    """
    chosen: dict[str, BenchmarkEntry] = {}
    for name in (name for given in names for name in (_all_names() if given == ALL else [given])):
        registered = entries().get(name)
        if registered is not None and name not in registered.recipes and registered.heuristic:
            configs = {recipe: _config(recipe, epochs) for recipe in registered.recipes}
            chosen[name] = BenchmarkEntry(f"best {name}", configs, single_seed=True)
        else:
            config = _config(name, epochs)
            chosen[name] = BenchmarkEntry(name, {name: config}, single_seed=find_entry(config.name).heuristic)
    if not chosen:
        raise UsageError("--models is empty; for example: --models all, or --models edge,counts,heuristic")
    return list(chosen.values())


def _all_names() -> Iterator[str]:
    for key, entry in entries().items():
        yield from (key,) if entry.heuristic or not entry.recipes else entry.recipes


def _config(name: str, epochs: int | None) -> RunConfig:
    """Returns a config with at most `epochs` epochs; a recipe or file that states fewer keeps its number."""
    if name.endswith(TOML):
        config, states_epochs = _read(Path(name)), True
    else:
        entry, config = find_entry(name, "--models"), recipe_config(name, "--models")
        states_epochs = "epochs" in entry.training.get(name, {})
    limit = min(config.training.epochs, epochs or 0) if states_epochs else epochs
    return config if epochs is None else set_key(config, "training.epochs", limit, "--epochs")


def _read(file: Path) -> RunConfig:
    return parse_config(read_config_file(file, "--models "), str(file))
