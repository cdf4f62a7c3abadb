"""log and exp2 in float32 against float64."""

import numpy as np

from dynedge.ops.vector_math import exp2, log
from dynedge.utils.numba_compile import compiled


@compiled
def log_of(x):
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = log(x[i])
    return out


@compiled
def exp2_of(x):
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = exp2(x[i])
    return out


def test_log():
    rng = np.random.default_rng(0)
    x = np.concatenate([np.exp(rng.uniform(-87, 88, 20_001)), 1 + rng.uniform(-0.5, 2, 20_000)]).astype(np.float32)
    np.testing.assert_allclose(log_of(x), np.log(x.astype(np.float64)), rtol=1.2e-7, atol=1e-7)
    special = np.array([0, 1e-39, 2.0**-126, 1, np.inf, np.nan], np.float32)
    with np.errstate(divide="ignore"):
        expected = np.log(np.where(special < 2.0**-126, 0, special).astype(np.float64))
    np.testing.assert_allclose(log_of(special), expected, rtol=1e-7)
    np.testing.assert_allclose(log_of(np.array([0.5, 3.0])), np.log([0.5, 3.0]), rtol=5e-16)  # two implementations


def test_exp2():
    x = np.random.default_rng(0).uniform(-126, 126, 20_001).astype(np.float32)
    np.testing.assert_allclose(exp2_of(x), np.exp2(x.astype(np.float64)), rtol=2e-7)
    np.testing.assert_array_equal(exp2_of(np.array([-1e9, -127, 0, np.nan], np.float32)), [0, 0, 1, np.nan])
    np.testing.assert_array_equal(exp2_of(np.array([0.5, -300.0])), np.exp2([0.5, -300.0]))


def test_exp2_of_a_number_moved_by_an_integer_has_the_same_significand():
    x = (np.random.default_rng(0).integers(-4096, 4096, 5000) / 1024).astype(np.float32)
    np.testing.assert_array_equal(exp2_of(x - np.float32(29)) * np.float32(2.0**29), exp2_of(x))
