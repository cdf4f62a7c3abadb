"""level_gru's Triton kernels against the reference: states, every gradient, odd sizes, poisoned memory, same bits."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from ops.triton_interpreter import DEVICE
from torch import Tensor

from dynedge.ops.level_gru import reference, triton
from dynedge.plan.dnodes import select_dnodes
from dynedge.plan.links import Linker
from dynedge.plan.schedule import build_schedule

FLOAT32, BFLOAT16 = 1e-4, 2e-2  # relative to the greatest number


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("poisoned_anywhere")]


class RandomWindow:
    """Random events, their schedule, and random inputs."""

    def __init__(
        self,
        n: int = 40,
        users: int = 6,
        items: int = 5,
        active: tuple[float, float] = (0.0, 0.0),
        limit: dict[str, Any] | None = None,
        d: int = 16,
        seed: int = 0,
        numbers: int = 0,
    ) -> None:
        """`numbers`: of each event and side besides the rows of pre."""
        rng = np.random.default_rng(seed)
        user, item = (rng.integers(0, most, n).astype(np.int32) for most in (users, items))
        masks = [rng.random(most) < share for most, share in zip((users, items), active, strict=True)]
        prev = Linker(*masks)(user, item)
        self.schedule = build_schedule(
            user, item, prev, select_dnodes(prev, **limit) if limit else np.zeros(0, np.int64)
        )
        torch.manual_seed(seed)
        scale, written = d**-0.5, len(self.schedule.event)
        self.source = torch.randint(max(1, written // 2), (written,)).int()
        self.inputs = [
            torch.randn(self.schedule.first_written, d),
            torch.randn(max(1, written // 2), 3 * d),
            scale * torch.randn(2, 3 * d, d),
            scale * torch.randn(2, 3 * d, d),
            0.5 * torch.randn(2, 3 * d),
        ]
        self.levels = triton.Levels.of(self.schedule, DEVICE)
        self.grad = torch.randn(self.schedule.rows, d)
        self.grad[::3] = 0  # rows that no loss reads
        self.values, self.value_rows, self.value_weights = None, torch.randint(2 * n + 1, (written,)).int(), []
        if numbers:
            self.values = torch.randn(2 * n + 1, numbers)
            self.value_weights = [scale * torch.randn(2, 3 * d, numbers)]

    def side(self) -> np.ndarray:
        """int[W]: of each written row."""
        blocks = self.schedule.blocks
        return np.repeat(np.arange(len(blocks) - 1) % 2, np.diff(blocks))

    def reference(self) -> list[Tensor]:
        """The arena and the gradient of each input, in float64."""
        inputs = [tensor.double().requires_grad_() for tensor in (*self.inputs, *self.value_weights)]
        (roots, pre, *weights), more = inputs[:5], inputs[5:]
        added = pre[self.source.long()]
        if self.values is not None:
            of_rows = more[0][torch.from_numpy(self.side())]
            added = added + (of_rows @ self.values.double()[self.value_rows.long()][:, :, None])[:, :, 0]
        written = reference.level_gru(roots, added, *weights, self.schedule)
        arena = torch.cat([roots, written])
        return [arena.detach(), *torch.autograd.grad(arena, inputs, self.grad.double(), materialize_grads=True)]

    def run(self, bfloat16: bool = False) -> list[Tensor]:
        inputs = [tensor.to(DEVICE).requires_grad_() for tensor in (*self.inputs, *self.value_weights)]
        more = None
        if self.values is not None:
            by_side = self.value_rows[torch.from_numpy(np.argsort(self.side(), kind="stable"))]
            rows = (rows.to(DEVICE) for rows in (self.value_rows, by_side))
            more = triton.EventInputs(self.values.to(DEVICE), *rows, inputs[5])
        with torch.autocast(DEVICE, torch.bfloat16) if bfloat16 else nullcontext():
            arena = triton.level_gru(*inputs[:2], self.source.to(DEVICE), *inputs[2:5], self.levels, more)
        grads = torch.autograd.grad(arena, inputs, self.grad.to(DEVICE))
        return [tensor.cpu() for tensor in (arena.detach(), *grads)]

    def check(self, bfloat16: bool = False) -> None:
        names = "arena", "roots", "pre", "w_own", "w_other", "b_own", *["value_weights"] * len(self.value_weights)
        for name, got, right in zip(names, self.run(bfloat16), self.reference(), strict=True):
            bound = (BFLOAT16 if bfloat16 else FLOAT32) * float(right.abs().max()) if right.numel() else 0
            torch.testing.assert_close(got.double(), right, rtol=0, atol=bound, msg=lambda m, name=name: name + m)


WINDOWS: dict[str, dict[str, Any]] = {
    "plain": {"n": 15},
    "active": {"n": 30, "active": (0.4, 0.4)},
    "d-nodes": {"n": 20, "limit": {"max_dnodes": 7}},
    "active and d-nodes": {"active": (0.3, 0.3), "limit": {"method": "depth", "max_depth": 2}},
    "depth 1": {"limit": {"max_depth": 1}},
    "one event": {"n": 1},
    "one long chain": {"n": 8, "users": 1, "items": 1},
    "many readers of one": {"n": 90, "users": 60, "items": 1, "active": (0.0, 1.0)},
    "one wide level": {"n": 90, "users": 10**6, "items": 10**6},
    "d = 1": {"d": 1, "n": 20, "active": (0.3, 0.3)},
    "d = 7": {"d": 7, "n": 20, "active": (0.3, 0.3), "limit": {"max_dnodes": 5}},
    "d = 64": {"d": 64, "n": 20, "limit": {"max_dnodes": 5}},
    "d = 65": {"d": 65, "n": 8, "users": 3, "items": 3, "active": (0.3, 0.3)},
    "numbers of events": {"n": 30, "active": (0.4, 0.4), "d": 24, "numbers": 2},
    "d = 65, numbers of events": {"n": 10, "d": 65, "numbers": 3},
    "d = 160": {"d": 160, "n": 6, "users": 3, "items": 3, "active": (0.3, 0.0)},
}


@pytest.mark.parametrize("name", WINDOWS)
def test_states_and_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "MAX_SOLO_BYTES", 0)  # all by the kernels with a barrier
    RandomWindow(**WINDOWS[name]).check()


@pytest.mark.parametrize("name", ["active and d-nodes", "one event", "one long chain", "d = 7", "numbers of events"])
@pytest.mark.parametrize("rows", [16, 4])
def test_narrow_levels_are_computed_by_one_program(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also next to levels that are too wide for it."""
    monkeypatch.setattr(triton, "MAX_SOLO_ROWS", rows)
    monkeypatch.setattr(triton, "MIN_SOLO_LEVELS", 0)
    RandomWindow(**WINDOWS[name]).check()


