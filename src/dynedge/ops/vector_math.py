"""exp, exp2, log and tanh for numba kernels: in float32 by arithmetic alone, so that loops are vectorised."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from dynedge.ops.gather_matmul import ALLOW_FMA

# exp in float32: 2^n · e^r with |r| ≤ ½ ln 2.


def exp(x: Any) -> Any:
    """e^x for x ≤ 0. Exact in float64; in float32 within 2e-7, relative, and 0 below -87."""
    return math.exp(x)


LOW, LOG2E, LN2_HIGH, LN2_LOW = (np.float32(v) for v in (-87.0, 1.44269504, 0.693359375, -2.12194440e-4))
E2, E3, E4, E5, E6 = (np.float32(1 / math.factorial(i)) for i in range(2, 7))
ZERO, ONE, LEAST = np.float32(0), np.float32(1), np.float32(-126)
ROUND = np.float32(12582912.0)  # 1.5 · 2^23: adding it rounds to an integer


@intrinsic
def _power_of_two(_: Any, n: Any) -> Any:
    """2^n as a float32, for an integer n from -126 to 127: n + 127 as the bits of the exponent."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(32)
        raised = b.add(b.fptosi(args[0], word), ir.Constant(word, 127))
        return b.bitcast(b.shl(raised, ir.Constant(word, 23)), ir.FloatType())

    return types.float32(types.float32), generate


def _exp_32(x: Any) -> Any:
    y = LOW if x < LOW else x  # a NaN stays a NaN
    n = (y * LOG2E + ROUND) - ROUND
    r = (y - n * LN2_HIGH) - n * LN2_LOW
    power = ((((E6 * r + E5) * r + E4) * r + E3) * r + E2) * r * r + r + ONE
    value = power * _power_of_two(n if n > LEAST else LEAST)
    return ZERO if x < LOW else value


def _exp_64(x: Any) -> Any:
    return math.exp(x)


@overload(exp, jit_options={"fastmath": ALLOW_FMA, "error_model": "numpy"})
def _exp_of(x: Any) -> Any:
    return _exp_32 if x == types.float32 else _exp_64


def tanh(x: Any) -> Any:
    """tanh: exact in float64; in float32 within 3.5e-7, by arithmetic alone, so that loops are vectorised."""
    return math.tanh(x)


# x P(x²) / Q(x²), fitted for the least relative error up to END (6e-9), where tanh is 1 within 3e-7.
END = np.float32(7.9)
P0, P1, P2, P3, P4 = (np.float32(p) for p in (1, 0.1345062043, 3.578991849e-3, 2.202324203e-5, 1.542796805e-8))
Q0, Q1, Q2, Q3, Q4 = (np.float32(q) for q in (1, 0.4678394843, 2.619223728e-2, 3.423650256e-4, 8.59877826e-7))


def _tanh_64(x: Any) -> Any:
    return math.tanh(x)


def _tanh_32(x: Any) -> Any:
    x = END if x > END else x  # not min(x, END), which would hide a NaN
    x = -END if x < -END else x
    y = x * x
    return x * ((((P4 * y + P3) * y + P2) * y + P1) * y + P0) / ((((Q4 * y + Q3) * y + Q2) * y + Q1) * y + Q0)


@overload(tanh, jit_options={"fastmath": ALLOW_FMA, "error_model": "numpy"})
def _tanh_of(x: Any) -> Any:
    return _tanh_32 if x == types.float32 else _tanh_64


def log(x: Any) -> Any:
    """Natural logarithm of x ≥ 0. Exact in float64; in float32 within 1e-7, relative, and -inf below 2^-126."""
    return math.log(x)


SQRT_HALF_BITS = 0x3F3504F3
INFINITY, MINUS_INFINITY, LEAST_NORMAL = np.float32(np.inf), np.float32(-np.inf), np.float32(2.0**-126)
L2, L3, L4, L5, L6, L7, L8, L9, L10 = (
    np.float32(c)
    for c in (
        -0.5,
        3.3333331174e-1,
        -2.4999993993e-1,
        2.0000714765e-1,
        -1.6668057665e-1,
        1.4249322787e-1,
        -1.2420140846e-1,
        1.1676998740e-1,
        -1.1514610310e-1,
    )
)
L11 = np.float32(7.0376836292e-2)


@intrinsic
def _split(_: Any, x: Any) -> Any:
    """(m, e) as float32, for a normal x = m · 2^e > 0 with m from √½ to √2."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(32)
        bits = b.sub(b.bitcast(args[0], word), ir.Constant(word, SQRT_HALF_BITS))
        exponent = b.ashr(bits, ir.Constant(word, 23))
        fraction = b.add(b.and_(bits, ir.Constant(word, 0x7FFFFF)), ir.Constant(word, SQRT_HALF_BITS))
        parts = b.bitcast(fraction, ir.FloatType()), b.sitofp(exponent, ir.FloatType())
        return context.make_tuple(b, signature.return_type, parts)

    return types.UniTuple(types.float32, 2)(types.float32), generate


def _log_32(x: Any) -> Any:
    m, e = _split(x)
    f = m - ONE
    power = ((((((((L11 * f + L10) * f + L9) * f + L8) * f + L7) * f + L6) * f + L5) * f + L4) * f + L3) * f + L2
    value = e * LN2_HIGH + (e * LN2_LOW + (power * f * f + f))
    value = MINUS_INFINITY if x < LEAST_NORMAL else value
    return value if x < INFINITY else x  # a NaN stays a NaN


def _log_64(x: Any) -> Any:
    return np.log(x)


@overload(log, jit_options={"fastmath": ALLOW_FMA, "error_model": "numpy"})
def _log_of(x: Any) -> Any:
    return _log_32 if x == types.float32 else _log_64


def exp2(x: Any) -> Any:
    """2^x. Exact in float64; in float32 within 2e-7, relative, and 0 below 2^-126.

    For an integer n, 2^(x + n) has the bits of 2^x · 2^n.
    """
    return math.pow(2.0, x)


T1, T2, T3, T4, T5, T6, T7 = (np.float32(math.log(2) ** i / math.factorial(i)) for i in range(1, 8))
MOST = np.float32(127)


def _exp2_32(x: Any) -> Any:
    y = LEAST if x < LEAST else x  # a NaN stays a NaN
    y = MOST if y > MOST else y
    n = (y + ROUND) - ROUND
    r = y - n
    power = ((((((T7 * r + T6) * r + T5) * r + T4) * r + T3) * r + T2) * r + T1) * r + ONE
    value = power * _power_of_two(n)
    return ZERO if x < LEAST else value


def _exp2_64(x: Any) -> Any:
    return np.exp2(x)


@overload(exp2, jit_options={"fastmath": ALLOW_FMA, "error_model": "numpy"})
def _exp2_of(x: Any) -> Any:
    return _exp2_32 if x == types.float32 else _exp2_64
