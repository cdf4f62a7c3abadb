"""Config of the count memory. It imports no torch: the command line reads its flags from here."""

from __future__ import annotations

from dataclasses import dataclass

from dynedge.config import option

TABLES = "user", "last", "last_two", "user_last", "near"


@dataclass(frozen=True)
class MemoryConfig:
    """Count memory. Half-lives are in events of the log."""

    contexts: tuple[str, ...] = option(
        TABLES, "Contexts with a hash table of counts: user, last, last_two, user_last, near."
    )
    half_lives: tuple[float, ...] = option(
        (1e12, 20000.0, 2000.0, 300.0, 50.0), "Half-lives of the popularity counts, in events."
    )
    max_list_length: int = option(
        512, "Maximum number of items listed per context other than user; a full list keeps its better half.", least=2
    )
    gating_hidden: int = option(32, "Hidden units of the gating network; 0: constant weights.", least=0)
    rescaling_hidden: int = option(
        64, "Hidden units of the network that rescales item probabilities; 0: one factor for seen items.", least=0
    )
    counted_events: int = option(
        10_000_000,
        "Number of latest training events counted in every context; earlier ones: user and popularity.",
        least=1,
    )
    training_examples: int = option(40_000, "Number of training events that the networks are fitted to.", least=0)


@dataclass(frozen=True)
class StandaloneMemoryConfig(MemoryConfig):
    """The count memory as a model of its own: it has windows of its own."""

    windows: int = option(300, "Number of windows (training steps) per epoch.", least=1)


SEARCH = {
    "training.lr": (3e-4, 1e-3, 3e-3, 1e-2),
    "model.gating_hidden": (0, 16, 32),
    "model.rescaling_hidden": (0, 32, 64),
    "model.max_list_length": (128, 512, 2048),
    "model.training_examples": (12_000, 40_000, 80_000),
}
