"""level_gru on a CPU against both references: states, every gradient, odd sizes, poisoned memory, same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dynedge.ops import thread_pool
from dynedge.ops.level_gru import level_gru, reference
from dynedge.plan.dnodes import select_dnodes
from dynedge.plan.links import Linker
from dynedge.plan.schedule import Schedule, build_schedule

Array = np.ndarray[Any, Any]
NAMES = ("roots", "pre", "w_own", "w_other", "b_own")
NO_DNODES = np.zeros(0, np.int64)


pytestmark = pytest.mark.usefixtures("poisoned")


class RandomWindow:
    """Random events and inputs. Weights of size 1/√d, as learned ones: states neither vanish nor explode."""

    def __init__(
        self,
        n: int = 40,
        users: int = 6,
        items: int = 5,
        active: float = 0.0,
        limit: dict[str, Any] | None = None,
        d: int = 3,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.pairs = np.stack((rng.integers(0, users, n), rng.integers(0, items, n)), 1).astype(np.int32)
        self.active = rng.random(users) < active, rng.random(items) < active
        self.user, self.item = np.ascontiguousarray(self.pairs.T)
        prev = Linker(*self.active)(self.user, self.item)
        self.schedule = build_schedule(
            self.user, self.item, prev, select_dnodes(prev, **limit) if limit else NO_DNODES
        )
        self.d, self.written = d, len(self.schedule.event)
        shapes = (self.schedule.first_written, d), (self.written, 3 * d), (2, 3 * d, d), (2, 3 * d, d), (2, 3 * d)
        torch.manual_seed(seed)
        scales = 1.0, 1.0, d**-0.5, d**-0.5, 0.5
        self.inputs = [
            (scale * torch.randn(shape, dtype=dtype)).requires_grad_()
            for scale, shape in zip(scales, shapes, strict=True)
        ]
        self.grad = torch.randn(self.written, d, dtype=dtype)
        self.grad[::3] = 0  # rows that no loss reads

    def gradients(self, operator: Any = level_gru) -> tuple[Tensor, ...]:
        """The states, and the gradient of each input."""
        written = operator(*self.inputs, self.schedule)
        return written.detach(), *torch.autograd.grad(written, self.inputs, self.grad, materialize_grads=True)

    def event_by_event(self) -> Tensor:
        """The states by a loop over events, in the order of the schedule's rows."""
        roots, pre, *weights = self.inputs
        s, codes = self.schedule, 2 * self.schedule.event + sides(self.schedule)
        start = [
            torch.full((int(ids.max()) + 1, self.d), torch.nan, dtype=pre.dtype) for ids in (self.user, self.item)
        ]
        begin = 0
        for side, ids in ((0, s.entry_users), (1, s.entry_items), (0, s.psi_users), (1, s.psi_items)):
            start[side] = start[side].index_put((torch.from_numpy(ids).long(),), roots[begin : begin + len(ids)])
            begin += len(ids)
        phi = dict(zip(s.dnodes.tolist(), roots[begin:], strict=True))
        by_code = torch.full((2 * len(self.pairs), 3 * self.d), torch.nan, dtype=pre.dtype)
        by_code = by_code.index_put((torch.from_numpy(codes).long(),), pre).view(-1, 2, 3 * self.d)
        states = reference.event_by_event(self.pairs, self.active, (start[0], start[1]), phi, by_code, *weights)
        assert sorted(states) == sorted(codes.tolist())
        return torch.stack([states[code] for code in codes.tolist()])


def sides(schedule: Schedule) -> Array:
    return np.repeat(np.arange(2 * schedule.depth) % 2, np.diff(schedule.blocks))


def test_memory_is_poisoned() -> None:
    assert torch.empty(3).isnan().all()
    assert torch.zeros(2, 2).new_empty(3).isnan().all()


WINDOWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "active": {"active": 0.4},
    "d-nodes": {"limit": {"max_dnodes": 7}},
    "active and d-nodes": {"active": 0.3, "limit": {"method": "depth", "max_depth": 2}},
    "depth 1": {"limit": {"max_depth": 1}},
    "users active": {"n": 60, "users": 1, "active": 0.9, "items": 30, "seed": 4},
    "one event": {"n": 1},
    "one long chain": {"n": 300, "users": 1, "items": 1},
    "one wide level": {"n": 1100, "users": 1_000_000, "items": 1_000_000},
    "narrow and wide levels": {"n": 2500, "users": 1500, "items": 1200, "active": 0.1},
    "d = 1": {"d": 1, "active": 0.3},
    "d = 7": {"d": 7, "active": 0.3, "limit": {"max_dnodes": 5}},
    "d = 64": {"d": 64, "active": 0.3, "limit": {"max_dnodes": 5}},
    "d = 65": {"d": 65, "active": 0.3},
}


