"""Every command once, from a CSV file to a service, as a user types them: exit codes, files, and the numbers."""

import json
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
from golden.machine import Golden

from dynedge import cli

pytestmark = pytest.mark.slow

GOLDEN = Golden("commands")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    rng = np.random.default_rng(2)
    user = rng.zipf(1.5, 900) % 30
    item = np.where(rng.random(900) < 0.5, user * 3 % 40, rng.integers(0, 40, 900))
    lines = [
        f"user_{u},{i},{t * 60},{'red' if i % 2 else 'blue'}" for t, (u, i) in enumerate(zip(user, item, strict=True))
    ]
    (folder / "events.csv").write_text("\n".join(["who,what,when,kind", *lines]) + "\n")
    return folder


@pytest.fixture
def run(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)

    def run(line):
        capsys.readouterr()
        code = cli.run(line.split())
        told = capsys.readouterr()
        assert code == 0, told.err
        return json.loads(told.out) if "--json" in line else told.out

    return run


def test_every_command(run, folder):
    card = run(
        "prepare events.csv --out log --user-col who --item-col what --time-col when --item-features kind --json"
    )
    assert (card["events"], card["rejected"]) == (900, 0)
    info = run("info log --json --verify --plot log.png")
    planned = run("plan log --windows 5 --dnodes 4 --json")
    assert "d-nodes" in run("plan log --windows 5 --plot plan.png")
    small = "--windows 5 --epochs 2 --dim 8"
    trained = run(f"train log --out edge {small} --dnodes 4 --plot edge.png --json")
    run("train log --out gru --model gru4rec --epochs 2 --dim 8")
    run("train log --out next --model next")
    judged = run("evaluate edge --json")
    sampled = run("evaluate gru --protocol sampled-499 --json")
    beside = run("compare edge gru next --plot compare.png --json")
    table = run("compare log --models next,sum-pooling --seeds 1 --epochs 1 --report page --json")
    tuned = run("tune log --model gru4rec --trials 2 --epochs 1 --out tuned --json")
    best = run("recommend edge --users user_3,nobody --k 4 --log log --json")
    run("recommend edge --all-users --out all.parquet --k 3")
    vectors = run("embed edge --log log --out vectors.parquet --json")
    run("synth demo --events 2000 --out synthetic")
    run("datasets --json")
    for name in (
        "log.png",
        "plan.png",
        "edge.png",
        "compare.png",
        "page/index.html",
        "all.parquet",
        "vectors.parquet",
    ):
        assert (folder / name).stat().st_size > 1000, name
    exact = {
        "order": [one["run"] for one in beside["runs"]],
        "leaders": [row["model"] for row in table["rows"]],
        "unknown": [user["known"] for user in best["users"]],
        "popular": [item["item_id"] for item in best["users"][1]["items"]],
        "widths": vectors["widths"],
        "tried": len(tuned["trials"]),
    }
    numbers = {
        "repeats": info["repeat_share"],
        "longest path": planned["mean_longest_path"],
        "valid MRR": trained["valid_mrr"],
        "test MRR": judged["test"]["mrr"],
        "sampled MRR": sampled["test"]["mrr"],
        "difference": beside["runs"][-1]["difference_to_best"]["mrr"],
        "tuned": tuned["best"]["valid_mrr"],
    }
    GOLDEN.check("commands", exact, numbers)


def test_serve_and_export(run, folder):
    command = [sys.executable, "-m", "dynedge", "serve", "edge", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as service:
        try:
            address = service.stdout.readline().split()[0]
            event = {"user_id": "user_3", "item_id": "7", "timestamp": 900 * 60, "event_id": "one"}
            body = json.dumps({"events": [event, event]}).encode()
            request = urllib.request.Request(f"{address}/events", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as answer:
                assert json.load(answer) == {"accepted": 1, "duplicates": 1, "late": 0, "position": "1"}
            with urllib.request.urlopen(f"{address}/users/user_3/recommendations?k=3&explain=true") as answer:
                found = json.load(answer)
        finally:
            service.send_signal(signal.SIGTERM)
    assert service.returncode in (0, -signal.SIGTERM)
    assert found["known"] and len(found["items"]) == 3
    assert run("export edge --out sent.parquet --json")["events"] == 1
    GOLDEN.check("serve", {"items": [item["item_id"] for item in found["items"]]}, {})


def test_demo(run):
    assert "recommend" in run("demo --out demo --events 1500")
