"""The search space of hyper-parameter tuning: for each config key the values to try, its default among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dynedge.config import flatten, set_key
from dynedge.models.registry import Entry
from dynedge.runs.run_config import RunConfig

Settings = dict[str, Any]  # by config key

# For models whose registry entry states no `search`: those of these settings that the model has.
DEFAULT_VALUES: Mapping[str, tuple[Any, ...]] = {
    "lr": (3e-4, 1e-3, 3e-3, 1e-2),
    "row_lr": (1e-3, 3e-3, 1e-2, 3e-2),
    "dropout": (0.0, 0.1, 0.3, 0.5),
    "negatives": (10, 64, 512),
    "windows": (150, 300, 600),
    "window_events": (256, 512, 1024),
}


@dataclass(frozen=True)
class SearchSpace:
    """All combinations of the values of each key; the first value of each is the recipe's."""

    recipe: RunConfig
    values: Mapping[str, tuple[Any, ...]]

    def config(self, settings: Settings) -> RunConfig:
        """Returns the recipe with these settings."""
        config = self.recipe
        for key, value in settings.items():
            config = set_key(config, key, value)
        return config

    @property
    def start(self) -> Settings:
        """The recipe's settings."""
        return {key: values[0] for key, values in self.values.items()}

    def changed(self, settings: Settings) -> Settings:
        """Returns the settings that differ from the recipe's."""
        return {key: value for key, value in settings.items() if value != self.start[key]}


def search_space(entry: Entry, recipe: RunConfig, num_items: int) -> SearchSpace:
    """Returns the search space of a recipe for a log with `num_items` items."""
    current = flatten(recipe)
    stated = entry.search or {
        key: DEFAULT_VALUES[name] for key in current if (name := key.rpartition(".")[2]) in DEFAULT_VALUES
    }
    used = {key: values for key, values in stated.items() if not _has_no_effect(key, current, num_items)}
    return SearchSpace(recipe, {key: tuple(dict.fromkeys((current[key], *values))) for key, values in used.items()})


def _has_no_effect(key: str, current: Mapping[str, Any], num_items: int) -> bool:
    """The number of negatives has no effect where the softmax is over all items."""
    owner, _, name = key.rpartition(".")
    return name == "negatives" and current.get(f"{owner}.full_softmax_up_to", 0) >= num_items
