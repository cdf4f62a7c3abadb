"""Integer ids have one text, their plain decimal form, at every runs_folder where a person passes an id."""

import json

import numpy as np
import pytest
from starlette.testclient import TestClient

import dynedge
from dynedge import cli
from dynedge.data.log import EventLog
from dynedge.serving.app import make_app
from dynedge.serving.engine import Engine

TEXTS = ["42", "042", "+42", "4_2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose users are 0 to 49 and whose items are 0 to 19, as integers."""
    rng = np.random.default_rng(0)
    user, item = np.concatenate([np.arange(50), rng.integers(0, 50, 950)]), rng.integers(0, 20, 1000)
    log = EventLog.from_arrays(user, item, 60.0 * np.arange(1000), num_users=50, num_items=20)
    out = tmp_path_factory.mktemp("ids") / "run"
    dynedge.Edge(epochs=1, windows=4, dim=8).fit(log).save(out)
    return out


def test_recommend_in_python(run):
    model = dynedge.Edge.load(run)
    answer = model.recommend([*TEXTS, 42], k=2)
    assert answer.unknown == ("042", "+42", "4_2")
    assert model.recommend(42, k=2).of(42) == answer.of(42)


def test_update_in_python(run):
    model = dynedge.Edge.load(run)
    model.update((["42", 42], ["7", 7], [60_000.0, 60_001.0]))
    assert not model._session.users.added
    assert not model._session.items.added
    for text in TEXTS[1:]:  # other ids
        model.update(([42, text], [7, text], [60_002.0, 60_003.0]))
    assert model._session.users.added == model._session.items.added == list(TEXTS[1:])


def test_the_recommend_command(run, capsys):
    assert cli.run(["recommend", str(run), "--users", ",".join(TEXTS), "--k", "2", "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)["users"]
    assert [(one["user_id"], one["known"]) for one in answers] == [
        (42, True),
        ("042", False),
        ("+42", False),
        ("4_2", False),
    ]


def test_the_service(run, tmp_path):
    engine = Engine(run, tmp_path / "data")
    with TestClient(make_app(engine), base_url="http://127.0.0.1") as client:
        answers = client.post("/recommendations", json={"user_ids": [*TEXTS, 42], "k": 2}).json()["users"]
        assert [one["known"] for one in answers] == [True, False, False, False, True]
        assert answers[0] == answers[4]
        events = [{"user_id": text, "item_id": 7, "timestamp": 60_000} for text in TEXTS]
        assert client.post("/events", json={"events": events}).json()["accepted"] == 4
        assert len(engine.session.users) == 53  # three new users
        assert client.get("/users/042").json()["user_id"] == "042"
        assert client.get("/users/42").json()["user_id"] == 42
