"""Counter-based random numbers: known bits, every value of a range, independent streams."""

import numpy as np

from dynedge.utils.rng import random_below, splitmix64, stream_key

U = np.uint64


def test_splitmix64_has_the_published_bits():
    state, expected = 0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    for bits in expected:
        assert int(splitmix64(U(state))) == bits
        state = (state + 0x9E3779B97F4A7C15) % 2**64


def test_numbers_below_a_limit_take_every_value_equally_often():
    key = U(stream_key(U(3), U(5)))
    drawn = np.array([int(random_below(U(7), key, U(k))) for k in range(7000)])
    counts = np.bincount(drawn)
    assert len(counts) == 7
    assert abs(counts - 1000).max() < 150, "five standard deviations"
    other = [int(random_below(U(7), U(stream_key(U(3), U(6))), U(k))) for k in range(100)]
    assert other != drawn[:100].tolist()
