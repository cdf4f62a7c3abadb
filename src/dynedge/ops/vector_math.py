"""exp and tanh for numba kernels: in float32 by arithmetic alone, so that loops over them are vectorised."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from dynedge.ops.gather_matmul import ALLOW_FMA

# exp in float32: 2^n · e^r with |r| ≤ ½ ln 2.


def exp(x: float) -> float:
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


def tanh(x: float) -> float:
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
