"""The HTTP service from a client's point of view."""

import asyncio
import json
import math
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from serving.small_run import make_events, make_run, make_run_with_features, state_bits
from starlette.testclient import TestClient

from dynedge.errors import UsageError
from dynedge.inference.recommend import recommend
from dynedge.inference.rules import Rules
from dynedge.inference.session import Session
from dynedge.runs.evaluate_run import evaluate_run
from dynedge.serving import drift, middleware
from dynedge.serving.app import make_app
from dynedge.serving.batcher import QueryOptions, RequestBatcher
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
    return client.engine.session.users[0], client.engine.session.items[0]


def body(events):
    keys = ("user_id", "item_id", "timestamp", "event_id")
    return {"events": [dict(zip(keys, (*event[:3], event.event_id), strict=True)) for event in events]}


def problem(response, status):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    content = response.json()
    assert content["status"] == status
    assert content["detail"].rstrip().endswith((".", "?"))
    return content["detail"]


def test_events_update_the_state_like_observe(client, runs_folder):
    events = make_events(runs_folder, 60)
    for at in range(0, 60, 20):
        answer = client.post("/events", json=body(events[at : at + 20]))
        assert answer.status_code == 200
        assert answer.json().keys() == {"accepted", "duplicates", "late", "position"}
        assert answer.json()["accepted"] == 20
    again = client.post("/events", json=body(events[:5])).json()
    assert again == {"accepted": 0, "duplicates": 5, "late": 0, "position": "5"}
    expected = Session.open(client.engine.run)
    late = int(expected.observe(events).label.sum())
    assert state_bits(client.engine.session) == state_bits(expected)
    activity = client.get("/activity").json()
    counts = [activity[key] for key in ("journal_events", "accepted", "duplicates", "late")]
    assert counts == [60, 60, 5, late]
    assert 0 < activity["user_state_updates"] <= 60
    assert len(activity["per_second"]) == 120
    text = client.get("/metrics").text
    assert "dynedge_events_accepted_total 60.0" in text
    assert f"dynedge_events_late_total {late}.0" in text
    assert 'dynedge_requests_total{path="/events",status="200"} 4.0' in text


def test_recommendations_for_one_user_and_for_many(client, known):
    user, _ = known
    one = client.get(f"/users/{user}/recommendations", params={"k": 3}).json()
    assert (one["user_id"], one["known"]) == (user, True)
    assert len(one["items"]) == 3
    assert one["items"][0].keys() == {"item_id", "score", "metadata"}
    many = client.post("/recommendations", json={"user_ids": [user, "nobody", user], "k": 3}).json()["users"]
    assert many[0] == many[2]
    assert [item["item_id"] for item in many[0]["items"]] == [item["item_id"] for item in one["items"]]
    batched, alone = ([item["score"] for item in answer["items"]] for answer in (many[0], one))
    assert batched == pytest.approx(alone, abs=1e-5)
    assert (many[1]["known"], len(many[1]["items"])) == (False, 3)
    assert many[1]["items"][0]["score"] >= many[1]["items"][1]["score"] > 0
    later = client.get(f"/users/{user}/recommendations", params={"k": 3, "time": TIME})
    earlier = client.get(f"/users/{user}/recommendations", params={"k": 3, "time": "2024-01-01"})
    assert later.status_code == 200
    assert earlier.json() == one  # queries before the newest event are answered at its time
    seen = client.get(f"/users/{user}/recommendations", params={"k": 1000, "filter_seen": True}).json()
    assert 0 < len(seen["items"]) < len(client.engine.session.items)


def test_rules_by_url_and_by_body_are_those_of_the_library(client, known):
    user, item = known
    denied = client.get(f"/users/{user}/recommendations").json()["items"][0]["item_id"]
    rules = {"deny": [denied], "boost": {"genre": {"blues": 1.5}}, "max_per": {"genre": 2}, "diversity": 0.3}
    texts = {"deny": [f'item_id="{denied}"'], "boost": ["genre=blues:1.5"], "max_per": ["genre=2"], "diversity": 0.3}
    expected = recommend(client.engine.session, [user], 5, rules=Rules.of(**rules)).to_records()[0]["items"]
    assert len(expected) == 4
    assert client.get(f"/users/{user}/recommendations", params={"k": 5, **texts}).json()["items"] == expected
    body = {"user_ids": [user, "nobody"], "k": 5, **rules}
    known_user, nobody = client.post("/recommendations", json=body).json()["users"]
    assert known_user["items"] == expected
    assert denied not in [one["item_id"] for one in nobody["items"]]
    what_if = client.post(f"/users/{user}/what-if", json={"item_id": item, "k": 5, **rules}).json()
    assert what_if["before"] == expected
    assert client.get(f"/items/{item}").json()["metadata"] == expected_metadata(client, item)


