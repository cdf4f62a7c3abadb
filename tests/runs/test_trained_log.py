"""Runs whose log has grown: evaluation and resumption go on with the rows that the log had."""

import numpy as np
import pytest
from training import toy_model as toy

from dynedge.data.ingest.append import append
from dynedge.data.ingest.pipeline import prepare
from dynedge.data.ingest.schema import Schema
from dynedge.data.log import read_log
from dynedge.runs.evaluate_run import evaluate_run
from dynedge.runs.folder import IDS, MODEL, RunFolder
from dynedge.runs.run_config import recipe_config
from dynedge.runs.train_run import train_run
from dynedge.runs.trained_log import as_trained

pytestmark = pytest.mark.usefixtures("toy_models")
SCHEMA = Schema(item_features=("kind",))


def write_csv(path, start, count):
    user, item = toy.events(count, seed=start)
    rows = [f"{u},{i},{start + k},{'' if k < 50 else i % 3}" for k, (u, i) in enumerate(zip(user, item, strict=True))]
    path.write_text("\n".join(["user_id,item_id,timestamp,kind", *rows]) + "\n")
    return path


@pytest.fixture
def log(tmp_path):
    prepare(write_csv(tmp_path / "a.csv", 0, 300), tmp_path / "log", SCHEMA)
    return tmp_path / "log"


def train(folder, log, epochs, resume=False):
    from dynedge.config import set_key

    config = set_key(recipe_config("toy"), "training.epochs", epochs)
    with RunFolder(folder, resume=resume) as run:
        train_run(run, config, read_log(log), quiet=True)
    return (folder / MODEL).read_bytes()


def test_a_run_is_evaluated_and_resumed_on_the_log_that_it_knew(tmp_path, log):
    expected = train(tmp_path / "whole", log, 2)
    train(tmp_path / "run", log, 1)
    ranks = evaluate_run(tmp_path / "whole", quiet=True).ranks
    before = read_log(log)
    append(log, write_csv(tmp_path / "b.csv", 300, 100), SCHEMA)
    assert evaluate_run(tmp_path / "whole", quiet=True).log.fingerprint == before.fingerprint
    (tmp_path / "whole" / "ranks" / "full.json").unlink()
    again = evaluate_run(tmp_path / "whole", quiet=True)
    assert np.array_equal(again.ranks, ranks) and len(again.log) == 300
    assert train(tmp_path / "run", log, 2, resume=True) == expected


def test_another_log_is_left_as_it_is(tmp_path, log):
    train(tmp_path / "run", log, 1)
    ids = read_log(tmp_path / "run" / IDS)
    assert len(as_trained(read_log(log), ids)) == 300
    append(log, write_csv(tmp_path / "b.csv", 100, 300), SCHEMA, late="merge")
    assert len(as_trained(read_log(log), ids)) == 600, "late rows make it another log"
