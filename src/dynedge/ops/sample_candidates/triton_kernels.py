"""Triton kernel of sample_candidates, with the same bits as cpu.py."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _splitmix64(x):
    """As dynedge.utils.rng.splitmix64."""
    x += 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _shifted(x, by, key, limit):
    h = by ^ key
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    h = ((h ^ (h >> 16)) >> 16) * limit
    shifted = x + (h >> 16)
    return tl.where(shifted >= limit, shifted - limit, shifted)


@triton.jit
def _permuted(x, y, key, a, b, ROUNDS: tl.constexpr):
    for t in tl.static_range(ROUNDS):
        x = _shifted(x, y, (_splitmix64(key + 2 * t) >> 32).to(tl.uint32), a)
        y = _shifted(y, x, (_splitmix64(key + 2 * t + 1) >> 32).to(tl.uint32), b)
    return x, y


@triton.jit(do_not_specialize=["first", "num_others", "a", "b", "seed", "count"])
def sample(true, first, num_others, a, b, seed, out, count, ROUNDS: tl.constexpr, BC: tl.constexpr):
    k = tl.program_id(0).to(tl.int64)
    position = (tl.zeros([1], tl.int64) + first + k).to(tl.uint64)
    key = _splitmix64(_splitmix64((tl.zeros([1], tl.int64) + seed).to(tl.uint64)) + position)
    a, b = (tl.zeros([1], tl.int32) + a).to(tl.uint32), (tl.zeros([1], tl.int32) + b).to(tl.uint32)
    j = tl.arange(0, BC)
    valid = j < count
    x, y = _permuted(j.to(tl.uint32) % a, j.to(tl.uint32) // a, key, a, b, ROUNDS)
    number = y.to(tl.int64) * a.to(tl.int64) + x.to(tl.int64)
    while tl.max((valid & (number >= num_others)).to(tl.int32), 0) > 0:
        u, v = _permuted(x, y, key, a, b, ROUNDS)
        outside = number >= num_others
        x, y = tl.where(outside, u, x), tl.where(outside, v, y)
        number = y.to(tl.int64) * a.to(tl.int64) + x.to(tl.int64)
    own = tl.load(true + k)
    number += (number >= own).to(tl.int64)
    out += k * (1 + count)
    tl.store(out, own)
    tl.store(out + 1 + j, number, mask=valid)
