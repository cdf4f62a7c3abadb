"""Random numbers that are a function of their place: the same on every machine, in any order, at C speed."""

from __future__ import annotations

import numpy as np

from dynedge.utils.compile import compiled


@compiled
def mixed(x: np.uint64) -> np.uint64:
    """Splitmix64: a step, then a bijection that scatters neighbours."""
    x += np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compiled
def stream(seed: np.uint64, number: np.uint64) -> np.uint64:
    """The key of stream `number`."""
    return mixed(mixed(seed) + number)


@compiled
def below(limit: np.uint64, key: np.uint64, place: np.uint64) -> np.uint64:
    """The draw at `place` of a stream, uniform below `limit` (under 2^32)."""
    return ((mixed(key + place) >> np.uint64(32)) * limit) >> np.uint64(32)
