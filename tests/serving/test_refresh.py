"""`dynedge refresh` and `serve --learn`: a served run learns from the events that the service received."""

import json
import shutil
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection

import pytest
import torch
from models.every_model import assert_same_state
from serving.small_run import TRAINED, make_run

from dynedge.data.log import read_log
from dynedge.data.windows import Window
from dynedge.inference.event_input import Event
from dynedge.inference.recommend import recommend
from dynedge.inference.session import Session
from dynedge.runs.folder import RUN_FILES, load_run
from dynedge.runs.manifest import write_manifest
from dynedge.serving import refresh as refreshing
from dynedge.serving.engine import Engine
from dynedge.serving.learner import BackgroundLearner
from dynedge.serving.sqlite_journal import JOURNAL, SqliteJournal
from dynedge.utils.tensor_io import load_tensors, save_tensors


@pytest.fixture
def served(runs_folder, tmp_path):
    """A copy of a run and of its log, and a journal with 300 events after the log's end, a new user among them."""
    run = shutil.copytree(make_run(runs_folder, "memory"), tmp_path / "run")
    shutil.copytree(runs_folder / "log", tmp_path / "log")
    metadata = run / "ids" / "log.json"
    metadata.write_text(metadata.read_text().replace(str(runs_folder / "log"), str(tmp_path / "log")))
    write_manifest(run, RUN_FILES)
    log = read_log(tmp_path / "log")
    end = float(log.time[-1])

    def event(k):
        user, item = log.user_ids[int(log.user[TRAINED + k])], log.item_ids[int(log.item[TRAINED + k])]
        return Event("somebody new" if k % 10 == 0 else str(user), str(item), end + 1 + k, (), f"event {k}")

    data = tmp_path / "data"
    data.mkdir()
    journal = SqliteJournal(data / JOURNAL)
    journal.append([event(k) for k in range(300)])
    yield run, data, journal
    journal.close()


def test_a_refresh_trains_on_the_journal_and_replaces_the_run(cli_run, served, tmp_path, monkeypatch):
    run, data, _ = served
    before = (run / "model.safetensors").read_bytes()
    monkeypatch.setattr(refreshing, "mean", lambda name, ranks: 0.5)  # the candidate is as good
    code, out, err = cli_run("refresh", run, "--data", data, "--json")
    assert code == 0, err
    refreshed, log = json.loads(out), read_log(tmp_path / "log")
    assert (refreshed["events"], refreshed["accepted"], len(log)) == (300, True, 3300)
    assert "somebody new" in [str(log.user_ids[k]) for k in range(log.num_users)]
    assert (run.with_name("run.previous") / "model.safetensors").read_bytes() == before
    info = json.loads((run / "run_info.json").read_bytes())["update"]
    assert (info["trained_events"], info["new_events"]) == (TRAINED, 240)
    session, replayed = Session.open(run), load_run(run)
    state = replayed.model.start()
    with torch.no_grad():
        replayed.model.observe(Window(log, range(len(log))), state)
    assert session.coverage.events == len(log)
    assert_same_state(state, session.state)
    code, _, err = cli_run("refresh", run, "--data", data)
    assert (code, "nothing new to learn from" in err) == (3, True)


def test_a_worse_candidate_is_dropped_and_counted(served, monkeypatch):
    run, data, journal = served
    before = (run / "model.safetensors").read_bytes()
    mrrs = iter([0.4, 0.5])
    monkeypatch.setattr(refreshing, "mean", lambda name, ranks: next(mrrs))
    refreshed = refreshing.refresh(run, data, journal)
    assert (refreshed.accepted, refreshed.dropped_total) == (False, 1)
    assert (run / "model.safetensors").read_bytes() == before
    assert not run.with_name("run.next").exists()
    with pytest.raises(refreshing.DataError, match="nothing new to learn from"):
        refreshing.refresh(run, data, journal)


@pytest.mark.parametrize("step", ["append", "_update", "_write_current_state", "exchange"])
def test_an_interrupted_refresh_ends_like_an_uninterrupted_one(served, tmp_path, monkeypatch, step):
    run, data, journal = served
    monkeypatch.setattr(refreshing, "mean", lambda name, ranks: 0.5)
    work = getattr(refreshing, step)

    def killed(*arguments, **options):
        work(*arguments, **options)
        raise SystemExit

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(refreshing, step, killed)
        refreshing.refresh(run, data, journal)
    assert load_run(run)
    if step == "exchange":  # it had replaced the run already, and is finished
        assert json.loads((run / "run_info.json").read_bytes())["update"]["new_events"] == 240
    refreshed = refreshing.refresh(run, data, journal)
    assert (refreshed.accepted, refreshed.accepted_total) == (True, 1)
    assert json.loads((data / "refresh.json").read_bytes())["accepted_total"] == 1
    assert [path.name for path in sorted(tmp_path.glob("run*"))] == ["run", "run.previous"]
    assert (len(read_log(tmp_path / "log")), Session.open(run).coverage.events) == (3300, 3300)