@pytest.mark.parametrize("name", WINDOWS)
def test_states_and_gradients_equal_both_references_in_float64(name: str) -> None:
    window = RandomWindow(**WINDOWS[name])
    written, *grads = window.gradients()
    torch.testing.assert_close(written, window.event_by_event().detach(), rtol=0, atol=1e-10)
    states, *expected = window.gradients(reference.level_gru)
    torch.testing.assert_close(written, states, rtol=0, atol=1e-10)
    for grad, right in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, right, rtol=1e-9, atol=1e-9)


def test_windows_cover_all_cases() -> None:
    made = {name: RandomWindow(**settings) for name, settings in WINDOWS.items()}
    widths = {name: np.diff(window.schedule.blocks[::2]) for name, window in made.items()}
    assert made["one long chain"].schedule.depth == 300
    assert widths["one wide level"].max() >= 2 * thread_pool.MIN_ROWS
    assert (widths["narrow and wide levels"] >= thread_pool.MIN_ROWS).any() and (
        widths["narrow and wide levels"] < thread_pool.MIN_ROWS
    ).any()
    assert len(made["users active"].schedule.psi_users) and len(made["users active"].schedule.psi_readers)
    assert len(made["active and d-nodes"].schedule.dnodes) and len(made["active and d-nodes"].schedule.psi_items)
    assert made["depth 1"].schedule.depth == 1


@pytest.mark.parametrize(
    "settings",
    [{}, {"active": 0.4}, {"limit": {"max_dnodes": 4}}, {"d": 1}, {"active": 0.3, "limit": {"max_dnodes": 3}}],
)
def test_gradcheck(settings: dict[str, Any]) -> None:
    """Against finite differences, in every input: entry, ψ and φ rows, pre, weights, biases."""
    window = RandomWindow(n=12, users=4, items=3, seed=1, **{"d": 3, **settings})
    assert torch.autograd.gradcheck(lambda *inputs: level_gru(*inputs, window.schedule), window.inputs)


def test_gradients_of_the_event_by_event_reference() -> None:
    window = RandomWindow(n=8, users=3, items=3, d=2, active=0.3, limit={"max_dnodes": 2})
    torch.testing.assert_close(
        torch.autograd.grad(window.event_by_event(), window.inputs, window.grad),
        window.gradients()[1:],
        rtol=1e-9,
        atol=1e-9,
    )


@pytest.mark.parametrize("n", [0, 30])
def test_windows_that_write_nothing(n: int) -> None:
    """No events, or all between active entities: nothing is written, and every gradient is zero."""
    window = RandomWindow(n=n, active=1.0)
    written, *grads = window.gradients()
    assert written.shape == (0, 3)
    for grad, tensor in zip(grads, window.inputs, strict=True):
        assert grad.shape == tensor.shape and not grad.any()


@pytest.mark.parametrize("name", ["plain", "active and d-nodes", "narrow and wide levels"])
@pytest.mark.parametrize("d", [7, 64])
def test_float32_stays_within_bounds_of_float64(name: str, d: int) -> None:
    """A row adds 2d products and three activations, each with an error of up to 3e-7 (float32's unit is 6e-8), and a
    state passes it on damped by z < 1, over about ten levels: 1e-5 leaves a factor of about five. A gradient adds up
    to W such rows: 1e-4 of its greatest number."""
    settings = {**WINDOWS[name], "d": d}
    right = RandomWindow(**settings)
    window = RandomWindow(**settings, dtype=torch.float32)
    window.inputs = [tensor.detach().float().requires_grad_() for tensor in right.inputs]
    window.grad = right.grad.float()
    for i, (got, expected) in enumerate(zip(window.gradients(), right.gradients(), strict=True)):
        assert got.dtype == torch.float32
        bound = 1e-5 if i == 0 else 1e-4 * float(expected.abs().max())
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=bound)


