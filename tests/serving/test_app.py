"""The service over HTTP, as a client meets it."""

import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from serving.small_run import bits, make_events, make_run, open_live
from starlette.testclient import TestClient

from dynedge.errors import UsageError
from dynedge.runs.evaluate_run import evaluate_run
from dynedge.serving import answers as questions
from dynedge.serving import drift as traces
from dynedge.serving import middleware as guard
from dynedge.serving.app import make_app
from dynedge.serving.batcher import Together, Wanted
from dynedge.serving.engine import BusyError, Engine
from dynedge.serving.journal import DiskFullError
from dynedge.serving.middleware import LOOPBACK

TIME = "2024-03-01T12:00:00Z"


@contextmanager
def serving(run, data, token=None):
    engine = Engine(run, data)
    app = make_app(engine, token, LOOPBACK)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        client.engine = engine
        yield client


@pytest.fixture
def client(runs_folder, tmp_path):
    with serving(make_run(runs_folder, "edge"), tmp_path / "data") as client:
        yield client


@pytest.fixture
def known(client):
    return client.engine.live.users[0], client.engine.live.items[0]


def body(events):
    keys = ("user_id", "item_id", "timestamp", "event_id")
    return {"events": [dict(zip(keys, (*event[:3], event.event_id), strict=True)) for event in events]}


def problem(response, status):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    told = response.json()
    assert told["status"] == status
    assert told["detail"].rstrip().endswith((".", "?"))
    return told["detail"]


def test_events_move_the_states_as_if_observed(client, runs_folder):
    events = make_events(runs_folder, 60)
    for at in range(0, 60, 20):
        answer = client.post("/events", json=body(events[at : at + 20]))
        assert answer.status_code == 200
        assert answer.json().keys() == {"accepted", "duplicates", "late"}
        assert answer.json()["accepted"] == 20
    assert client.post("/events", json=body(events[:5])).json() == {"accepted": 0, "duplicates": 5, "late": 0}
    expected = open_live(client.engine.run)
    late = int(expected.observe(events).label.sum())
    assert bits(client.engine.live) == bits(expected)
    told = client.get("/live").json()
    assert (told["events"], told["accepted"], told["duplicates"], told["late"]) == (60, 60, 5, late)
    assert 0 < told["users_moved"] <= 60
    assert len(told["seconds"]) == 120
    text = client.get("/metrics").text
    assert "dynedge_events_accepted_total 60.0" in text
    assert f"dynedge_events_late_total {late}.0" in text
    assert 'dynedge_requests_total{path="/events",status="200"} 4.0' in text


def test_recommendations(client, known):
    user, _ = known
    one = client.get(f"/users/{user}/recommendations", params={"k": 3}).json()
    assert (one["user_id"], one["known"]) == (user, True)
    assert len(one["items"]) == 3
    assert one["items"][0].keys() == {"item_id", "score"}
    many = client.post("/recommendations", json={"user_ids": [user, "nobody", user], "k": 3}).json()["users"]
    assert many[0] == many[2]
    assert [item["item_id"] for item in many[0]["items"]] == [item["item_id"] for item in one["items"]]
    together, alone = ([item["score"] for item in told["items"]] for told in (many[0], one))
    assert together == pytest.approx(alone, abs=1e-5)
    assert (many[1]["known"], len(many[1]["items"])) == (False, 3)
    assert many[1]["items"][0]["score"] >= many[1]["items"][1]["score"] > 0
    later = client.get(f"/users/{user}/recommendations", params={"k": 3, "time": TIME})
    earlier = client.get(f"/users/{user}/recommendations", params={"k": 3, "time": "2024-01-01"})
    assert later.status_code == 200
    assert earlier.json() == one  # the newest event is as early as it answers for
    seen = client.get(f"/users/{user}/recommendations", params={"k": 1000, "filter_seen": True}).json()
    assert 0 < len(seen["items"]) < len(client.engine.live.items)


def test_why(client, known, runs_folder):
    client.post("/events", json=body(make_events(runs_folder, 40, new=0, late=0)))
    user = make_events(runs_folder, 40, new=0, late=0)[-1].user
    told = client.get(f"/users/{user}/recommendations", params={"why": True}).json()
    plain = client.get(f"/users/{user}/recommendations").json()
    assert [item["score"] for item in told["items"]] == [item["score"] for item in plain["items"]]
    for item in told["items"]:
        shares = item["why"]["shares"]
        assert shares.keys() == {"history", "followed", "near", "popular", "states"}
        assert sum(shares.values()) == pytest.approx(1)
        assert min(shares.values()) >= 0
    assert any(item["why"]["near"] is not None for item in told["items"])
    stranger = client.get("/users/nobody/recommendations", params={"why": True}).json()
    assert stranger["items"][0]["why"]["shares"] == {"popular": 1.0}


