"""Run folders: loading without the log, damaged folders, format version, locking."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from training.toy_model import ToyConfig, log_in_memory, register, write_log

from dynedge.config import from_toml
from dynedge.data.log import read_log
from dynedge.errors import DataError
from dynedge.evaluation.metrics import mean
from dynedge.evaluation.protocol import rank_events
from dynedge.runs.folder import VERSION, RunFolder, load_run, read_coverage
from dynedge.runs.run_config import RunConfig
from dynedge.runs.train_run import train_run
from dynedge.training.config import TrainingConfig
from dynedge.utils.jsonl import read_jsonl

CONFIG = RunConfig("toy", ToyConfig(), TrainingConfig(epochs=2, lr=0.02, split="0.7,0.1,0.2"))
DAMAGES = {
    "model.safetensors": b"junk",
    "state.safetensors": b"",
    "config.toml": b"\xff\xfe",
    "env.json": b"{}",
    "ids/log.json": b"{",
}


@pytest.fixture
def run(tmp_path):
    register()
    with RunFolder(tmp_path / "run") as folder:
        train_run(folder, CONFIG, log_in_memory(), quiet=True)
    return tmp_path / "run"


def test_a_run_loads_without_its_log(tmp_path):
    register()
    log = write_log(tmp_path / "log")
    with RunFolder(tmp_path / "run") as folder:
        train_run(folder, CONFIG, read_log(log), quiet=True)
    moved = shutil.move(log, tmp_path / "elsewhere")
    loaded = load_run(tmp_path / "run")
    assert loaded.log.user_ids.find("user 3") == 3
    assert loaded.log.item_ids[0] == 100
    assert loaded.log.category_ids[0][2] == "blue"
    assert len(loaded.log) == 0
    assert loaded.state["seen"].sum() == 420
    coverage = read_coverage(tmp_path / "run", loaded.log.num_items)
    assert (coverage.events, coverage.last_time) == (420, 419.0)
    assert torch.equal(torch.from_numpy(coverage.item_counts), loaded.state["seen"].long())
    ranks = rank_events(loaded.model, read_log(moved), range(420, 480), loaded.state)
    history = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert mean("mrr", ranks) == max(record["valid_mrr"] for record in history)


def test_the_config_of_a_run_reads_back(run):
    config = load_run(run).config
    assert from_toml(config, (run / "config.toml").read_text()) == config
    assert config.training.device in ("cpu", "cuda"), "auto is resolved"


@pytest.mark.parametrize("file", DAMAGES)
def test_a_damaged_run_is_a_data_error(run, file):
    (run / file).write_bytes(DAMAGES[file])
    with pytest.raises(DataError):
        load_run(run)


def test_a_model_that_does_not_fit_its_config_is_a_data_error(run):
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("dim = 4", "dim = 5"))
    with pytest.raises(DataError, match=r"model.safetensors does not fit the run's config.toml"):
        load_run(run)


def test_a_folder_of_another_format_version_can_only_be_replaced(run):
    env = json.loads((run / "env.json").read_text())
    assert env["version"] == VERSION
    (run / "env.json").write_text(json.dumps({**env, "version": 1}))
    message = f"has run format version 1, and this dynedge reads version {VERSION}"
    with pytest.raises(DataError, match=message):
        load_run(run)
    with pytest.raises(DataError, match=message), RunFolder(run, resume=True):
        pass
    with RunFolder(run, force=True) as folder:
        train_run(folder, CONFIG, log_in_memory(), quiet=True)
    assert load_run(run).config.name == "toy"


def test_a_saved_current_state_does_not_outlive_its_model(run):
    (run / "current_state.safetensors").write_bytes(b"of the model before")
    config = replace(CONFIG, training=replace(CONFIG.training, epochs=3))
    with RunFolder(run, resume=True) as folder:
        train_run(folder, config, log_in_memory(), quiet=True)
    assert not (run / "current_state.safetensors").exists()
    assert load_run(run).config.training.epochs == 3


def test_a_run_folder_is_locked_while_it_is_in_use(run):
    with RunFolder(run, resume=True):
        for flag in ("resume", "force"):
            with pytest.raises(DataError, match="run is in use by another process"), RunFolder(run, **{flag: True}):
                pass
    with RunFolder(run, resume=True):
        pass