def expected_metadata(client, item):
    session = client.engine.session
    return session.item_metadata.records(np.array([session.items.find(item)]))[0]


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"allow": {"artist": ["x"]}}, "no column 'artist': their columns are: genre"),
        ({"allow": {"genre": ["opera"]}}, "no item has the genre 'opera'"),
        ({"deny": ["x"] * 10_001}, "deny"),
        ({"allow": {str(k): [] for k in range(17)}}, "allow"),
        ({"boost": {"genre": {"blues": 1001}}}, "boost"),
        ({"max_per": {"genre": 0}}, "max_per"),
        ({"max_per": {"genre": True}}, "max_per"),
        ({"min_score": "high"}, "min_score"),
        ({"diversity": 2}, "diversity"),
        ({"diversity": 0.5, "k": 1000, "user_ids": ["a"] * 11}, "10,000 items"),
        ({"k": 1000, "user_ids": ["a"] * 101}, "100,000 items"),
        ({"rules": {}}, "rules"),
    ],
)
def test_wrong_rules_are_refused(client, known, rules, words):
    assert words in problem(client.post("/recommendations", json={"user_ids": [known[0]], **rules}), 422)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("allow", "genre", "COLUMN=A,B"),
        ("deny", "item_id=@/etc/hostname", None),
        ("boost", "genre=blues:nan", "between -1000 and 1000"),
        ("max_per", "genre=many", "max_per 'genre=many' should end in a number"),
        ("allow", "x" * 5000, "allow"),
    ],
)
def test_wrong_rules_in_a_url_are_refused(client, known, name, text, words):
    answer = client.get(f"/users/{known[0]}/recommendations", params={name: text})
    if words is None:  # an id like any other: no file is read
        assert answer.status_code == 200
    else:
        assert words in problem(answer, 422)


def test_unknown_query_parameters_are_refused(client, known):
    """A mistyped rule would change nothing, silently."""
    of_user = f"/users/{known[0]}/recommendations"
    assert "did you mean deny?" in problem(client.get(of_user, params={"k": 3, "denny": "genre=folk"}), 422)
    for path in (f"/users/{known[0]}", f"/users/{known[0]}/history", "/activity", "/items/x/similar"):
        assert "'nonsense' is no query parameter" in problem(client.get(path, params={"nonsense": ""}), 422)
    assert "min_position" in problem(client.post("/recommendations?k=3", json={"user_ids": [known[0]]}), 422)
    assert client.get("/health", params={"probe": 1}).status_code == 200


def test_explanations(client, known, runs_folder):
    client.post("/events", json=body(make_events(runs_folder, 40, new=0, late=0)))
    user = make_events(runs_folder, 40, new=0, late=0)[-1].user
    answer = client.get(f"/users/{user}/recommendations", params={"explain": True}).json()
    plain = client.get(f"/users/{user}/recommendations").json()
    assert [item["score"] for item in answer["items"]] == [item["score"] for item in plain["items"]]
    for item in answer["items"]:
        shares = item["explanation"]["shares"]
        assert shares.keys() == {"history", "followed", "near", "popular", "states"}
        assert sum(shares.values()) == pytest.approx(1)
        assert min(shares.values()) >= 0
    assert any(item["explanation"]["similar_to"] is not None for item in answer["items"])
    unknown = client.get("/users/nobody/recommendations", params={"explain": True}).json()
    assert unknown["items"][0]["explanation"]["shares"] == {"popular": 1.0}


def test_metrics_count_events_and_states(client, known):
    user, item = known
    newest = client.engine.session.coverage.last_time
    events = [
        {"user_id": name, "item_id": item, "timestamp": newest + 10 - k, "event_id": str(k)}
        for k, name in enumerate((user, "ann", "bob"))
    ]
    assert client.post("/events", json={"events": events}).json()["late"] == 2
    client.post("/events", json={"events": events[:1]})
    text = client.get("/metrics").text
    values = dict(line.split() for line in text.splitlines() if not line.startswith("#") and "{" not in line)
    expected = {"events_accepted_total": 3, "events_duplicate_total": 1, "events_late_total": 2}
    expected |= {"user_state_updates_total": 3, "item_state_updates_total": 1, "journal_position": 3}
    expected |= {"users": len(client.engine.session.users), "items": len(client.engine.session.items)}
    assert {name: float(values[f"dynedge_{name}"]) for name in expected} == expected
    assert 'dynedge_requests_total{path="/events",status="200"} 2.0' in text
    activity = client.get("/activity").json()
    counts = ("accepted", "duplicates", "late", "user_state_updates", "item_state_updates", "journal_events")
    assert [activity[name] for name in counts] == [3, 1, 2, 3, 1, 3]
    assert activity["newest_event_time"] == newest + 10