def test_float32_activations() -> None:
    """tanh within 3.5e-7, never above 1, and a NaN stays a NaN: seen through a state of width 1."""
    x = torch.cat((torch.linspace(-12, 12, 20_001), torch.tensor([torch.inf, -torch.inf, torch.nan])))
    window = RandomWindow(n=len(x), users=100_000, items=100_000, d=1, dtype=torch.float32, limit={"max_depth": 1})
    pre = torch.full((window.written, 3), -100.0)  # z = 0: the new state is n
    pre[: len(x), 2] = x
    zeros = [torch.zeros_like(tensor) for tensor in window.inputs]
    written = level_gru(zeros[0], pre, *zeros[2:], window.schedule)[: len(x), 0]
    assert written[-1].isnan()
    assert written[:-1].abs().max() <= 1
    torch.testing.assert_close(written.double(), x.double().tanh(), rtol=3.5e-7, atol=0, equal_nan=True)


@pytest.mark.parametrize("d", [7, 64])
@pytest.mark.parametrize("name", ["active and d-nodes", "narrow and wide levels", "one wide level"])
def test_bits_do_not_depend_on_the_number_of_threads(name: str, d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor on whether levels run as narrow or as wide ones, and so on which rows share a block."""
    window = RandomWindow(**{**WINDOWS[name], "d": d}, dtype=torch.float32)
    torch.set_num_threads(1)
    first = window.gradients()
    for threads, min_rows in ((1, thread_pool.MIN_ROWS), (2, thread_pool.MIN_ROWS), (2, 1), (3, 1), (2, 1_000_000)):
        torch.set_num_threads(threads)
        monkeypatch.setattr(thread_pool, "MIN_ROWS", min_rows)
        monkeypatch.setattr(thread_pool, "ROWS_PER_PART", min(min_rows, 64))
        for tensor_name, got, expected in zip(("written", *NAMES), window.gradients(), first, strict=True):
            assert torch.equal(got, expected), (threads, min_rows, tensor_name)


def test_inputs_need_not_be_contiguous() -> None:
    window = RandomWindow(active=0.3, limit={"max_dnodes": 5})
    expected = window.gradients()
    window.inputs = [
        torch.stack((tensor.detach(), torch.full_like(tensor, torch.nan)), -1)[..., 0].requires_grad_()
        for tensor in window.inputs
    ]
    window.grad = window.grad.T.contiguous().T
    assert not any(tensor.is_contiguous() for tensor in (*window.inputs, window.grad))
    for got, right in zip(window.gradients(), expected, strict=True):
        assert torch.equal(got, right)


def test_only_requested_gradients_are_returned() -> None:
    window = RandomWindow(active=0.3, limit={"max_dnodes": 5})
    _, *expected = window.gradients()
    for i, right in enumerate(expected):
        inputs = [tensor.detach().requires_grad_(i == j) for j, tensor in enumerate(window.inputs)]
        (got,) = torch.autograd.grad(level_gru(*inputs, window.schedule), inputs[i], window.grad)
        assert torch.equal(got, right)


def test_a_second_backward_pass_is_equal_and_inputs_are_unchanged() -> None:
    window = RandomWindow(active=0.3, d=16)
    before = [tensor.detach().clone() for tensor in window.inputs]
    written = level_gru(*window.inputs, window.schedule)
    first = torch.autograd.grad(written, window.inputs, window.grad, retain_graph=True)
    second = torch.autograd.grad(written, window.inputs, window.grad)
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))
    assert all(torch.equal(one, two) for one, two in zip(before, window.inputs, strict=True))


def test_wrong_shapes_and_types_are_refused_by_name() -> None:
    window = RandomWindow()
    roots, pre, w_own, w_other, b_own = (tensor.detach() for tensor in window.inputs)
    with pytest.raises(ValueError, match=r"pre should be \[80, 9\] for this schedule, not \[79, 9\]"):
        level_gru(roots, pre[1:], w_own, w_other, b_own, window.schedule)
    with pytest.raises(ValueError, match=r"w_other should be \[2, 9, 3\]"):
        level_gru(roots, pre, w_own, w_other.mT, b_own, window.schedule)
    with pytest.raises(ValueError, match=r"roots should be \[rows, d\]"):
        level_gru(roots[:, :0], pre, w_own, w_other, b_own, window.schedule)
    with pytest.raises(TypeError, match=r"b_own is torch\.float32 on cpu, roots torch\.float64 on cpu"):
        level_gru(roots, pre, w_own, w_other, b_own.float(), window.schedule)
    with pytest.raises(TypeError, match=r"float32 or float64, not torch\.bfloat16"):
        level_gru(*(tensor.bfloat16() for tensor in (roots, pre, w_own, w_other, b_own)), window.schedule)
    with pytest.raises(NotImplementedError, match="level_gru does not run on meta yet; it runs on: cpu"):
        level_gru(*(tensor.to("meta") for tensor in (roots, pre, w_own, w_other, b_own)), window.schedule)
