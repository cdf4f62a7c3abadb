"""`dynedge train --from RUN`: the tables of a new model start from a run's vectors."""

import pytest
import torch
from serving.small_run import make_run

from dynedge.data.log import read_log
from dynedge.data.synthetic import synthesize
from dynedge.errors import DataError, UsageError
from dynedge.inference.session import Session
from dynedge.models.registry import find_entry
from dynedge.runs.initial_vectors import SIZE, start_from_vectors


def make_model(name, log):
    entry = find_entry(name)
    return entry.model.create(entry.recipe(name), log, len(log) * 8 // 10, 0)


@pytest.mark.parametrize(("name", "table"), [("sasrec", "items.tables.0"), ("gcmc", "x.0"), ("ctdne", "x")])
def test_tables_start_from_the_vectors_of_a_run(runs_folder, name, table):
    run = make_run(runs_folder, "edge")
    log = read_log(runs_folder / "log")
    model = make_model(name, log)
    before = model.state_dict()[table].clone()
    start_from_vectors(model, log, run)
    after, (users, items) = model.state_dict()[table], map(torch.from_numpy, Session.open(run).vectors())
    vectors = items if table.startswith("items") else users
    changed = after[: len(vectors), : vectors.shape[1]]
    cosine = torch.nn.functional.cosine_similarity(changed, vectors)
    assert cosine[vectors.norm(dim=1) > 0].min() > 0.999
    assert abs(float(changed.square().mean().sqrt()) - SIZE) < 0.02
    rest = slice(len(vectors)), slice(vectors.shape[1], None)
    assert torch.equal(after[rest], before[rest])


def test_mistakes(runs_folder, tmp_path):
    log = read_log(runs_folder / "log")
    model = make_model("sasrec", log)
    with pytest.raises(UsageError, match="the model memory has no vectors"):
        start_from_vectors(model, log, make_run(runs_folder, "memory"))
    with pytest.raises(UsageError, match="no tables of users or items"):
        start_from_vectors(make_model("memory", log), log, make_run(runs_folder, "edge"))
    synthesize("demo", tmp_path / "other", events=500, seed=3, quiet=True)
    other = read_log(tmp_path / "other")
    with pytest.raises(DataError, match="its users and items are not those of"):
        start_from_vectors(make_model("sasrec", other), other, make_run(runs_folder, "edge"))