def test_what_if_answers_and_stores_nothing(client, known):
    user, item = known
    before = state_bits(client.engine.session)
    answer = client.post(f"/users/{user}/what-if", json={"item_id": item, "timestamp": TIME, "k": 5}).json()
    assert state_bits(client.engine.session) == before
    assert client.engine.journal.end == 0
    client.post("/events", json={"events": [{"user_id": user, "item_id": item, "timestamp": TIME}]})
    happened = client.get(f"/users/{user}/recommendations", params={"k": 5}).json()["items"]
    assert [{key: one[key] for key in ("item_id", "score", "metadata")} for one in answer["after"]] == happened
    ranks = {one["item_id"]: rank for rank, one in enumerate(answer["before"], 1)}
    assert [one["rank_before"] for one in answer["after"]] == [ranks.get(one["item_id"]) for one in answer["after"]]
    assert problem(client.post("/users/nobody/what-if", json={"item_id": item}), 404)
    assert problem(client.post(f"/users/{user}/what-if", json={"item_id": "nothing"}), 404)


def test_users_items_history_drift_and_search(client, known, monkeypatch):
    monkeypatch.setattr(drift, "PAUSE", 0.0)
    user, item = known
    odd = "a/b?c d"
    for k in range(3):
        events = [{"user_id": user, "item_id": odd, "timestamp": 1709300000 + k}]
        assert client.post("/events", json={"events": events}).json()["accepted"] == 1
    history = client.get(f"/users/{user}/history", params={"limit": 2}).json()
    assert [event["time"] for event in history["events"]] == [1709300002, 1709300001]
    assert client.get(f"/users/{user}").json()["last_event"] == {"item_id": odd, "time": 1709300002.0}
    item_answer = {"item_id": odd, "in_training_log": False, "events": 3, "metadata": {}, "position": "3"}
    assert client.get("/items/a%2Fb%3Fc%20d").json() == item_answer
    points = client.get(f"/users/{user}/drift").json()["points"]
    assert [point["time"] for point in points] == [1709300000, 1709300001, 1709300002]
    assert points[0]["step"] == points[0]["distance_from_first"] == 0 < points[1]["step"]
    assert all(math.isfinite(value) for point in points for value in point.values())
    similar = client.get(f"/items/{item}/similar", params={"k": 4}).json()["items"]
    assert len(similar) == 4
    assert item not in [one["item_id"] for one in similar]
    assert client.get("/search", params={"side": "items", "prefix": "A/B"}).json() == {"ids": [odd]}
    assert user in client.get("/search", params={"side": "users", "prefix": user[:3].upper()}).json()["ids"]
    for missing in ("/users/nobody", "/users/nobody/history", "/items/nothing/similar", "/items/nothing/drift"):
        problem(client.get(missing), 404)


def test_line_breaks_in_ids_are_part_of_the_id(client, known):
    user, item = known
    events = [{"user_id": "line\nbreak", "item_id": item, "timestamp": 1709300000}]
    assert client.post("/events", json={"events": events}).json()["accepted"] == 1
    assert client.get("/users/line%0Abreak/recommendations").json()["known"]
    assert client.get("/users/line%0Abreak").json()["user_id"] == "line\nbreak"
    problem(client.get(f"/users/{user}%0A"), 404)
    assert not client.get(f"/users/{user}%0A/recommendations").json()["known"]


def test_run_info_has_learning_curve_and_metrics(runs_folder, tmp_path):
    run = shutil.copytree(make_run(runs_folder, "edge"), tmp_path / "run")
    with serving(run, tmp_path / "data") as client:
        info = client.get("/run").json()
        assert (info["model"], len(info["learning_curve"]), info["metrics"]) == ("edge", 1, None)
        assert {"loss", "residual", "valid_mrr"} <= info["learning_curve"][0].keys()
        assert {key: len(paths) for key, paths in info["longest_path"].items()} == {
            "with_dnodes": 8,
            "without_dnodes": 8,
        }
        evaluate_run(run, quiet=True)
        assert client.post("/reload").status_code == 200
        metrics = client.get("/run").json()["metrics"]
        low, high = metrics["test"]["intervals"]["mrr"]
        assert low <= metrics["test"]["mrr"] <= high


