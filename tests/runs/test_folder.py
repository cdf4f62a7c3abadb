"""Run folders: format version, and locking."""

import json

import pytest
from training.toy_model import ToyConfig, log_in_memory, register

from dynedge.errors import DataError
from dynedge.runs.folder import VERSION, RunFolder, load_run
from dynedge.runs.run_config import RunConfig
from dynedge.runs.train_run import train_run
from dynedge.training.config import TrainingConfig

CONFIG = RunConfig("toy", ToyConfig(), TrainingConfig(epochs=1, split="0.7,0.1,0.2", device="cpu"))


@pytest.fixture
def run(tmp_path):
    register()
    with RunFolder(tmp_path / "run") as folder:
        train_run(folder, CONFIG, log_in_memory(), quiet=True)
    return tmp_path / "run"


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


def test_a_run_folder_is_locked_while_it_is_in_use(run):
    with RunFolder(run, resume=True):
        for flag in ("resume", "force"):
            with pytest.raises(DataError, match="run is in use by another process"), RunFolder(run, **{flag: True}):
                pass
    with RunFolder(run, resume=True):
        pass
