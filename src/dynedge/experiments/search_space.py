"""What a search may change: for each config field the values worth trying, its own value among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dynedge.config import flatten, set_key
from dynedge.models.registry import Entry
from dynedge.runs.run_config import RunConfig

Settings = dict[str, Any]  # config field -> value

# For models whose registry entry states no `search` of its own: whichever of these fields they have.
USUAL: Mapping[str, tuple[Any, ...]] = {
    "lr": (3e-4, 1e-3, 3e-3, 1e-2),
    "row_lr": (1e-3, 3e-3, 1e-2, 3e-2),
    "dropout": (0.0, 0.1, 0.3, 0.5),
    "negatives": (10, 64, 512),
    "windows": (150, 300, 600),
    "window_events": (256, 512, 1024),
}


@dataclass(frozen=True)
class Space:
    """Every combination of the fields' values; the first of each is what the recipe has."""

    recipe: RunConfig
    values: Mapping[str, tuple[Any, ...]]

    def config(self, settings: Settings) -> RunConfig:
        config = self.recipe
        for key, value in settings.items():
            config = set_key(config, key, value)
        return config

    @property
    def start(self) -> Settings:
        return {key: values[0] for key, values in self.values.items()}

    def changed(self, settings: Settings) -> Settings:
        """What the recipe has otherwise."""
        return {key: value for key, value in settings.items() if value != self.start[key]}


def space_of(entry: Entry, recipe: RunConfig, items: int) -> Space:
    """Of a log with so many items."""
    now = flatten(recipe)
    stated = entry.search or {key: USUAL[name] for key in now if (name := key.rpartition(".")[2]) in USUAL}
    used = {key: values for key, values in stated.items() if not _idle(key, now, items)}
    return Space(recipe, {key: tuple(dict.fromkeys((now[key], *values))) for key, values in used.items()})


def _idle(key: str, now: Mapping[str, Any], items: int) -> bool:
    """Whether a field changes nothing: nobody draws negatives where all items are candidates."""
    owner, _, name = key.rpartition(".")
    return name == "negatives" and now.get(f"{owner}.full_softmax_up_to", 0) >= items
