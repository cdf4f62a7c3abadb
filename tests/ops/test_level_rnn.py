"""level_rnn: the compiled pass against plain torch level by level, and that against one event after the other."""

import numpy as np
import pytest
import torch

from dynedge.ops.level_rnn import cpu, reference
from dynedge.plan.levels import NO_DNODES
from dynedge.plan.links import Linker
from dynedge.plan.schedule import build_schedule


def window(n, users, items, seed=0):
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, users, n).astype(np.int32), rng.integers(0, items, n).astype(np.int32)
    prev = Linker(np.zeros(users, bool), np.zeros(items, bool))(user, item)
    return user, item, build_schedule(user, item, prev, NO_DNODES)


def inputs(schedule, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (schedule.first_written, d), (len(schedule.event), d), (2, d, d), (2, d, d)
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    made[2:] = [weights * d**-0.5 for weights in made[2:]]  # larger ones would make chaos of long paths
    return [tensor.requires_grad_() for tensor in made]


@pytest.mark.parametrize(("n", "users", "items", "d"), [(1, 1, 1, 1), (40, 5, 3, 7), (200, 9, 30, 64), (0, 1, 1, 4)])
def test_values_and_gradients(n, users, items, d):
    *_, schedule = window(n, users, items)
    mine, theirs = inputs(schedule, d), inputs(schedule, d)
    found, expected = cpu.level_rnn(*mine, schedule), reference.level_rnn(*theirs, schedule)
    assert torch.allclose(found, expected, atol=1e-12, rtol=1e-12)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=found.dtype)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    for one, other in zip(mine, theirs, strict=True):
        due = (
            torch.zeros_like(other) if other.grad is None else other.grad
        )  # autograd gives none where nothing is read
        assert torch.allclose(one.grad, due, atol=1e-10, rtol=1e-10)


def test_levels_compute_what_one_event_after_the_other_does():
    user, item, schedule = window(60, 6, 8)
    roots, pre, own, other = (tensor.detach() for tensor in inputs(schedule, 5))
    now = {(0, int(u)): roots[k] for k, u in enumerate(schedule.entry_users)}
    now |= {(1, int(i)): roots[len(schedule.entry_users) + k] for k, i in enumerate(schedule.entry_items)}
    row = {
        (int(e), b % 2): w
        for b, (start, stop) in enumerate(zip(schedule.blocks, schedule.blocks[1:], strict=False))
        for w in range(start - schedule.first_written, stop - schedule.first_written)
        for e in [schedule.event[w]]
    }
    found = reference.level_rnn(roots, pre, own, other, schedule)
    for k in range(len(user)):
        pair = now[0, int(user[k])], now[1, int(item[k])]
        for side, entity in enumerate((int(user[k]), int(item[k]))):
            mine, theirs = pair[:: -1 if side else 1]
            now[side, entity] = torch.tanh(own[side] @ mine + other[side] @ theirs + pre[row[k, side]])
            assert torch.allclose(found[row[k, side]], now[side, entity], atol=1e-12)