INVALID = {
    "not JSON": "{",
    "no events": {"events": []},
    "too many": {"events": [{"user_id": "u", "item_id": "i", "timestamp": 1}] * 1001},
    "an unknown key": {"events": [{"user_id": "u", "item_id": "i", "timestamp": 1, "colour": "red"}]},
    "no item": {"events": [{"user_id": "u", "timestamp": 1}]},
    "an empty id": {"events": [{"user_id": "", "item_id": "i", "timestamp": 1}]},
    "a long id": {"events": [{"user_id": "u" * 257, "item_id": "i", "timestamp": 1}]},
    "an id with a zero byte": {"events": [{"user_id": "a\0b", "item_id": "i", "timestamp": 1}]},
    "an event id with a zero byte": {"events": [{"user_id": "u", "item_id": "i", "timestamp": 1, "event_id": "\0"}]},
    "an id of another type": {"events": [{"user_id": True, "item_id": "i", "timestamp": 1}]},
    "an invalid time": {"events": [{"user_id": "u", "item_id": "i", "timestamp": "soon"}]},
    "the far future": {"events": [{"user_id": "u", "item_id": "i", "timestamp": 7e9}]},
    "before 1970": {"events": [{"user_id": "u", "item_id": "i", "timestamp": -1}]},
    "400 digits": f'{{"events": [{{"user_id": "u", "item_id": "i", "timestamp": {10**400}}}]}}',
    "unexpected features": {"events": [{"user_id": "u", "item_id": "i", "timestamp": 1, "features": [1.0]}]},
    "infinite features": '{"events": [{"user_id": "u", "item_id": "i", "timestamp": 1, "features": [NaN]}]}',
}


EVENT = {"user_id": "u", "item_id": "i", "timestamp": 1}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"events": [EVENT, EVENT | {"timestamp": "soon"}]}, "events.1: timestamp 'soon' should be a number"),
        ({"events": [EVENT | {"user_id": None}]}, "events.0.user_id: input should be a valid string, or input"),
        ({"events": [EVENT | {"user_id": "x" * 257}]}, "events.0.user_id: string should have at most 256"),
        ({"events": [EVENT | {"user_id": 2**70}]}, "events.0.user_id: input should be less than or equal"),
        ('{"events": [}', "the body is not valid JSON: "),
        ('{"a":' * 5000, "nested too deeply"),
    ],
)
def test_refusals_name_the_event_and_what_is_wrong(client, content, words):
    content = content if isinstance(content, str) else json.dumps(content)
    answer = client.post("/events", content=content, headers={"content-type": "application/json"})
    assert words in problem(answer, answer.status_code)


def test_a_body_of_another_content_type_is_named(client):
    answer = client.post("/events", content=json.dumps({"events": [EVENT]}), headers={"content-type": "text/plain"})
    assert "Content-Type: application/json" in problem(answer, 422)


def test_too_many_values_of_a_rule_are_not_a_wrong_type(client, known):
    asked = {"user_ids": [known[0]]}
    many = client.post("/recommendations", json=asked | {"allow": {"genre": ["x"] * 10_001}})
    assert problem(many, 422).startswith("allow.genre: list should have at most 10000 items")
    wide = client.post("/recommendations", json=asked | {"deny": {f"c{k}": ["x"] for k in range(17)}})
    assert problem(wide, 422).startswith("deny: dictionary should have at most 16 items")


def test_an_empty_list_is_explained(client, known):
    answer = client.get(f"/users/{known[0]}/recommendations", params={"allow": "item_id=", "explain": True})
    assert (answer.status_code, answer.json()["items"]) == (200, [])


@pytest.mark.parametrize("case", INVALID)
def test_invalid_events_are_refused_and_nothing_is_stored(client, case):
    content = INVALID[case]
    if not isinstance(content, str):
        valid = {"user_id": "valid", "item_id": "i", "timestamp": 1}
        answer = client.post("/events", json={"events": [valid, *content["events"]] if content["events"] else []})
    else:
        answer = client.post("/events", content=content, headers={"content-type": "application/json"})
    problem(answer, 422)
    assert client.engine.journal.end == 0


