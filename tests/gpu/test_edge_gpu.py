"""`edge` on a GPU against itself on a CPU: states on the device, the memory on the host. Skipped without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynedge.data.log import EventLog
from dynedge.data.synthetic import synthesize
from dynedge.evaluation.protocol import PROTOCOLS, rank_events
from dynedge.models.count_memory.config import MemoryConfig
from dynedge.models.edge.config import EdgeConfig, RecurrenceConfig
from dynedge.models.edge.model import Edge
from dynedge.training.config import TrainingConfig
from dynedge.training.loop import fit
from dynedge.training.train_state import TrainState

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> EventLog:
    return synthesize("lastfm-like", tmp_path_factory.mktemp("log") / "log", events=30_000, quiet=True)


def trained(
    log: EventLog, device: str, precision: str = "float32", **more: bool
) -> tuple[Edge, TrainState, TrainingConfig]:
    config = TrainingConfig(epochs=3, patience=0, device=device, precision=precision, validation_events=500, **more)
    events, _ = config.train_valid_ranges(log)
    told = EdgeConfig(
        RecurrenceConfig(windows=20, dropout=0.0, profile_dropout=0.0), MemoryConfig(training_examples=2000)
    )
    model = Edge.create(told, log, events.stop, 0).to(device)
    return model, fit(model, log, config), config


def test_losses_weights_and_ranks_are_the_cpus(log: EventLog) -> None:
    (cpu, right, config), (gpu, found, _) = trained(log, "cpu"), trained(log, "cuda")
    for ours, theirs in zip(found.history, right.history, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=2e-3)
        assert ours["memory_loss"] == pytest.approx(theirs["memory_loss"], rel=2e-3)
        assert ours["valid_mrr"] == pytest.approx(theirs["valid_mrr"], rel=3e-2)
    assert found.best is not None and right.best is not None
    test = config.resolve_split(log).ranges(len(log))["test"][:500]
    for protocol in PROTOCOLS:
        walks = []
        for model in (cpu, gpu):
            model.weight.fill_(0.5)
            state = model.start()
            walks.append(rank_events(model.eval(), log, test, state, protocol=protocol))
            users, times = torch.tensor([1, 2]), torch.full((2,), float(log.time[-1]), dtype=torch.float64)
            assert torch.isfinite(model.score_query(users, times, None, state)).all()
        assert np.mean(1 / walks[0]) == pytest.approx(np.mean(1 / walks[1]), rel=3e-2)


def test_deterministic_gives_the_same_bits_twice(log: EventLog) -> None:
    """Though the experts learn beside each other."""
    (one, first, _), (other, second, _) = (trained(log, "cuda", "bfloat16", deterministic=True) for _ in range(2))
    numbers = "loss", "memory_loss", "valid_mrr"
    for ours, theirs in zip(first.history, second.history, strict=True):
        assert [ours[name] for name in numbers] == [theirs[name] for name in numbers]
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
