"""What tests of operators share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Whatever torch.empty gives is NaN, so that a number nobody wrote shows; and threads as they were."""
    yield from _poisoned(warn_only=False)


@pytest.fixture
def poisoned_anywhere() -> Iterator[None]:
    """The same where a reference may run on a GPU, by operators that have no fixed order there."""
    yield from _poisoned(warn_only=True)


def _poisoned(warn_only: bool) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