def test_limits_on_parameters_bodies_hosts_and_origins(client, known):
    user, _ = known
    problem(client.get(f"/users/{user}/recommendations", params={"k": 1001}), 422)
    for moment in ("tomorrow", "1e300", "9999-12-31"):
        problem(client.get(f"/users/{user}/recommendations", params={"time": moment, "explain": True}), 422)
        problem(client.post(f"/users/{user}/what-if", json={"item_id": "i", "timestamp": moment}), 422)
    long = b" " * (middleware.MAX_BODY_BYTES + 1)
    problem(client.post("/events", content=long, headers={"content-type": "application/json"}), 413)
    problem(client.post("/events", content=(long[:999] for _ in range(2000))), 413)  # without a length
    problem(client.get("/activity", headers={"host": "evil.example"}), 421)
    assert client.get("/activity", headers={"host": "[::1]:8000"}).status_code == 200
    problem(client.post("/reload", headers={"origin": "https://evil.example"}), 403)
    assert client.get("/activity", headers={"origin": "http://127.0.0.1:8000"}).status_code == 200
    problem(client.get("/nowhere"), 404)
    problem(client.get("/page/../server.py"), 404)
    problem(client.get(f"/page/{'x' * 300}"), 404)
    problem(client.get("/users/a%00b/recommendations"), 422)
    for path in ("/health", "/activity", "/", f"/users/{user}"):
        answer = client.head(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, client.get(path).headers["content-type"])
    problem(client.put("/activity"), 405)
    many_digits = '{"events": [{"user_id": "u", "item_id": "i", "timestamp": 1' + "0" * 9000 + "}]}"
    problem(client.post("/events", content=many_digits, headers={"content-type": "application/json"}), 400)


def test_the_documentation_loads_nothing_from_other_hosts(client):
    answer = client.get("/docs")
    assert "POST /events" in answer.text
    assert "://" not in answer.text
    assert client.get("/redoc").status_code == 404


def test_refusals_say_when_to_retry(client, known, monkeypatch):
    def failing(error):
        def submit(*_):
            raise error

        monkeypatch.setattr(client.engine, "submit", submit)
        return client.post("/events", json={"events": [{"user_id": "u", "item_id": "i", "timestamp": 1}]})

    answer = failing(BusyError())
    problem(answer, 503)
    assert answer.headers["retry-after"] == "1"
    assert "Queries still work" in problem(failing(DiskFullError("the disk of /data is full")), 507)
    monkeypatch.setattr(middleware, "MAX_CONCURRENT_REQUESTS", 1)
    assert [client.get("/activity").status_code for _ in range(3)] == [200] * 3, "one after the other"
    monkeypatch.setattr(middleware, "MAX_CONCURRENT_REQUESTS", 0)
    answer = client.get("/activity")
    problem(answer, 503)
    assert answer.headers["retry-after"] == "1"
    assert client.get("/health").status_code == client.get("/ready").status_code == 200


def test_a_token_is_required(runs_folder, tmp_path):
    with serving(make_run(runs_folder, "edge"), tmp_path / "data", "secret") as client:
        assert client.get("/health").status_code == 200
        values = ("secret2", "secre", "s", "", "Secret", "sécret")
        values = *(f"Bearer {value}".encode() for value in values), "secret", "Basic secret", "Bearer"
        for wrong in ({}, *({"authorization": value} for value in values)):
            answer = client.get("/activity", headers=wrong)
            assert "secret" not in problem(answer, 401)
        for scheme in ("Bearer", "bearer", "BEARER "):
            assert client.get("/activity", headers={"authorization": f"{scheme} secret"}).status_code == 200


def test_a_model_without_states_or_vectors_says_so(runs_folder, tmp_path):
    with serving(make_run(runs_folder, "next-300-unseen"), tmp_path / "data") as client:
        user, item = client.engine.session.users[0], client.engine.session.items[0]
        answer = client.post("/events", json={"events": [{"user_id": "ann", "item_id": item, "timestamp": TIME}]})
        assert answer.json()["accepted"] == 1
        assert "no item vectors" in problem(client.get(f"/items/{item}/similar"), 422)
        assert "no states" in problem(client.get(f"/users/{user}/drift"), 422)
        assert client.get(f"/users/{user}/recommendations").json()["known"]


