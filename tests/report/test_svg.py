"""Tests of SVG scales, ticks and label placement."""

from __future__ import annotations

import re

import pytest

from dynedge.report.svg import Scale, chart, dot, labels


def test_a_scale_maps_its_ends_to_pixels() -> None:
    linear, log = Scale(0, 10, 100, 200), Scale(1, 100, 0, 80, log=True)
    assert [linear(0), linear(5), linear(10)] == [100, 150, 200]
    assert [log(1), log(10), log(100)] == pytest.approx([0, 40, 80])
    assert Scale(3, 3, 10, 20)(3) == 10


@pytest.mark.parametrize(
    ("scale", "ticks"),
    [
        (Scale(0, 10, 0, 1), [0, 2, 4, 6, 8, 10]),
        (Scale(0, 0.26, 0, 1), [0, 0.1, 0.2]),
        (Scale(0.13, 0.41, 0, 1), [0.2, 0.3, 0.4]),
        (Scale(1, 3, 0, 1, integer=True), [1, 2, 3]),
        (Scale(0.9, 4, 0, 1, log=True), [1, 1.5, 2, 3]),
        (Scale(0.5, 60, 0, 1, log=True), [0.5, 1, 2, 5, 10, 20, 50]),
        (Scale(1, 10_000, 0, 1, log=True), [1, 10, 100, 1000, 10_000]),
    ],
)
def test_ticks_are_round_numbers(scale: Scale, ticks: list[float]) -> None:
    assert scale.ticks() == pytest.approx(ticks)


def test_labels_of_close_points_do_not_overlap() -> None:
    x = Scale(0, 1, 0, 700)
    points = [(300.0, 100.0), (305.0, 103.0), (302.0, 98.0), (690.0, 100.0)]
    parts = labels(points, ["gru4rec", "jodie", "sasrec", "at the border"], ["first", "second", "", ""], x)
    texts = [part for part in parts if part.startswith("<text")]
    assert len(texts) == 4
    rows = sorted(float(y) for y in re.findall(r' y="([\d.]+)"', "".join(texts[:3])))
    sides = re.findall(r'text-anchor="(\w+)"', "".join(texts))
    assert len(set(zip(rows, sides, strict=False))) == 3
    assert sides[3] == "end"  # to the left of its point: there is no space to the right


def test_text_is_escaped() -> None:
    assert "<b>" not in chart(10, 10, [dot(1, 1, "other", tooltip="<b>")], "<b>")
