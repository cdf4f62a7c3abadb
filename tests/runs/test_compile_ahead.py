"""Compiling in a second process during the first run."""

import os
import signal

import pytest

from dynedge.data.synthetic import synthesize
from dynedge.runs import compile_ahead
from dynedge.runs.compile_ahead import compiling_ahead, rank_and_query
from dynedge.runs.run_config import recipe_config, resolve_config
from dynedge.utils import progress


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return synthesize("demo", tmp_path_factory.mktemp("compile") / "log", events=1000, quiet=True)


@pytest.fixture
def started(monkeypatch):
    """The processes that are started, each asleep instead of compiling."""
    processes = []

    def start(command, **options):
        processes.append(popen(["sleep", "60"], **options))
        return processes[-1]

    popen = compile_ahead.subprocess.Popen
    monkeypatch.setattr(compile_ahead.subprocess, "Popen", start)
    monkeypatch.setattr(compile_ahead, "count_missing_kernels", lambda: compile_ahead.WORTHWHILE)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(progress, "show_compiling", True)
    return processes


@pytest.mark.parametrize("model", ["counts", "popular", "sasrec"])
def test_a_few_events_are_ranked_and_a_query_answered(log, model):
    rank_and_query(resolve_config(recipe_config(model), log), log)


def test_a_second_process_runs_during_the_block_only(log, started):
    config = resolve_config(recipe_config("popular"), log)
    with pytest.raises(ValueError), compiling_ahead(config, log):
        assert [process.poll() for process in started] == [None]
        with compiling_ahead(config, log):
            assert len(started) == 1, "one is enough"
        raise ValueError
    assert [process.returncode for process in started] == [-signal.SIGTERM]


def test_nothing_is_started_where_it_does_not_help(log, started, monkeypatch):
    config = resolve_config(recipe_config("popular"), log)
    for name, value in (("count_missing_kernels", lambda: 3), ("MOST_EVENTS", 10)):
        with monkeypatch.context() as patch:
            patch.setattr(compile_ahead, name, value)
            with compiling_ahead(config, log):
                assert not started