def test_concurrent_requests_are_scored_in_one_batch(runs_folder, tmp_path):
    engine = Engine(make_run(runs_folder, "edge"), tmp_path / "data")
    users = [engine.session.users[row] for row in range(8)] + ["nobody"]
    alone = [recommend(engine.session, [user], 4).to_records()[0] for user in users]
    batches, top_items = [], engine.session.top_items
    engine.session.top_items = lambda rows, *args, **kwargs: (
        batches.append(len(rows)) or top_items(rows, *args, **kwargs)
    )
    with ThreadPoolExecutor(1) as pool:
        batcher = RequestBatcher(engine, pool)
        with engine.lock:  # requests have to wait
            futures = [batcher.submit(user, QueryOptions(4, None, Rules())) for user in users]
            invalid = batcher.submit(users[0], QueryOptions(0, None, Rules()))
        answers = [future.result().recommendations.to_record() for future in futures]
        with pytest.raises(UsageError):
            invalid.result()
    assert batches == [8, 1]
    for batched, single in zip(answers, alone, strict=True):
        assert (batched["user_id"], batched["known"]) == (single["user_id"], single["known"])
        assert [item["item_id"] for item in batched["items"]] == [item["item_id"] for item in single["items"]]
        scores = [item["score"] for item in single["items"]]
        assert [item["score"] for item in batched["items"]] == pytest.approx(scores, abs=1e-5)
    engine.close()


def test_a_short_query_without_others_is_answered_in_the_event_loop(runs_folder, tmp_path, monkeypatch):
    engine = Engine(make_run(runs_folder, "edge"), tmp_path / "data")
    users, options = [str(engine.session.users[row]) for row in range(3)], QueryOptions(4, None, Rules())
    calls, top_items = [], engine.session.top_items
    engine.session.top_items = lambda rows, *args, **kwargs: (
        calls.append((len(rows), threading.current_thread() is threading.main_thread()))
        or top_items(rows, *args, **kwargs)
    )

    async def ask():
        first = await batcher.answer(users[0], options)  # nobody knows yet how long a query takes
        engine.lock.acquire(), engine.lock.release()  # the other thread releases it after its answer
        assert (
            await batcher.answer(users[0], options)
        ).recommendations.to_record() == first.recommendations.to_record()
        await asyncio.gather(*(batcher.answer(user, options) for user in users))
        with engine.lock:
            waiting = asyncio.create_task(batcher.answer(users[0], options))
            await asyncio.sleep(0.01)
        await waiting
        engine.lock.acquire(), engine.lock.release()  # the other thread releases it after its answer
        with pytest.raises(UsageError):
            await batcher.answer(users[0], QueryOptions(0, None, Rules()))
        monkeypatch.setattr("dynedge.serving.batcher.SHORT_SECONDS", 0.0)
        await batcher.answer(users[0], options)

    monkeypatch.setattr("dynedge.serving.batcher.SHORT_SECONDS", 60.0)
    with ThreadPoolExecutor(1) as pool:
        batcher = RequestBatcher(engine, pool)
        asyncio.run(ask())
    assert calls == [(1, False), (1, True), (3, False), (1, False), (1, True), (1, False)]
    engine.close()


@pytest.mark.parametrize("value", ["1e39", "-1e39", "1e400", "NaN", "Infinity"])
def test_features_that_are_infinite_in_float32_are_refused(runs_folder, tmp_path, value):
    with serving(make_run_with_features(runs_folder), tmp_path / "data") as client:
        content = f'{{"events": [{{"user_id": "u", "item_id": "i", "timestamp": 1, "features": [1, {value}]}}]}}'
        problem(client.post("/events", content=content, headers={"content-type": "application/json"}), 422)
        assert client.engine.journal.end == 0


def test_events_that_were_not_applied_are_reported(runs_folder, tmp_path):
    with serving(make_run_with_features(runs_folder), tmp_path / "data") as client:
        assert "events_not_applied" not in client.get("/ready").json()
        client.engine.session.model.event.weight.data.fill_(10.0)
        event = {"user_id": "u", "item_id": "i", "timestamp": TIME, "features": [3e38, 3e38]}
        assert client.post("/events", json={"events": [event]}).json()["accepted"] == 1
        assert client.get("/ready").json()["events_not_applied"] == 1
        assert "dynedge_events_not_applied_total 1.0" in client.get("/metrics").text


def test_an_event_far_ahead_of_the_clock_is_refused(client, known):
    user, item = known
    for ahead, status in ((60, 200), (82800, 422)):
        event = {"user_id": user, "item_id": item, "timestamp": time.time() + ahead}
        assert client.post("/events", json={"events": [event]}).status_code == status