@pytest.mark.parametrize("name", [name for name in WINDOWS if name != "d = 1"])  # whose sums cancel to few bits
def test_states_and_gradients_in_bfloat16(name: str) -> None:
    RandomWindow(**WINDOWS[name]).check(bfloat16=True)


@pytest.mark.parametrize("n", [0, 20])
def test_windows_that_write_nothing(n: int) -> None:
    """No events, or all between active entities."""
    window = RandomWindow(n=n, active=(1.0, 1.0))
    arena, roots, *other_grads = window.run()
    assert torch.equal(arena, window.inputs[0]) and torch.equal(roots, window.grad)
    assert not any(grad.any() for grad in other_grads)


def test_several_levels_in_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one side written, one program can compute all levels, even where programs cannot wait for each other."""
    monkeypatch.setattr(triton, "MAX_SOLO_BYTES", 0)
    monkeypatch.setattr(triton, "_one_level_per_launch", lambda runs, fits_one_program, reverse: runs)
    window = RandomWindow(n=60, users=5, items=7, active=(0.0, 1.0))
    assert [run[1] for run in window.levels.runs] == [window.schedule.depth] and window.schedule.depth > 5
    window.check()


def test_wide_levels_get_launches_of_their_own_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "MAX_SOLO_ROWS", 0)
    monkeypatch.setattr(triton, "WIDE", 4)
    window = RandomWindow(n=50, users=12, items=12)
    kinds = [rows >= 4 for _, _, rows in window.levels.runs]
    assert any(kinds) and not all(kinds)
    window.check()


def test_runs_cover_all_levels_in_order() -> None:
    blocks = np.cumsum([0, 90000, 1, 50000, 7, 100, 0, 3, 300, 5000, 6000, 0, 1])
    assert triton.runs(blocks) == [(0, 2, 90000), (2, 4, 300), (4, 5, 6000), (5, 6, 1)]
    assert triton.runs(np.array([7])) == []


def test_short_runs_of_narrow_levels_join_their_neighbours() -> None:
    """Another launch would cost more than it gains."""
    sides = np.array([200, *[9] * 15, 20, 30, *[9] * 16, 300])
    blocks = np.concatenate([[0], np.cumsum(np.stack([sides, sides // 2], 1))])
    assert triton.runs(blocks) == [(0, 18, 200), (18, 34, 9), (34, 35, 300)]


def test_same_bits_every_time() -> None:
    window = RandomWindow(n=15, active=(0.2, 0.2), limit={"max_dnodes": 5})
    first, second = window.run(bfloat16=True), window.run(bfloat16=True)
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))
