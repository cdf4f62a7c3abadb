"""The README of a run folder describes the run, including how validation ranked."""

from types import SimpleNamespace

import pytest
from training.toy_model import ToyConfig, log_in_memory, register

from dynedge.runs.folder import RunFolder
from dynedge.runs.readme import readme
from dynedge.runs.run_config import RunConfig
from dynedge.runs.train_run import train_run
from dynedge.training.config import TrainingConfig


@pytest.fixture(autouse=True)
def _toy_models():
    register()


def readme_of_run(folder, **training):
    config = RunConfig("toy", ToyConfig(), TrainingConfig(epochs=1, split="0.7,0.1,0.2", device="cpu", **training))
    with RunFolder(folder) as run:
        train_run(run, config, log_in_memory(), quiet=True)
    return (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("full_ranking_up_to", "ranked"),
    [
        (15, "each event's item ranked among all 15 items (protocol `full`)"),
        (
            14,
            "each event's item ranked among 15 items, sampled identically for every model (protocol `sampled-9999`)",
        ),
    ],
)
def test_readme_states_the_protocol_of_validation(tmp_path, full_ranking_up_to, ranked):
    assert ranked in readme_of_run(tmp_path / "run", full_ranking_up_to=full_ranking_up_to)


def test_readme_has_the_numbers_of_the_best_epoch(tmp_path):
    log = log_in_memory()
    times = {"seconds": 20.0, "valid_seconds": 10.0, "valid_protocol": "full"}
    mrrs = [(0.25, 0.5), (0.375, 0.625), (0.125, 0.75)]
    history = [{"valid_mrr": mrr, "valid_recall@10": recall, **times} for mrr, recall in mrrs]
    state = SimpleNamespace(history=history, best=SimpleNamespace(epoch=1, valid_mrr=0.375))
    text = readme(tmp_path / "run", RunConfig("toy", ToyConfig()), log, state)
    assert "Trained for 3 epochs in 1:30 min. Best epoch 2: validation MRR 0.3750, Recall@10 0.6250" in text
    assert f"{len(log):,} events, {log.num_users} users, {log.num_items} items" in text


def test_readme_before_the_end_of_training_names_the_command_to_resume(tmp_path):
    text = readme(tmp_path / "run", RunConfig("toy", ToyConfig()), log_in_memory(), None)
    assert "Training has not finished" in text
    assert "`dynedge train LOG --out run --resume`" in text
