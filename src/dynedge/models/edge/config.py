"""Configs of `edge` and of its recurrence. They import no torch: the command line reads its flags from here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dynedge.config import MAX_WIDTH, option
from dynedge.models.count_memory.config import MemoryConfig

SOLVERS = ("penalty", "augmented", "refresh", "refresh-penalty")


@dataclass(frozen=True)
class RecurrenceConfig:
    """Co-evolving recurrence. The defaults are those of `edge`."""

    dim: int = option(64, "Width of states and embeddings.", least=1, most=MAX_WIDTH)
    windows: int = option(300, "Number of windows (training steps) per epoch.", least=1)
    min_window_events: int = option(
        0, "Smallest mean number of events per window; a small log has fewer windows instead.", least=0
    )
    balanced_windows: bool = option(
        False,
        "Windows of about equal work instead of equal numbers of events: processes that share segments then do not "
        "wait for the last one.",
    )
    active_users: int | None = option(
        None,
        "Number of training events above which a user is active: one learned vector, no evolving state.",
        least=0,
    )
    active_items: int | None = option(None, "Number of training events above which an item is active.", least=0)
    method: str = option("best", "Method that chooses the d-nodes.", choices=("best", "longest-path", "depth"))
    dnodes: int | None = option(
        None, "Number of d-nodes per window; none: 0, unless dnodes_share or depth is given.", least=0
    )
    dnodes_share: float | None = option(
        None, "Number of d-nodes per window as a share of the window's events.", least=0, most=2
    )
    depth: int | None = option(None, "Maximum path length, reached with as few d-nodes as possible.", least=1)
    solver: str = option("refresh", "Method that enforces the d-node constraint φ = state.", choices=SOLVERS)
    alpha: float = option(1.0, "Weight of the d-node constraint.", least=0)
    phi_warmup: int = option(
        0, "Number of first epochs in which a learned φ is a copy of its state, as under refresh.", least=0
    )
    phi_lr_factor: float = option(1.0, "Factor of the row learning rate for a learned φ.", least=0)
    negatives: int = option(512, "Number of negative samples, shared by a chunk of events.", least=1)
    negatives_per_event: bool = option(False, "Negative samples drawn for every event instead of every chunk.")
    sampling_correction: bool = option(True, "Negative samples weighted so that the loss estimates the full softmax.")
    generalized_cross_entropy: float = option(
        0.1,
        "Exponent q of the loss (1 − p^q) / q, in which events with a small probability p count less; "
        "0: cross-entropy.",
        least=0,
        most=1,
    )
    full_softmax_up_to: int = option(4096, "Largest number of items for a softmax over all items.", least=0)
    item_id: bool = option(True, "Item id embeddings as features of an event and of the last item.")
    categories: bool = option(True, "Item category embeddings as features of an event and of the last item.")
    user_features: bool = option(True, "User category embeddings as features of an event and of the query.")
    event_features: bool = option(True, "Numeric event features as input of the state update.")
    time_gaps: bool = option(True, "Logarithm of the time since the entity's previous event as input.")
    candidate_id_up_to: int = option(
        4096,
        "Largest number of items for an id embedding and a bias in a candidate's score, beside its state.",
        least=0,
    )
    id_rate_events: int = option(
        10,
        "Number of training events at which a candidate's id learns at half the rate; 0: all at the full rate.",
        least=0,
    )
    history: bool = option(True, "Repeat-consumption bonus for items already seen by the user.")
    successors: bool = option(True, "Bonus for items that lately followed the user's last item.")
    profile: bool = option(
        True, "Embedding sum of all the user's items in the query, where all items are candidates with ids."
    )
    profile_dropout: float = option(
        0.5, "Share of the user's items that are left out of this sum in training.", least=0, most=1
    )
    listed_events: int = option(
        4_000_000, "Largest number of training events for these two bonuses if negatives are sampled.", least=0
    )
    popularity: bool = option(
        True, "Decayed event counts and age of a candidate in its score, weighted by the query."
    )
    copy_path: bool = option(True, "State and candidate id embedding of the last item as inputs of the query.")
    dropout: float = option(0.3, "Dropout rate of the query vector.", least=0, most=1)
    evolve_active: bool = option(True, "Evolving states for active entities after training, starting at ψ.")

    def num_windows(self, train_end: int) -> int:
        """The number of windows of an epoch of `train_end` events."""
        if not self.min_window_events:
            return self.windows
        return max(1, min(self.windows, train_end // self.min_window_events))


@dataclass(frozen=True)
class OnePopulationConfig:
    """The recurrence with one table of states, for logs whose users and items are the same entities."""

    dim: int = option(64, "Width of states and embeddings.", least=1, most=MAX_WIDTH)
    windows: int = option(300, "Number of windows (training steps) per epoch.", least=1)
    negatives: int = option(128, "Number of negative samples per event.", least=1)
    event_features: bool = option(True, "Numeric event features as input of the state update.")
    dropout: float = option(0.3, "Dropout rate of the query vector.", least=0, most=1)


@dataclass(frozen=True)
class EdgeConfig:
    """The recurrence, the count memory, and the weights of their late fusion."""

    recurrence: RecurrenceConfig = field(default_factory=RecurrenceConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    weights: tuple[float, ...] = option(
        (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8),
        "Fusion weights of the recurrence to choose from, by validation MRR.",
    )


# The model as published: ψ does not change after training; ten uniform negatives per event; d-nodes found by
# Algorithm 2 and tied by the quadratic penalty, of which φ = state is the minimum over φ; item id and categories as
# features of the event and of the last item; scores by states alone; no time gaps, no repeat bonus.
# For the paper's small logs: n* = ∞, and as many d-nodes as the 160 in Reddit's windows of 1,793 events. The paper
# has no shorter windows, in which an item would have hardly any events from which its state could learn.
PAPER_SMALL = RecurrenceConfig(
    min_window_events=1_793,
    method="longest-path",
    dnodes_share=0.09,
    solver="refresh-penalty",
    alpha=0.01,
    phi_warmup=1,
    negatives=10,
    negatives_per_event=True,
    sampling_correction=False,
    generalized_cross_entropy=0.0,
    full_softmax_up_to=0,
    time_gaps=False,
    candidate_id_up_to=0,
    history=False,
    profile=False,
    successors=False,
    popularity=False,
    copy_path=False,
    dropout=0.0,
    evolve_active=False,
)
# For its large logs: 160 d-nodes in Taobao's windows of 226,000 events; on ML-25M the paper has half as many.
PAPER_LARGE = replace(PAPER_SMALL, min_window_events=0, active_users=200, active_items=100, dnodes_share=0.0007)

SEARCH = {
    "training.lr": (3e-4, 1e-3, 3e-3),
    "training.row_lr": (3e-3, 1e-2, 3e-2),
    "model.recurrence.windows": (150, 300, 600),
    "model.recurrence.dropout": (0.1, 0.3, 0.5),
    "model.memory.training_examples": (40_000, 80_000, 160_000),
}
