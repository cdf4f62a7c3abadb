"""level_rnn: the numba kernels against the reference, and the reference against an event-by-event loop."""

import numpy as np
import pytest
import torch

from dynedge.ops.level_rnn import cpu, reference
from dynedge.plan.levels import NO_DNODES
from dynedge.plan.links import Linker
from dynedge.plan.schedule import build_schedule


def make_window(n, users, items, seed=0):
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, users, n).astype(np.int32), rng.integers(0, items, n).astype(np.int32)
    prev = Linker(np.zeros(users, bool), np.zeros(items, bool))(user, item)
    return user, item, build_schedule(user, item, prev, NO_DNODES)


def inputs(schedule, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (schedule.first_written, d), (len(schedule.event), d), (2, d, d), (2, d, d)
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    made[2:] = [weights * d**-0.5 for weights in made[2:]]  # larger ones would make long paths chaotic
    return [tensor.requires_grad_() for tensor in made]


@pytest.mark.parametrize(("n", "users", "items", "d"), [(1, 1, 1, 1), (40, 5, 3, 7), (200, 9, 30, 64), (0, 1, 1, 4)])
def test_values_and_gradients(n, users, items, d):
    *_, schedule = make_window(n, users, items)
    actual_inputs, expected_inputs = inputs(schedule, d), inputs(schedule, d)
    states, expected_states = cpu.level_rnn(*actual_inputs, schedule), reference.level_rnn(*expected_inputs, schedule)
    assert torch.allclose(states, expected_states, atol=1e-12, rtol=1e-12)
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(1), dtype=states.dtype)
    (states * weights).sum().backward()
    (expected_states * weights).sum().backward()
    for one, other in zip(actual_inputs, expected_inputs, strict=True):
        # Autograd returns None where nothing is read.
        expected_grad = torch.zeros_like(other) if other.grad is None else other.grad
        assert torch.allclose(one.grad, expected_grad, atol=1e-10, rtol=1e-10)


def test_levels_equal_an_event_by_event_loop():
    user, item, schedule = make_window(60, 6, 8)
    roots, pre, own, other = (tensor.detach() for tensor in inputs(schedule, 5))
    current = {(0, int(u)): roots[k] for k, u in enumerate(schedule.entry_users)}
    current |= {(1, int(i)): roots[len(schedule.entry_users) + k] for k, i in enumerate(schedule.entry_items)}
    row = {
        (int(e), b % 2): w
        for b, (start, stop) in enumerate(zip(schedule.blocks, schedule.blocks[1:], strict=False))
        for w in range(start - schedule.first_written, stop - schedule.first_written)
        for e in [schedule.event[w]]
    }
    states = reference.level_rnn(roots, pre, own, other, schedule)
    for k in range(len(user)):
        pair = current[0, int(user[k])], current[1, int(item[k])]
        for side, entity in enumerate((int(user[k]), int(item[k]))):
            own_state, other_state = pair[:: -1 if side else 1]
            current[side, entity] = torch.tanh(own[side] @ own_state + other[side] @ other_state + pre[row[k, side]])
            assert torch.allclose(states[row[k, side]], current[side, entity], atol=1e-12)
