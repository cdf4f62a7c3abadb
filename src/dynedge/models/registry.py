"""The models by name: those of this package, a line each, and those that other packages bring.

Another package registers a model through the entry-point group `dynedge.models`: the name of the entry point is the
name of the model, and its value is an Entry.

    [project.entry-points."dynedge.models"]
    markov = "my_package.markov:ENTRY"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from dynedge.config import unknown_key
from dynedge.errors import DataError, UsageError
from dynedge.models.base import Model
from dynedge.models.baselines import heuristics
from dynedge.models.baselines.dynamic import gcmc, graphmixer, jodie, tgat, tgn
from dynedge.models.baselines.dynamic.deepcoevolve import DeepCoevolve, DeepCoevolveConfig
from dynedge.models.baselines.sequential import gsasrec
from dynedge.models.baselines.sequential.base import TRAINING, VECTOR_SEARCH
from dynedge.models.baselines.sequential.craft import Craft, CraftConfig
from dynedge.models.baselines.sequential.dien import DIEN, DIENConfig
from dynedge.models.baselines.sequential.gru4rec import GRU4Rec, GRU4RecConfig
from dynedge.models.baselines.sequential.mimn import MIMN, MIMNConfig
from dynedge.models.baselines.sequential.pair_scoring import PAIR_SEARCH
from dynedge.models.baselines.sequential.sasrec import SASRec, SASRecConfig
from dynedge.models.baselines.sequential.sum_pooling import SumPooling, SumPoolingConfig
from dynedge.models.baselines.static import ctdne, dynaernn
from dynedge.models.count_memory import config as memory
from dynedge.models.count_memory.model import CountMemory
from dynedge.models.edge import config as edge
from dynedge.models.edge.model import Edge
from dynedge.models.edge.one_population import OnePopulation
from dynedge.models.edge.recurrence import Recurrence

GROUP = "dynedge.models"


@dataclass(frozen=True)
class Entry:
    """What is known of a model before it is built."""

    model: type[Model]
    config: type[Any]  # a frozen dataclass with a default for every field
    recipes: Mapping[str, Any] = field(default_factory=dict)  # named instances of the config
    devices: tuple[str, ...] = ("cpu",)  # where it runs, the faster first
    training: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # recipe -> training fields it changes
    search: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # full config key -> values that `tune` tries
    one_population: bool = False  # has one state or history for an entity that is a user and an item
    heuristic: bool = False  # learns nothing: one seed is enough, and a leaderboard shows the best of its recipes

    def names(self, name: str) -> list[str]:
        """The recipes, or where there are none the model's own name."""
        return list(self.recipes) or [name]

    def recipe(self, name: str) -> Any:
        """The config of a recipe, or the default one."""
        return self.recipes.get(name) or self.config()


GPU_FIRST = "cuda", "cpu"
AVERAGED = {"average": 500}  # training windows
PAPER_TRAINING = {**AVERAGED, "lr_decay": 1.0}
SMALL_TRAINING = {**PAPER_TRAINING, "epochs": 60, "patience": 8}  # few windows, so more epochs
CPU_FIRST = "cpu", "cuda"  # compiled levels are several times as fast there as launches one by one on a GPU


def _sequential(name: str, model: type[Model], config: type[Any], search: Mapping[str, Sequence[Any]]) -> Entry:
    return Entry(model, config, devices=GPU_FIRST, training={name: TRAINING}, search=search)