def test_a_hypothetical_event_is_answered_and_forgotten(client, known):
    user, item = known
    before = bits(client.engine.live)
    told = client.post(f"/users/{user}/what-if", json={"item_id": item, "timestamp": TIME, "k": 5}).json()
    assert bits(client.engine.live) == before
    assert client.engine.journal.end == 0
    client.post("/events", json={"events": [{"user_id": user, "item_id": item, "timestamp": TIME}]})
    happened = client.get(f"/users/{user}/recommendations", params={"k": 5}).json()["items"]
    assert [{key: one[key] for key in ("item_id", "score")} for one in told["after"]] == happened
    ranks = {one["item_id"]: rank for rank, one in enumerate(told["before"], 1)}
    assert [one["rank_before"] for one in told["after"]] == [ranks.get(one["item_id"]) for one in told["after"]]
    assert problem(client.post("/users/nobody/what-if", json={"item_id": item}), 404)
    assert problem(client.post(f"/users/{user}/what-if", json={"item_id": "nothing"}), 404)


def test_looking_into_it(client, known, monkeypatch):
    monkeypatch.setattr(traces, "PAUSE", 0.0)
    user, item = known
    odd = "a/b?c d"
    for k in range(3):
        events = [{"user_id": user, "item_id": odd, "timestamp": 1709300000 + k}]
        assert client.post("/events", json={"events": events}).json()["accepted"] == 1
    timeline = client.get(f"/users/{user}/timeline", params={"limit": 2}).json()
    assert [event["time"] for event in timeline["events"]] == [1709300002, 1709300001]
    assert client.get(f"/users/{user}").json()["last"] == {"item_id": odd, "time": 1709300002.0}
    assert client.get("/items/a%2Fb%3Fc%20d").json() == {"item_id": odd, "known": True, "new": True, "events": 3}
    path = client.get(f"/users/{user}/drift").json()["path"]
    assert [point["time"] for point in path] == [1709300000, 1709300001, 1709300002]
    assert path[0]["step"] == path[0]["from_first"] == 0 < path[1]["step"]
    assert all(math.isfinite(value) for point in path for value in point.values())
    near = client.get(f"/items/{item}/similar", params={"k": 4}).json()["items"]
    assert len(near) == 4
    assert item not in [one["item_id"] for one in near]
    assert client.get("/search", params={"side": "items", "prefix": "A/B"}).json() == {"ids": [odd]}
    assert user in client.get("/search", params={"side": "users", "prefix": user[:3].upper()}).json()["ids"]
    for missing in ("/users/nobody", "/users/nobody/timeline", "/items/nothing/similar", "/items/nothing/drift"):
        problem(client.get(missing), 404)


def test_the_run_says_how_it_learned(runs_folder, tmp_path):
    run = shutil.copytree(make_run(runs_folder, "edge"), tmp_path / "run")
    with serving(run, tmp_path / "data") as client:
        told = client.get("/run").json()
        assert (told["model"], len(told["curve"]), told["metrics"]) == ("edge", 1, None)
        assert {"loss", "residual", "valid_mrr"} <= told["curve"][0].keys()
        assert len(told["longest_path"]["with"]) == len(told["longest_path"]["without"]) == 8
        evaluate_run(run, quiet=True)
        assert client.post("/reload").status_code == 200
        metrics = client.get("/run").json()["metrics"]
        low, high = metrics["test"]["intervals"]["mrr"]
        assert low <= metrics["test"]["mrr"] <= high


