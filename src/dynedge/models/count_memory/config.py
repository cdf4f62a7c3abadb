"""Config of the count memory. It imports no torch: the command line reads its flags from here."""

from __future__ import annotations

from dataclasses import dataclass

from dynedge.config import option

CONTEXTS = (
    *("user", "user_last", "elapsed", "last", "last_two", "after_gap", "similar", "earlier"),
    *("near", "session", "alike", "peers", "recent", "now"),
)


@dataclass(frozen=True)
class MemoryConfig:
    """Count memory. Half-lives are in events of the log."""

    contexts: tuple[str, ...] = option(
        CONTEXTS, f"Contexts in which earlier events are counted: {', '.join(CONTEXTS)}."
    )
    half_lives: tuple[float, ...] = option(
        (1e12, 20000.0, 2000.0, 300.0, 50.0), "Half-lives of the popularity counts, in events."
    )
    history_events: int = option(2000, "Number of the user's latest events that are counted.", least=1)
    occurrences: int = option(
        512,
        "Number of latest occurrences counted of the user's last item; a quarter for earlier items.",
        least=1,
    )
    rescaled_items: int = option(128, "Number of most probable candidates that the rescaling network sees.", least=1)
    gating_hidden: int = option(32, "Hidden units of the gating network; 0: constant weights.", least=0)
    rescaling_hidden: int = option(
        64, "Hidden units of the network that rescales item probabilities; 0: one factor for seen items.", least=0
    )
    rescaling_second: int = option(
        32, "Hidden units of its second layer, where it has a first one; 0: one layer.", least=0
    )
    training_examples: int = option(160_000, "Number of training events that the networks are fitted to.", least=0)


@dataclass(frozen=True)
class StandaloneMemoryConfig(MemoryConfig):
    """The count memory as a model of its own: it has windows of its own."""

    windows: int = option(300, "Number of windows (training steps) per epoch.", least=1)


SEARCH = {
    "training.lr": (3e-4, 1e-3, 3e-3, 1e-2),
    "model.gating_hidden": (0, 16, 32),
    "model.rescaling_hidden": (0, 32, 64),
    "model.occurrences": (128, 512, 2048),
    "model.training_examples": (40_000, 80_000, 160_000),
}
