"""What tests of operators share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Whatever torch.empty gives is NaN, so that a number nobody wrote shows; and threads as they were."""
    threads = torch.get_num_threads()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
