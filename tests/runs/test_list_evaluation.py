"""Lists of sampled blocks of events are those of a pass that scores every event."""

import shutil

import numpy as np
from serving.small_run import make_run

from dynedge.evaluation.top_lists import sampled_blocks
from dynedge.runs import list_evaluation
from dynedge.runs.evaluate_run import evaluate_run


def test_events_between_the_blocks_are_applied(runs_folder, tmp_path, monkeypatch):
    run = shutil.copytree(make_run(runs_folder, "memory"), tmp_path / "run")
    ranked = evaluate_run(run, quiet=True)
    whole = list_evaluation._collect(ranked, quiet=True)
    assert np.array_equal(whole.events, np.arange(2700, 3000))
    monkeypatch.setattr(list_evaluation, "sampled_blocks", lambda events: sampled_blocks(events, 60, 3))
    found = list_evaluation.evaluate_lists(ranked, quiet=True)
    assert found["list_events"] == 60
    with np.load(run / "ranks" / "lists.npz") as lists:
        assert lists["events"].tolist() == [*range(2700, 2720), *range(2800, 2820), *range(2900, 2920)]
        assert np.array_equal(lists["items"], whole.items[lists["events"] - 2700])
        assert np.array_equal(lists["confidence"], whole.confidence[lists["events"] - 2700])
