"""The models by name: those of this package, a line each, and those that other packages bring.

Another package registers a model through the entry-point group `dynedge.models`: the name of the entry point is the
name of the model, and its value is an Entry.

    [project.entry-points."dynedge.models"]
    markov = "my_package.markov:ENTRY"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from dynedge.config import unknown_key
from dynedge.errors import DataError, UsageError
from dynedge.models.base import Model
from dynedge.models.baselines import heuristics
from dynedge.models.baselines.dynamic import deepcoevolve, gcmc, jodie, tgat
from dynedge.models.baselines.sequential.base import LEARNING, VECTOR_SEARCH, SequenceConfig, SequenceModel
from dynedge.models.baselines.sequential.dien import DIEN, DIENConfig
from dynedge.models.baselines.sequential.gru4rec import GRU4Rec, GRU4RecConfig
from dynedge.models.baselines.sequential.mimn import MIMN, MIMNConfig
from dynedge.models.baselines.sequential.pair_scoring import PAIR_SEARCH
from dynedge.models.baselines.sequential.sasrec import SASRec, SASRecConfig
from dynedge.models.baselines.sequential.sum_pooling import SumPooling, SumPoolingConfig
from dynedge.models.baselines.static import ctdne, dynaernn
from dynedge.models.count_memory import config as memory_config
from dynedge.models.count_memory import model as memory
from dynedge.models.edge import config as edge_config
from dynedge.models.edge import model as edge
from dynedge.models.edge import recurrence

GROUP = "dynedge.models"


@dataclass(frozen=True)
class Entry:
    """What is known of a model before it is built."""

    config: type[Any]  # a frozen dataclass with a default for every field
    create: Callable[..., Model]  # (config, log, train_end, seed): a new model, on the CPU in float32
    restore: Callable[..., Model]  # (config, log, tensors): a trained one; the log has ids and categories, no events
    recipes: Mapping[str, Any] = field(default_factory=dict)  # named instances of the config
    devices: tuple[str, ...] = ("cpu",)  # where it runs, the faster first
    training: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # recipe -> training fields it changes
    search: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # config field -> values that `tune` tries
    heuristic: bool = False  # learns nothing: one seed is enough, and a leaderboard shows the best of its recipes

    def names(self, name: str) -> list[str]:
        """The recipes, or where there are none the model's own name."""
        return list(self.recipes) or [name]


GPU_FIRST = "cuda", "cpu"
CPU_FIRST = "cpu", "cuda"  # compiled levels there are several times as fast as a GPU's launches, one by one


def _sequence(
    name: str, config: type[SequenceConfig], model: type[SequenceModel], search: Mapping[str, Sequence[Any]]
) -> Entry:
    """The sequence models learn alike, on any device."""
    learning = {name: LEARNING}
    return Entry(config, model.create, model.restore, devices=GPU_FIRST, training=learning, search=search)


BUILT_IN: dict[str, Entry] = {
    "edge": Entry(edge_config.EdgeConfig, edge.create, edge.restore, devices=GPU_FIRST, search=edge_config.SEARCH),
    "recurrence": Entry(
        edge_config.RecurrenceConfig,
        recurrence.create,
        recurrence.restore,
        {"recurrence": edge_config.RecurrenceConfig(), "edge-paper": edge_config.PAPER},
        devices=GPU_FIRST,
        training={"edge-paper": {"lr_decay": 1.0}},
    ),
    "memory": Entry(
        memory_config.MemoryConfig,
        memory.create,
        memory.restore,
        {"memory": memory_config.MemoryConfig(), "counts": heuristics.COUNTS},
        search=memory_config.SEARCH,
    ),
    "jodie": Entry(jodie.JodieConfig, jodie.create, jodie.restore, devices=CPU_FIRST),
    "deepcoevolve": Entry(
        deepcoevolve.DeepCoevolveConfig, deepcoevolve.create, deepcoevolve.restore, devices=CPU_FIRST
    ),
    "sum-pooling": _sequence("sum-pooling", SumPoolingConfig, SumPooling, VECTOR_SEARCH),
    "gru4rec": _sequence("gru4rec", GRU4RecConfig, GRU4Rec, VECTOR_SEARCH),
    "sasrec": _sequence("sasrec", SASRecConfig, SASRec, VECTOR_SEARCH),
    "dien": _sequence("dien", DIENConfig, DIEN, PAIR_SEARCH),
    "mimn": _sequence("mimn", MIMNConfig, MIMN, PAIR_SEARCH),
    "ctdne": Entry(ctdne.CtdneConfig, ctdne.create, ctdne.restore),
    "dynaernn": Entry(
        dynaernn.DynAERNNConfig, dynaernn.create, dynaernn.restore, devices=GPU_FIRST, search=dynaernn.SEARCH
    ),
    "gcmc": Entry(gcmc.GCMCConfig, gcmc.create, gcmc.restore, gcmc.RECIPES, devices=GPU_FIRST, search=gcmc.SEARCH),
    "tgat": Entry(tgat.TGATConfig, tgat.create, tgat.restore, devices=GPU_FIRST),
    "heuristic": Entry(
        heuristics.HeuristicConfig,
        heuristics.create,
        heuristics.restore,
        heuristics.RECIPES,
        training=heuristics.TRAINING,
        heuristic=True,
    ),
}


_entries: dict[str, Entry] | None = None


def entries() -> dict[str, Entry]:
    """All models by name, the default one first."""
    global _entries  # noqa: PLW0603
    if _entries is None:
        _entries = BUILT_IN | {point.name: _load(point) for point in entry_points(group=GROUP)}
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
