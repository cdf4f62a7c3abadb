"""Counter-based random numbers: each is a pure function of (seed, stream, position), the same on every machine."""

from __future__ import annotations

import numpy as np

from dynedge.utils.numba_compile import compiled


@compiled
def splitmix64(x: np.uint64) -> np.uint64:
    """Returns 64 pseudo-random bits for a counter: the splitmix64 step and its finalizer, a bijection."""
    x += np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compiled
def stream_key(seed: np.uint64, stream: np.uint64) -> np.uint64:
    """Returns the key of an independent stream of random numbers."""
    return splitmix64(splitmix64(seed) + stream)


@compiled
def random_below(limit: np.uint64, key: np.uint64, position: np.uint64) -> np.uint64:
    """Returns the integer at `position` of a stream, uniform in [0, limit); `limit` is below 2^32."""
    return ((splitmix64(key + position) >> np.uint64(32)) * limit) >> np.uint64(32)
