"""Damaged files give sentences: a few of the cases that benchmarks/fuzz_files.py runs by the thousand."""

import pytest
import torch
from fuzz_files import fuzz, make_targets


@pytest.fixture
def single_thread():
    """Processes are forked: threads of this one would not exist there."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_commands_on_damaged_files_end_with_a_sentence(tmp_path, single_thread):
    (tmp_path / "scratch").mkdir()
    targets = make_targets(tmp_path, ["edge"])
    failures, outcomes = fuzz(targets, 45, tmp_path / "scratch", seed=3)
    assert not failures
    assert outcomes["refused"] > 15
    assert outcomes["exit 0"] > 3
