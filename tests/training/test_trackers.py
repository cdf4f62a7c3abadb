"""Experiment trackers: TensorBoard files and an MLflow store are read back; Weights & Biases by a stand-in."""

import sys
from types import SimpleNamespace

import pytest

from dynedge.errors import UsageError
from dynedge.training.logging import TrainingLogger
from dynedge.training.trackers import Trackers

TIMES = {"seconds": 2.0, "valid_seconds": 1.0, "events_per_s": 50.0, "valid_protocol": "full"}
RECORDS = [
    {"epoch": 1, "loss": 3.0, "valid_mrr": None, **TIMES},
    {"epoch": 2, "loss": 2.5, "valid_mrr": 0.2, "valid_recall@10": 0.5, **TIMES},
]
SETTINGS = {"name": "toy", "training.lr": 0.01}


def train(folder, *track):
    """Logs two epochs, as training does, the second after a crash."""
    for done in (0, 1):
        logger = TrainingLogger(folder, quiet=True, track=track, settings=SETTINGS)
        logger.start(RECORDS[:done], 2, 100)
        logger.log_epoch(RECORDS[done])
        logger.close()


def test_tensorboard_files_have_every_number(tmp_path):
    pytest.importorskip("tensorboard", reason="pip install 'dynedge[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path, "tensorboard")
    files = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(one.step, round(one.value, 6)) for one in files.Scalars("loss")] == [(1, 3.0), (2, 2.5)]
    assert [one.step for one in files.Scalars("valid_recall@10")] == [2]


@pytest.mark.filterwarnings("ignore")  # of MLflow's own dependencies
def test_a_local_mlflow_store_has_settings_and_numbers_in_one_run(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="pip install 'dynedge[mlflow]'")
    uri = f"sqlite:///{tmp_path / 'store.db'}"
    (tmp_path / "run").mkdir()
    train(tmp_path / "run", f"mlflow:{uri}")
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("dynedge").experiment_id])
    assert run.info.run_name == "run" and run.info.status == "FINISHED"
    assert run.data.params == {"name": "toy", "training.lr": "0.01"}
    assert run.data.metrics["valid_recall_at_10"] == 0.5 and "valid_protocol" not in run.data.metrics
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(one.step, one.value) for one in history] == [(1, 3.0), (2, 2.5)]


def test_weights_and_biases_gets_settings_and_numbers(tmp_path, monkeypatch):
    calls = []
    run = SimpleNamespace(log=lambda numbers, step: calls.append((step, numbers)), finish=lambda: calls.append("end"))
    stand_in = SimpleNamespace(init=lambda **options: calls.append(options) or run)
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    train(tmp_path, "wandb:songs")
    first, *logged = calls
    assert first["project"] == "songs" and first["config"] == SETTINGS and first["resume"] is None
    assert logged[0][0] == 1 and logged[0][1]["loss"] == 3.0 and "valid_mrr" not in logged[0][1]
    assert logged[2]["resume"] == "allow" and logged[-1] == "end"


def test_a_tracker_that_fails_later_is_left_out(tmp_path, monkeypatch, capsys):
    def log(numbers, step):
        raise ConnectionError("no route to host. Try later.")

    run = SimpleNamespace(log=log, finish=lambda: pytest.fail("it was left out"))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **options: run))
    trackers = Trackers(["wandb"], tmp_path)
    trackers.start({}, 0)
    for epoch in (1, 2):
        trackers.log(epoch, {"loss": 1.0})
    trackers.close()
    assert capsys.readouterr().err == "--track wandb failed and is left out from now on: no route to host.\n"


def test_a_tracker_that_cannot_be_opened_is_a_usage_error(tmp_path, monkeypatch):
    def init(**options):
        raise OSError("no network")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    with pytest.raises(UsageError, match="--track wandb: no network"):
        Trackers(["wandb"], tmp_path).start({}, 0)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"pip install 'dynedge\[wandb\]'"):
        Trackers(["wandb"], tmp_path)
