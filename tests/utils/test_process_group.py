"""Devices of the processes of a torchrun; tests/training/test_segments.py starts real ones."""

from __future__ import annotations

import pytest
import torch

from dynedge.errors import UsageError
from dynedge.utils.process_group import ALONE, ProcessGroup, check_own_gpus, local_device


@pytest.mark.parametrize(("gpus", "expected"), [(1, ["cuda:0"] * 4), (3, ["cuda:0", "cuda:1", "cuda:2", "cuda:0"])])
def test_processes_share_gpus_where_there_are_fewer(
    gpus: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert local_device("cuda") == "cuda", "outside a torchrun torch chooses"
    devices = []
    for rank in range(4):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert local_device("cpu") == "cpu" and local_device("cuda:5") == "cuda:5"
        devices.append(local_device("cuda"))
    assert devices == expected


def test_processes_that_train_one_model_need_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(UsageError, match=r"4 processes .* 2 GPUs: .*--nproc-per-node 2"):
        check_own_gpus("cuda", ProcessGroup(1, 4))
    check_own_gpus("cpu", ProcessGroup(1, 4))
    check_own_gpus("cuda", ALONE)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    check_own_gpus("cuda", ProcessGroup(1, 4))