@pytest.mark.parametrize("content", ["", "[1]", '{"events": 1}', "[" * 100_000])
def test_a_damaged_record_of_an_unfinished_swap_has_a_sentence(cli_run, served, monkeypatch, content):
    run, data, journal = served
    monkeypatch.setattr(refreshing, "mean", lambda name, ranks: 0.5)
    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(refreshing, "_finish_swap", lambda *_: sys.exit())
        refreshing.refresh(run, data, journal)
    (run / "refresh.json").write_text(content)
    code, _, err = cli_run("refresh", run, "--data", data)
    assert (code, "refresh.json is damaged" in err, "bug" in err) == (3, True, False)
    (run / "refresh.json").unlink()
    run.with_name("run.next").rename(run.with_name("run.previous"))
    code, _, err = cli_run("refresh", run, "--data", data)
    assert (code, "nothing new to learn from" in err) == (3, True)


@pytest.mark.parametrize("content", ["", "[1]", "5", '{"accepted_total": "x", "dropped_at": null}', "[" * 100_000])
def test_a_damaged_record_of_the_service_counts_as_the_first_refresh(served, monkeypatch, content):
    run, data, journal = served
    (data / "refresh.json").write_text(content)
    monkeypatch.setattr(refreshing, "mean", lambda name, ranks: 0.5)
    refreshed = refreshing.refresh(run, data, journal)
    assert (refreshed.accepted, refreshed.accepted_total) == (True, 1)


def test_a_service_reloads_what_it_has_learned(served, monkeypatch):
    run, data, journal = served
    engine = Engine(run, data)
    learner = BackgroundLearner(engine, every=5)

    def refresh():
        refreshing.refresh(run, data, journal)
        return {"accepted": True}

    monkeypatch.setattr(refreshing, "mean", lambda name, ranks: 0.5)
    monkeypatch.setattr(learner, "_refresh", refresh)
    learner.start()
    try:
        model, end = engine.session.model, journal.end
        late = engine.session.coverage.last_time + 10
        engine.submit([Event("u", "1", late + k, (), f"more {k}") for k in range(6)]).result()
        deadline = time.monotonic() + 60
        while not engine.candidates_accepted and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        assert engine.candidates_accepted == 1
        assert engine.session.model is not model
        assert engine.session.coverage.events == 3000 + end + 6
    finally:
        learner.stop()
        engine.close()


@pytest.mark.slow
def test_a_service_with_learn_swaps_improved_parameters_in_without_dropping_a_request(served, tmp_path):
    """All of it in real processes: the run has bad parameters, so the candidate is better."""
    run, data, _ = served
    parameters = load_tensors(run / "model.safetensors")
    parameters["mixture.logits"] = torch.linspace(6, 0, len(parameters["mixture.logits"]))  # popularity above all
    parameters["mixture.gating_out"].zero_()
    save_tensors(run / "model.safetensors", parameters)
    write_manifest(run, RUN_FILES)
    command = [sys.executable, "-m", "dynedge", "serve", run, "--data", data, "--port", "0", "--learn"]
    with subprocess.Popen([*map(str, command), "--learn-every", "5"], stdout=subprocess.PIPE, text=True) as service:
        port, statuses, metrics = int(service.stdout.readline().split()[0].rsplit(":", 1)[1]), [], ""
        try:
            deadline = time.monotonic() + 120
            times = [float(read_log(tmp_path / "log").time[-1]) + 1000 + k for k in range(6)]
            events = [{"user_id": "u", "item_id": "1", "timestamp": time, "event_id": str(time)} for time in times]
            statuses.append(request(port, "POST", "/events", {"events": events})[0])
            while "candidates_accepted_total 1.0" not in metrics:
                assert time.monotonic() < deadline
                assert "candidates_dropped_total 0.0" in metrics or not metrics
                statuses += [request(port, "GET", f"/users/{user}/recommendations")[0] for user in range(5)]
                metrics = request(port, "GET", "/metrics")[1]
            assert set(statuses) == {200}
            best = request(port, "GET", "/users/u/recommendations")[1]
        finally:
            service.terminate()
    assert json.loads((run / "run_info.json").read_bytes())["update"]["new_events"] > 0
    expected = Session.open(run)
    assert expected.coverage.events == 3306
    items = [one["item_id"] for one in json.loads(best)["items"]]
    assert items == [item for item, _ in recommend(expected, ["u"], 10).of("u")]


def request(port, method, path, body=None):
    """Status and text of the answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()
