"""The example model outside the package is found by its entry point, and passes the checks of every model."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from models.every_model import CHECKS, CONTRACT, capabilities_of, make_log

from dynedge import synthesize
from dynedge.models.base import Step

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "markov_recommender"
SOURCE = EXAMPLE / "markov_recommender.py"
DOC = ROOT / "docs" / "add-a-model.md"


@pytest.fixture(scope="module")
def markov():
    """The example as a module, without a change of the import path."""
    spec = importlib.util.spec_from_file_location("markov_recommender", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def trained(markov):
    """The model after one epoch on three quarters of a log, and the log."""
    log = make_log(features=2)
    end = len(log) * 3 // 4
    model = markov.ENTRY.model.create(markov.ENTRY.config(), log, end, seed=0)
    optimizer, state = torch.optim.SGD(model.parameters(), 0.1), model.start()
    before = model.log_prior.item()
    for number, batch in enumerate(model.batches(log, model.training_windows(end))):
        optimizer.zero_grad()
        loss = model.loss(batch, state, Step(0, 0, number))
        if loss.total.requires_grad:  # not for a window without events
            loss.total.backward()
            optimizer.step()
    assert model.log_prior.item() != before
    return model.eval(), log


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__.removeprefix("assert_"))
def test_contract(trained, check):
    check(*trained)


def test_declared_capabilities(trained):
    model, log = trained
    declared = capabilities_of(model)
    assert [capability.__name__ for capability in declared] == ["Growable"]
    for capability in declared:
        CHECKS[capability](model, log)


def test_scores_are_smoothed_transition_probabilities(trained):
    model, log = trained
    state = model.start()
    for user, item in ((0, 2), (0, 3), (1, 2), (1, 3), (2, 2), (2, 5), (3, 2)):
        state["counts"][state["row"][user], item] += 1
        state["total"][item] += 1
        state["row"][user] = item + 1
    with torch.no_grad():
        probability = model.score_query(torch.tensor([3]), torch.zeros(1), None, state)[0].exp()
    prior, share = model.log_prior.exp().item(), (torch.ones(log.num_items) + torch.eye(log.num_items)[3] * 2)
    share[2], share[5] = 5, 2
    share /= share.sum()
    assert probability.sum().item() == pytest.approx(1, abs=1e-6)
    assert probability[3].item() == pytest.approx((2 + prior * share[3].item()) / (3 + prior), rel=1e-5)
    assert probability[5].item() == pytest.approx((1 + prior * share[5].item()) / (3 + prior), rel=1e-5)
    assert probability[0].item() == pytest.approx(prior * share[0].item() / (3 + prior), rel=1e-5)


@pytest.fixture
def installed(tmp_path):
    """Runs a command where the example is installed: its module, and package metadata from its pyproject.toml."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    site, name = tmp_path / "site", project["name"].replace("-", "_")
    metadata = site / f"{name}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = project["entry-points"].items()
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items()) for group, points in groups
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    (site / SOURCE.name).write_text(SOURCE.read_text())
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "error"}

    def run(*arguments, code=0):
        command = [sys.executable, "-m", "dynedge", *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False, timeout=600
        )
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout

    return run


@pytest.fixture
def log(tmp_path):
    return synthesize("demo", tmp_path / "log", events=1500, quiet=True).path


@pytest.mark.slow
def test_the_installed_model_is_compared_trained_and_tuned(installed, log, tmp_path):
    table = installed("compare", log, "--models", "markov,next", "--seeds", 1)
    assert {"markov", "next"} <= {line.split()[0] for line in table.splitlines() if line.strip()}
    compared = json.loads(installed("compare", log, "--models", "markov,next", "--seeds", 1, "--json"))
    by_name = {row["model"]: row for row in compared["rows"]}
    assert by_name["markov"]["parameters"] == 1
    assert by_name["markov"]["mrr"] > 0.05
    run = tmp_path / "log-runs" / "markov-0"
    assert installed("recommend", run, "--users", "Ada Abara", "--k", 3).startswith("Ada Abara\n   1  ")
    tuned = installed("tune", log, "--model", "markov", "--trials", 2, "--epochs", 1, "--out", tmp_path / "tuned")
    assert tuned
    assert 'name = "markov"' in (tmp_path / "tuned" / "config.toml").read_text()


def test_a_model_that_cannot_be_imported_is_named(installed, log, tmp_path):
    (tmp_path / "site" / SOURCE.name).write_text("import no_such_package\n")
    message = installed("compare", log, "--models", "markov", code=3)
    assert message.startswith("dynedge: the model markov of markov_recommender:ENTRY cannot be loaded: ")
    assert "no_such_package" in message
    assert len(message.splitlines()) == 1


def test_the_documentation_shows_the_files_themselves():
    text = DOC.read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.S)
    assert code == SOURCE.read_text()
    assert toml in (EXAMPLE / "pyproject.toml").read_text()
    assert len(code.splitlines()) <= 60


def test_a_model_with_the_name_of_a_built_in_one_is_refused(installed, log, tmp_path):
    (points,) = (tmp_path / "site").glob("*.dist-info/entry_points.txt")
    points.write_text(points.read_text().replace("markov =", "edge ="))
    message = installed("compare", log, "--models", "next", code=3)
    assert message == (
        "dynedge: the model edge of markov_recommender:ENTRY has the name of a built-in one; rename it.\n"
    )
