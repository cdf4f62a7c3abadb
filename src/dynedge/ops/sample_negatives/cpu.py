"""others on a CPU: the truth, and at C speed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled
from dynedge.utils.rng import splitmix64, stream_key

U = np.uint32


def sample_negatives(
    true: Tensor, first: int, rest: int, a: int, b: int, count: int, seed: int, rounds: int
) -> Tensor:
    """`rest` is the number of other items."""
    drawn = np.empty((len(true), count), np.int64)
    _draw(true.cpu().numpy(), first, rest, U(a), U(b), np.uint64(seed), rounds, drawn)
    return torch.from_numpy(drawn).to(true.device)


@compiled(inline="always")
def _moved(x: Any, by: Any, key: Any, limit: Any) -> Any:
    """x + hash(by), modulo `limit` ≤ 2^16: nothing leaves 32 bits, so that the compiler does many at once."""
    h = U(by ^ key)
    h = U((h ^ (h >> U(16))) * U(0x85EBCA6B))
    h = U((h ^ (h >> U(13))) * U(0xC2B2AE35))
    h = U(U((h ^ (h >> U(16))) >> U(16)) * limit)
    on = U(x + U(h >> U(16)))
    return min(on, U(on - limit))


@compiled
def _draw(true: Array, first: int, rest: int, a: U, b: U, seed: np.uint64, rounds: int, drawn: Array) -> None:
    count = drawn.shape[1]
    keys = np.empty(2 * rounds, np.uint32)
    x, y = np.empty(count, np.uint32), np.empty(count, np.uint32)
    for k in range(len(drawn)):
        key = stream_key(seed, np.uint64(first + k))
        for t in range(2 * rounds):
            keys[t] = U(splitmix64(key + np.uint64(t)) >> np.uint64(32))
        for j in range(count):
            x[j], y[j] = j % a, j // a
        for t in range(rounds):
            for j in range(count):
                x[j] = _moved(x[j], y[j], keys[2 * t], a)
                y[j] = _moved(y[j], x[j], keys[2 * t + 1], b)
        for j in range(count):
            u, v = x[j], y[j]
            one = np.int64(v) * np.int64(a) + np.int64(u)
            while one >= rest:
                for t in range(rounds):
                    u = _moved(u, v, keys[2 * t], a)
                    v = _moved(v, u, keys[2 * t + 1], b)
                one = np.int64(v) * np.int64(a) + np.int64(u)
            drawn[k, j] = one + (one >= true[k])  # the others, numbered without the true item
