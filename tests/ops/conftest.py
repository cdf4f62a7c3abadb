"""Fixtures shared by the tests of operators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Fills the memory of torch.empty with NaN, so that unwritten numbers show; restores the number of threads."""
    yield from _poisoned(warn_only=False)


@pytest.fixture
def poisoned_anywhere() -> Iterator[None]:
    """The same where the reference may run on a GPU, by torch operators that are not deterministic there."""
    yield from _poisoned(warn_only=True)


def _poisoned(warn_only: bool) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