BUILT_IN: dict[str, Entry] = {
    "edge": Entry(Edge, edge.EdgeConfig, devices=GPU_FIRST, training={"edge": AVERAGED}, search=edge.SEARCH),
    "recurrence": Entry(
        Recurrence,
        edge.RecurrenceConfig,
        {
            "recurrence": edge.RecurrenceConfig(),
            "edge-paper-small": edge.PAPER_SMALL,
            "edge-paper-large": edge.PAPER_LARGE,
        },
        devices=GPU_FIRST,
        training={
            "recurrence": AVERAGED,
            "edge-paper-small": SMALL_TRAINING,
            "edge-paper-large": PAPER_TRAINING,
        },
    ),
    "one-population": Entry(
        OnePopulation, edge.OnePopulationConfig, training={"one-population": AVERAGED}, one_population=True
    ),
    "memory": Entry(
        CountMemory,
        memory.StandaloneMemoryConfig,
        {"memory": memory.StandaloneMemoryConfig(), "counts": heuristics.COUNTS},
        training={"memory": AVERAGED},
        search=memory.SEARCH,
        one_population=True,
    ),
    "jodie": Entry(jodie.Jodie, jodie.JodieConfig, devices=GPU_FIRST, search=jodie.SEARCH),
    "deepcoevolve": Entry(DeepCoevolve, DeepCoevolveConfig, devices=GPU_FIRST),
    "sum-pooling": _sequential("sum-pooling", SumPooling, SumPoolingConfig, VECTOR_SEARCH),
    "gru4rec": _sequential("gru4rec", GRU4Rec, GRU4RecConfig, VECTOR_SEARCH),
    "sasrec": _sequential("sasrec", SASRec, SASRecConfig, VECTOR_SEARCH),
    "gsasrec": _sequential("gsasrec", gsasrec.GSASRec, gsasrec.GSASRecConfig, gsasrec.SEARCH),
    "craft": _sequential("craft", Craft, CraftConfig, PAIR_SEARCH),
    "dien": _sequential("dien", DIEN, DIENConfig, PAIR_SEARCH),
    "mimn": _sequential("mimn", MIMN, MIMNConfig, PAIR_SEARCH),
    "ctdne": Entry(ctdne.Ctdne, ctdne.CtdneConfig, search=ctdne.SEARCH),
    "dynaernn": Entry(dynaernn.DynAERNN, dynaernn.DynAERNNConfig, devices=GPU_FIRST, search=dynaernn.SEARCH),
    "gcmc": Entry(gcmc.GCMC, gcmc.GCMCConfig, gcmc.RECIPES, devices=GPU_FIRST, search=gcmc.SEARCH),
    "tgat": Entry(tgat.TGAT, tgat.TGATConfig, devices=GPU_FIRST, search=tgat.SEARCH),
    "tgn": Entry(tgn.TGN, tgn.TGNConfig, devices=CPU_FIRST, search=tgn.SEARCH),
    "graphmixer": Entry(
        graphmixer.GraphMixer, graphmixer.GraphMixerConfig, devices=GPU_FIRST, search=graphmixer.SEARCH
    ),
    "heuristic": Entry(
        heuristics.Heuristic,
        heuristics.HeuristicConfig,
        heuristics.RECIPES,
        training=heuristics.TRAINING,
        one_population=True,
        heuristic=True,
    ),
}

_entries: dict[str, Entry] | None = None


def entries() -> dict[str, Entry]:
    """All models by name, the default one first."""
    global _entries  # noqa: PLW0603
    if _entries is None:
        points = entry_points(group=GROUP)
        for point in points:
            if point.name in BUILT_IN:
                raise DataError(f"the model {point.name} of {point.value} has the name of a built-in one; rename it.")
        _entries = BUILT_IN | {point.name: _load(point) for point in points}
    return _entries


def _load(point: EntryPoint) -> Entry:
    try:
        entry = point.load()
    except Exception as error:
        raise DataError(f"the model {point.name} of {point.value} cannot be loaded: {error!r}.") from None
    if not isinstance(entry, Entry):
        raise DataError(f"the model {point.name}: {point.value} should be a dynedge.models.registry.Entry.")
    return entry


def use_only(models: Mapping[str, Entry]) -> None:
    """Replace all entries, for this process."""
    global _entries  # noqa: PLW0603
    _entries = dict(models)


def default_model() -> str:
    return next(iter(entries()))


def find_entry(name: str, flag: str = "--model") -> Entry:
    """The entry of a model or of one of its recipes."""
    for key, entry in entries().items():
        if name == key or name in entry.recipes:
            return entry
    known = dict.fromkeys(one for key, entry in entries().items() for one in (key, *entry.recipes))
    raise UsageError(str(unknown_key(name, known, flag)).replace("has no", "knows no"))


def models_with(capability: type) -> list[str]:
    """The models and recipes that have a capability (capabilities.py), by name."""
    return [
        name
        for key, entry in entries().items()
        for name in entry.names(key)
        if entry.model.supports(capability, entry.recipe(name))
    ]
