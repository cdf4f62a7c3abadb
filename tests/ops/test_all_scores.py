"""all_scores against one event after the other, and its promise: the same bits however a log is cut."""

import pytest
import torch

from dynedge.ops.all_scores import all_scores, cpu, reference


def make(n, items, d, ids, dtype, seed=0):
    """A window in which some items move, some of them again and again, and some events move nothing."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    item = (torch.rand(n, generator=generator) ** 2 * items).long()
    row = torch.randperm(n + 3, generator=generator)[:n]
    row[torch.rand(n, generator=generator) < 0.2] = -1
    return (
        normal(n, 2 * d if ids else d),
        normal(items, d),
        normal(items, d + 1) if ids else None,
        item,
        row,
        normal(n + 3, d),
    )


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize(("n", "items", "d"), [(0, 5, 3), (1, 1, 1), (17, 40, 5), (600, 33, 16), (300, 2500, 7)])
def test_is_one_event_after_the_other(n, items, d, ids):
    inputs = make(n, items, d, ids, torch.float64)
    before = [None if tensor is None else tensor.clone() for tensor in inputs]
    found = all_scores(*inputs)
    assert found.shape == (n, items)
    assert torch.allclose(found, reference.all_scores(*inputs), atol=1e-12, rtol=0)
    assert all(old is None or torch.equal(old, new) for old, new in zip(before, inputs, strict=True))


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk", [1, 7, 16, 200, 256])
def test_cut_anywhere_the_bits_are_the_same(ids, dtype, chunk, monkeypatch):
    wanted, states, own, item, row, arena = make(530, 150, 9, ids, dtype)
    whole = all_scores(wanted, states, own, item, row, arena)
    parts, states = [], states.clone()
    monkeypatch.setattr(cpu, "BLOCK", 64)
    for at in range(0, 530, chunk):
        now = slice(at, at + chunk)
        parts.append(all_scores(wanted[now], states, own, item[now], row[now], arena))
        for i, r in zip(item[now].tolist(), row[now].tolist(), strict=True):
            if r >= 0:
                states[i] = arena[r]
    assert torch.equal(whole, torch.cat(parts))


def test_equal_items_have_equal_scores_wherever_they_are():
    """Never-seen items share one state: no rounding may tell them apart by their ids."""
    wanted, states, _, item, row, arena = make(100, 1003, 33, False, torch.float32)
    item %= 300
    states[300:] = states[300]
    found = all_scores(wanted, states, None, item, row, arena)
    assert (found[:, 300:] == found[:, 300:301]).all()


def test_several_threads_change_no_bit():
    inputs = make(300, 3000, 8, True, torch.float32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = all_scores(*inputs)
        torch.set_num_threads(3)
        assert torch.equal(one, all_scores(*inputs))
    finally:
        torch.set_num_threads(before)