WRONG = {
    "not JSON": "{",
    "no events": {"events": []},
    "too many": {"events": [{"user_id": "u", "item_id": "i", "timestamp": 1}] * 1001},
    "an unknown key": {"events": [{"user_id": "u", "item_id": "i", "timestamp": 1, "colour": "red"}]},
    "no item": {"events": [{"user_id": "u", "timestamp": 1}]},
    "an empty id": {"events": [{"user_id": "", "item_id": "i", "timestamp": 1}]},
    "a long id": {"events": [{"user_id": "u" * 257, "item_id": "i", "timestamp": 1}]},
    "an id of another kind": {"events": [{"user_id": True, "item_id": "i", "timestamp": 1}]},
    "no time": {"events": [{"user_id": "u", "item_id": "i", "timestamp": "soon"}]},
    "the far future": {"events": [{"user_id": "u", "item_id": "i", "timestamp": 7e9}]},
    "before 1970": {"events": [{"user_id": "u", "item_id": "i", "timestamp": -1}]},
    "features it has none of": {"events": [{"user_id": "u", "item_id": "i", "timestamp": 1, "features": [1.0]}]},
    "features that are none": '{"events": [{"user_id": "u", "item_id": "i", "timestamp": 1, "features": [NaN]}]}',
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_events_are_refused_and_nothing_of_them_is_kept(client, wrong):
    given = WRONG[wrong]
    if not isinstance(given, str):
        good = {"user_id": "good", "item_id": "i", "timestamp": 1}
        answer = client.post("/events", json={"events": [good, *given["events"]] if given["events"] else []})
    else:
        answer = client.post("/events", content=given, headers={"content-type": "application/json"})
    problem(answer, 422)
    assert client.engine.journal.end == 0


def test_other_limits(client, known):
    user, _ = known
    problem(client.get(f"/users/{user}/recommendations", params={"k": 1001}), 422)
    problem(client.get(f"/users/{user}/recommendations", params={"time": "tomorrow"}), 422)
    long = b" " * (guard.LONGEST + 1)
    problem(client.post("/events", content=long, headers={"content-type": "application/json"}), 413)
    problem(client.post("/events", content=(long[:999] for _ in range(2000))), 413)  # without a length
    problem(client.get("/live", headers={"host": "evil.example"}), 421)
    assert client.get("/live", headers={"host": "[::1]:8000"}).status_code == 200
    problem(client.post("/reload", headers={"origin": "https://evil.example"}), 403)
    assert client.get("/live", headers={"origin": "http://127.0.0.1:8000"}).status_code == 200
    problem(client.get("/nowhere"), 404)
    problem(client.get("/page/../server.py"), 404)


def test_refusals_say_when_to_come_again(client, known, monkeypatch):
    def failing(error):
        def submit(*_):
            raise error

        monkeypatch.setattr(client.engine, "submit", submit)
        return client.post("/events", json={"events": [{"user_id": "u", "item_id": "i", "timestamp": 1}]})

    answer = failing(BusyError())
    problem(answer, 503)
    assert answer.headers["retry-after"] == "1"
    assert "questions go on" in problem(failing(DiskFullError("/data has no room for more events")), 507)
    monkeypatch.setattr(guard, "AT_ONCE", 0)
    answer = client.get("/live")
    problem(answer, 503)
    assert answer.headers["retry-after"] == "1"
    assert client.get("/health").status_code == client.get("/ready").status_code == 200


def test_a_token_is_asked_for(runs_folder, tmp_path):
    with serving(make_run(runs_folder, "edge"), tmp_path / "data", "secret") as client:
        assert client.get("/health").status_code == 200
        for wrong in ({}, {"authorization": "Bearer secret2"}, {"authorization": "Bearer sécret".encode()}):
            answer = client.get("/live", headers=wrong)
            assert "secret" not in problem(answer, 401)
        assert client.get("/live", headers={"authorization": "Bearer secret"}).status_code == 200


def test_a_rule_has_no_states_and_says_so(runs_folder, tmp_path):
    with serving(make_run(runs_folder, "next-300-unseen"), tmp_path / "data") as client:
        user, item = client.engine.live.users[0], client.engine.live.items[0]
        answer = client.post("/events", json={"events": [{"user_id": "ann", "item_id": item, "timestamp": TIME}]})
        assert answer.json()["accepted"] == 1
        assert "no vectors" in problem(client.get(f"/items/{item}/similar"), 422)
        assert "no states" in problem(client.get(f"/users/{user}/drift"), 422)
        assert client.get(f"/users/{user}/recommendations").json()["known"]


def test_questions_that_wait_are_answered_together(runs_folder, tmp_path):
    engine = Engine(make_run(runs_folder, "edge"), tmp_path / "data")
    users = [engine.live.users[row] for row in range(8)] + ["nobody"]
    alone = [questions.recommendations(engine.live, [user], 4)[0] for user in users]
    asked, plain = [], engine.live.recommend
    engine.live.recommend = lambda rows, *given, **more: asked.append(len(rows)) or plain(rows, *given, **more)
    with ThreadPoolExecutor(1) as pool:
        together = Together(engine, pool)
        with engine.lock:  # nobody is answered yet
            answers = [together.ask(user, Wanted(4, None, False)) for user in users]
            wrong = together.ask(users[0], Wanted(0, None, False))
        found = [answer.result() for answer in answers]
        with pytest.raises(UsageError):
            wrong.result()
    assert asked == [8, 1]
    for told, before in zip(found, alone, strict=True):
        assert (told["user_id"], told["known"]) == (before["user_id"], before["known"])
        assert [item["item_id"] for item in told["items"]] == [item["item_id"] for item in before["items"]]
        scores = [item["score"] for item in before["items"]]
        assert [item["score"] for item in told["items"]] == pytest.approx(scores, abs=1e-5)
    engine.close()
