"""sample_candidates on a CPU by numba; also the reference implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled
from dynedge.utils.rng import splitmix64, stream_key

U = np.uint32


def sample_candidates(
    true: Tensor, first: int, num_others: int, a: int, b: int, count: int, seed: int, rounds: int
) -> Tensor:
    """`num_others` is the number of items that are not the true one."""
    out = np.empty((len(true), 1 + count), np.int64)
    _fill(true.cpu().numpy(), first, num_others, U(a), U(b), np.uint64(seed), rounds, out)
    return torch.from_numpy(out).to(true.device)


@compiled(inline="always")
def _shifted(x: Any, by: Any, key: Any, limit: Any) -> Any:
    """x + hash(by), modulo `limit` ≤ 2^16, all in 32 bits, so that the loop is vectorised."""
    h = U(by ^ key)
    h = U((h ^ (h >> U(16))) * U(0x85EBCA6B))
    h = U((h ^ (h >> U(13))) * U(0xC2B2AE35))
    h = U(U((h ^ (h >> U(16))) >> U(16)) * limit)
    shifted = U(x + U(h >> U(16)))
    return min(shifted, U(shifted - limit))


@compiled
def _fill(true: Array, first: int, num_others: int, a: U, b: U, seed: np.uint64, rounds: int, out: Array) -> None:
    count = out.shape[1] - 1
    keys = np.empty(2 * rounds, np.uint32)
    x, y = np.empty(count, np.uint32), np.empty(count, np.uint32)
    for k in range(len(out)):
        key = stream_key(seed, np.uint64(first + k))
        for t in range(2 * rounds):
            keys[t] = U(splitmix64(key + np.uint64(t)) >> np.uint64(32))
        for j in range(count):
            x[j], y[j] = j % a, j // a
        for t in range(rounds):
            for j in range(count):
                x[j] = _shifted(x[j], y[j], keys[2 * t], a)
                y[j] = _shifted(y[j], x[j], keys[2 * t + 1], b)
        for j in range(count):
            u, v = x[j], y[j]
            number = np.int64(v) * np.int64(a) + np.int64(u)
            while number >= num_others:
                for t in range(rounds):
                    u = _shifted(u, v, keys[2 * t], a)
                    v = _shifted(v, u, keys[2 * t + 1], b)
                number = np.int64(v) * np.int64(a) + np.int64(u)
            out[k, 1 + j] = number + (number >= true[k])  # skips the true item
        out[k, 0] = true[k]
