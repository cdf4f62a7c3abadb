"""Every fault in benchmarks/mutants.toml can still be put into the code, and the tests that it names exist."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = (
    *(
        "ingestion",
        "log files",
        "planning",
        "CPU operators",
        "GPU operators",
        "training",
        "count memory",
        "edge",
        "baselines",
    ),
    *("ranking and evaluation", "inference", "serving", "runs", "experiments", "reports and pages"),
    *("command line", "utils"),
)


@pytest.fixture
def mutants(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.delitem(sys.modules, "mutants", raising=False)
    import mutants

    return mutants.read_list()


def test_every_fault_applies_once_and_leaves_valid_code(mutants):
    assert len(mutants) >= 120
    assert {mutant.layer for mutant in mutants} == set(LAYERS)
    for mutant in mutants:
        assert mutant.old != mutant.new
        assert mutant.file.startswith("src/dynedge/")
        if mutant.file.endswith(".py"):
            ast.parse(mutant.apply(ROOT))


def test_every_fault_names_existing_tests(mutants):
    for mutant in mutants:
        assert mutant.tests, mutant.fault
        for test in mutant.tests:
            file, _, function = test.partition("::")
            assert (ROOT / file).exists(), test
            assert not function or f"def {function.partition('[')[0]}(" in (ROOT / file).read_text(), test
