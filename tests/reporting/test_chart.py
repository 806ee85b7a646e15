"""Line charts: points match the axes."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from retrievalkit.reporting.chart import HEIGHT, WIDTH, line_chart

SVG = "{http://www.w3.org/2000/svg}"


def drawn(chart):
    return ElementTree.fromstring(chart)


def texts(chart):
    return [element.text for element in drawn(chart).iter(f"{SVG}text")]


def lines(chart):
    return [
        [tuple(map(float, pair.split(","))) for pair in element.get("points").split()]
        for element in drawn(chart).iter(f"{SVG}polyline")
    ]


def test_points_are_placed_in_proportion():
    ((low, middle, high),) = lines(line_chart({"loss": [(0, 1.0), (50, 2.0), (100, 3.0)]}, x="step", y="loss"))
    assert low[0] < middle[0] < high[0] <= WIDTH
    assert 0 <= high[1] < middle[1] < low[1] <= HEIGHT
    assert middle == pytest.approx(((low[0] + high[0]) / 2, (low[1] + high[1]) / 2), abs=0.1)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(0, 0.13), (10_000, 0.61)], {"step", "loss", "0", "2,000", "10,000", "0.2", "0.6"}),
        ([(0, 0.0), (10, 2e-5)], {"0", "5.0e-06", "2.0e-05"}),
    ],
)
def test_axes_have_names_and_round_short_ticks(points, expected):
    shown = texts(line_chart({"loss": points}, x="step", y="loss"))
    assert expected <= set(shown)
    assert "-0" not in shown
    assert max(map(len, shown)) < 8


def test_several_series_have_a_legend_and_their_own_colours():
    points = [(0, 1.0), (1, 2.0)]
    chart = line_chart({f"run <{n}>": points for n in range(8)}, x="x", y="y")
    assert {"run <0>", "run <7>"} <= set(texts(chart))
    looks = {(element.get("style"), element.get("stroke-dasharray")) for element in drawn(chart).iter(f"{SVG}polyline")}
    assert len(looks) == 8
    assert "only" not in texts(line_chart({"only": points}, x="x", y="y"))


def test_values_that_are_not_finite_are_left_out():
    assert len(lines(line_chart({"a": [(0, 1.0), (1, float("nan")), (2, 2.0)]}, x="x", y="y"))[0]) == 2
    for empty in ({}, {"a": []}, {"a": [(0, float("inf"))]}):
        assert "no values" in texts(line_chart(empty, x="x", y="y"))
    assert "<circle" in line_chart({"a": [(3, 5.0)]}, x="x", y="y")


@pytest.mark.parametrize("spread", [1e-9, 1e-3, 1.0, 7e6])
def test_ticks_are_few_and_distinct_at_any_scale(spread):
    labels = [text for text in texts(line_chart({"a": [(0, 0.0), (spread, 1.0)]}, x="", y="")) if text]
    across = labels[: labels.index("0.0", 1)] if "0.0" in labels[1:] else labels
    assert 3 <= len(across) <= 9
    assert len(set(across)) == len(across)


def test_a_long_series_is_thinned_and_keeps_its_ends():
    chart = line_chart({"loss": [(step, 1 / (step + 1)) for step in range(100_000)]}, x="step", y="loss")
    (points,) = lines(chart)
    assert 500 < len(points) <= 1_500
    assert points[-1][0] == max(x for x, _ in points)
