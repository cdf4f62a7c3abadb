"""Compiled random number generator and distributions of the simulator, in integers only."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

U27, U30, U31, U32, U48 = (np.uint64(k) for k in (27, 30, 31, 32, 48))
LOW32 = np.uint64(2**32 - 1)
STEP, MIX1, MIX2 = (np.uint64(k) for k in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))

# No kernel of the simulator allocates, so reference counting is disabled: it made an event four times slower.
kernel = compiled(_nrt=False)


@kernel
def mix_bits(z: Any) -> Any:
    """The finalizer of splitmix64: a bijection that scatters neighbours."""
    z = (z ^ (z >> U30)) * MIX1
    z = (z ^ (z >> U27)) * MIX2
    return z ^ (z >> U31)


@kernel
def random_bits(rng: Array) -> Any:
    """Returns the next 64 random bits (splitmix64)."""
    rng[0] += STEP
    return mix_bits(rng[0])


@kernel
def random_below(rng: Array, n: int) -> Any:
    """Returns an integer in [0, n), for n up to 2^32."""
    return np.int64(((random_bits(rng) >> U32) * np.uint64(n)) >> U32)


@kernel
def chance(rng: Array, share: int) -> Any:
    """True with probability share / 65536."""
    return np.int64(random_bits(rng) >> U48) < share


@kernel
def sample_heavy_tail(rng: Array, table: Array) -> Any:
    """Returns a sample from the table of a HeavyTail."""
    bits = random_bits(rng)
    octave = 0
    while bits >> U32 >= table[octave + 1]:
        octave += 1
    size = table[0] << np.uint64(octave)
    return np.int64(size - table[0] + (((bits & LOW32) * size) >> U32))
