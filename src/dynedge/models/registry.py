"""The models by name. A new one is one file beside this, and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dynedge.models import ctdne, deepcoevolve, dynaernn, edge, gcmc, jodie, memory, recurrence, rules, tgat
from dynedge.models.contract import Model
from dynedge.models.dien import DIEN, DIENConfig
from dynedge.models.gru4rec import GRU4Rec, GRU4RecConfig
from dynedge.models.mimn import MIMN, MIMNConfig
from dynedge.models.pairs import PAIR_SEARCH
from dynedge.models.sasrec import SASRec, SASRecConfig
from dynedge.models.sequences import LEARNING, VECTOR_SEARCH, SequenceConfig, SequenceModel
from dynedge.models.sum_pooling import SumPooling, SumPoolingConfig


@dataclass(frozen=True)
class Entry:
    """What the training loop asks of a model it does not know: see training/settings.py."""

    config: type[Any]
    create: Callable[..., Model]
    restore: Callable[..., Model]
    recipes: Mapping[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ("cpu",)
    training: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # recipe -> training fields it changes
    search: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # config field -> values `tune` tries
    plain: bool = False  # learns and draws nothing: one seed says all, and a table shows the best of its recipes


GPU_FIRST = "cuda", "cpu"
CPU_FIRST = "cpu", "cuda"  # compiled levels there are several times as fast as a GPU's launches, one by one


def _sequence(
    name: str, config: type[SequenceConfig], model: type[SequenceModel], search: Mapping[str, Sequence[Any]]
) -> Entry:
    """The sequence models learn alike, on any device."""
    learning = {name: LEARNING}
    return Entry(config, model.create, model.restore, devices=GPU_FIRST, training=learning, search=search)


MODELS: dict[str, Entry] = {
    "edge": Entry(edge.EdgeConfig, edge.create, edge.restore, devices=GPU_FIRST, search=edge.SEARCH),
    "recurrence": Entry(
        recurrence.RecurrenceConfig,
        recurrence.create,
        recurrence.restore,
        {"recurrence": recurrence.RecurrenceConfig(), "edge-paper": recurrence.PAPER},
        devices=GPU_FIRST,
        training={"edge-paper": {"cooling": 1.0}},
    ),
    "memory": Entry(
        memory.MemoryConfig,
        memory.create,
        memory.restore,
        {"memory": memory.MemoryConfig(), "counts": rules.COUNTS},
        search=memory.SEARCH,
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
    "rule": Entry(rules.RuleConfig, rules.create, rules.restore, rules.RECIPES, training=rules.TRAINING, plain=True),
}
