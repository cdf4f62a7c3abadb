"""all_scores on a CPU against the reference; its bits do not depend on how a log is cut, or scored block by block."""

import numpy as np
import pytest
import torch

from dynedge.ops.all_scores import all_scores, by_block, cpu, reference
from dynedge.ops.decaying_columns import NEVER
from dynedge.ops.sampled_softmax import ScoreBonus


def make(n, items, d, ids, dtype, seed=0):
    """A window in which some items are updated, some of them often, and some events update nothing."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    item = (torch.rand(n, generator=generator) ** 2 * items).long()
    row_after = torch.randperm(n + 3, generator=generator)[:n]
    row_after[torch.rand(n, generator=generator) < 0.2] = -1
    return (
        normal(n, 2 * d if ids else d),
        normal(items, d),
        normal(items, d + 1) if ids else None,
        item,
        row_after,
        normal(n + 3, d),
    )


def make_decay(columns, dtype, states, arena, row_after):
    """`decay` of the events; the last columns of the rows become those of items written before or in the window."""
    rate, event = 2.0 ** -torch.arange(2, 2 + columns), torch.arange(len(row_after))
    states[:, states.shape[1] - columns :] = -torch.arange(1, len(states) + 1)[:, None] * rate
    states[::4, states.shape[1] - columns :] = NEVER
    arena[:, arena.shape[1] - columns :] = -3 * rate
    written = row_after >= 0
    arena[row_after[written].long(), arena.shape[1] - columns :] = (event[written, None] * rate).to(arena.dtype)
    return (event[:, None] * rate).to(dtype)


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize(("n", "items", "d"), [(0, 5, 3), (1, 1, 1), (17, 40, 5), (600, 33, 16), (300, 2500, 7)])
def test_equals_the_event_by_event_reference(n, items, d, ids):
    inputs = make(n, items, d, ids, torch.float64)
    originals = [None if tensor is None else tensor.clone() for tensor in inputs]
    scores = all_scores(*inputs)
    assert scores.shape == (n, items)
    assert torch.allclose(scores, reference.all_scores(*inputs), atol=1e-12, rtol=0)
    assert all(old is None or torch.equal(old, new) for old, new in zip(originals, inputs, strict=True))


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize(("n", "items", "d", "columns"), [(1, 1, 1, 1), (17, 40, 5, 2), (600, 33, 16, 8)])
def test_decaying_columns(n, items, d, columns, ids):
    inputs = make(n, items, d, ids, torch.float64)
    decay = make_decay(columns, torch.float64, inputs[1], inputs[5], inputs[4])
    assert torch.allclose(all_scores(*inputs, decay), reference.all_scores(*inputs, decay), atol=1e-10, rtol=0)


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk", [1, 7, 16, 200, 256])
@pytest.mark.parametrize("columns", [0, 4])
def test_bits_do_not_depend_on_how_a_log_is_cut(ids, dtype, chunk, columns, monkeypatch):
    query, states, id_embeddings, item, row_after, arena = make(530, 150, 9, ids, dtype)
    decay = make_decay(columns, dtype, states, arena, row_after) if columns else None
    whole = all_scores(query, states, id_embeddings, item, row_after, arena, decay)
    chunks, states = [], states.clone()
    monkeypatch.setattr(cpu, "BLOCK", 64)
    for at in range(0, 530, chunk):
        window = slice(at, at + chunk)
        of_window = None if decay is None else decay[window]
        events = item[window], row_after[window], arena, of_window
        chunks.append(all_scores(query[window], states, id_embeddings, *events))
        for i, r in zip(item[window].tolist(), row_after[window].tolist(), strict=True):
            if r >= 0:
                states[i] = arena[r]
    assert torch.equal(whole, torch.cat(chunks))


def test_equal_items_have_equal_scores():
    """Items without events share one state: rounding must not make their scores differ."""
    query, states, _, item, row_after, arena = make(100, 1003, 33, False, torch.float32)
    item %= 300
    states[300:] = states[300]
    scores = all_scores(query, states, None, item, row_after, arena)
    assert (scores[:, 300:] == scores[:, 300:301]).all()


def test_bits_do_not_depend_on_the_number_of_threads():
    inputs = make(300, 3000, 8, True, torch.float32)
    originals = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = all_scores(*inputs)
        torch.set_num_threads(3)
        assert torch.equal(one, all_scores(*inputs))
    finally:
        torch.set_num_threads(originals)


def make_bonus(n, items, generator):
    """For each event up to five different items."""
    listed = [torch.randperm(items, generator=generator)[: k % 6] for k in range(n)]
    sizes = torch.tensor([0, *map(len, listed)])
    event, item = torch.repeat_interleave(torch.arange(n), sizes[1:]), torch.cat([*listed, torch.empty(0).long()])
    return ScoreBonus(sizes.cumsum(0), event, item, 100 * torch.randn(len(item), generator=generator))


def scores_of_blocks(window, items, n, num_items):
    """[n, items]: of all blocks, event by event; each in the memory of the one before."""
    rows = []
    for k in range(n):
        by_block.score_blocks(window, items, k, np.ones(window.bound.shape[1], bool))
        by_block.apply_event(window, items, k)
        rows.append(torch.from_numpy(items.scores[0, :num_items].copy()))
    return torch.stack(rows)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize(
    ("n", "items", "d", "columns"), [(1, 1, 1, 0), (17, 64, 5, 2), (300, 150, 9, 4), (600, 65, 16, 8)]
)
def test_scores_of_blocks_have_the_bits_of_all_scores_and_their_bounds_hold(n, items, d, columns, ids, listed):
    inputs = make(n, items, d, ids, torch.float32)
    decay = make_decay(columns, torch.float64, inputs[1], inputs[5], inputs[4]) if columns else None
    bonus = make_bonus(n, items, torch.manual_seed(1)) if listed else None
    expected = all_scores(*inputs, decay)
    if bonus is not None:
        expected[bonus.event, bonus.item] += bonus.value
    for window, blocks in (by_block.block_scores(*inputs, decay, bonus), by_block.given_scores(expected)):
        copy = by_block.copy_blocks(blocks)
        assert torch.equal(scores_of_blocks(window, blocks, n, items), expected)
        assert torch.equal(scores_of_blocks(window, copy, n, items), expected), "each thread has its own"
        largest = torch.stack([block.amax(1) for block in expected.split(by_block.BLOCK, 1)], 1)
        bound = torch.from_numpy(window.bound)
        assert (bound >= largest).all()
        assert ids or listed or items == 1 or bound.mean() < 3 * expected.abs().max(), "not much larger"


def test_bounds_of_blocks_hold_for_numbers_of_any_size():
    """Also where the terms of a product nearly cancel."""
    query, states, _, item, row_after, arena = make(40, 130, 33, False, torch.float32)
    scale = 10.0 ** torch.arange(-16, 17)
    query, states, arena = query * scale, states / scale, arena / scale
    query[:, 1] = -query[:, 0] * states[0, 0] / states[0, 1]
    window, _ = by_block.block_scores(query, states, None, item, row_after, arena)
    scores = all_scores(query, states, None, item, row_after, arena)
    largest = torch.stack([block.amax(1) for block in scores.split(by_block.BLOCK, 1)], 1)
    assert (torch.from_numpy(window.bound) >= largest).all()
