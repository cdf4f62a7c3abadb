"""Tests of the figures: written without warnings, with plain labels, also for degenerate input."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text

from dynedge.data.log import EventLog
from dynedge.errors import UsageError
from dynedge.plan.planner import plan_log
from dynedge.report.compare_figure import draw_comparison
from dynedge.report.log_figure import draw_log
from dynedge.report.plan_figure import METHOD_STYLES, draw_plan, example_events
from dynedge.report.run_figure import draw_run
from dynedge.report.style import check_plot_path, figure, log_scales, short_number

CURVES = {method: [(0.0, 90.0), (10.0, 50.0), (100.0, 9.0)] for method in METHOD_STYLES}


@pytest.fixture
def figures() -> list[Any]:
    """The figures saved in a test that uses the fixture `texts`."""
    return []


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch, figures: list[Any]) -> list[str]:
    """All texts of the figures saved in a test."""
    shown: list[str] = []
    for name in ("compare", "log", "plan", "run"):
        module = importlib.import_module(f"dynedge.report.{name}_figure")
        real = module.save

        def save(fig: Any, path: Path, real: Any = real) -> None:
            real(fig, path)
            figures.append(fig)
            shown.extend(text.get_text() for text in fig.findobj(Text))

        monkeypatch.setattr(module, "save", save)
    return shown


def line_data(axes: Any) -> list[tuple[list[float], list[float]]]:
    """The points (x, y) of every line of the axes."""
    return [(np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()) for line in axes.lines]


def assert_png(path: Path) -> None:
    assert path.read_bytes()[1:4] == b"PNG"
    assert path.stat().st_size > 10_000


def small_log(events: int = 500) -> EventLog:
    rng = np.random.default_rng(0)
    return EventLog.from_arrays(rng.integers(0, 30, events), rng.zipf(1.5, events) % 40, np.arange(events) * 60.0)


def write_run(folder: Path, records: list[dict[str, Any]], info: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "run_info.json").write_text(json.dumps(info))
    return folder


def record(epoch: int, mrr: float | None) -> dict[str, Any]:
    recall = None if mrr is None else 2 * mrr
    return {"epoch": epoch, "loss": 3.0 / epoch, "valid_mrr": mrr, "valid_recall@10": recall}


def test_log_figure(tmp_path: Path, texts: list[str]) -> None:
    draw_log(small_log(), tmp_path / "log.png")
    assert_png(tmp_path / "log.png")
    assert {"Activity over time", "Events per user", "number of items with at least x events"} <= set(texts)


def test_log_figure_counts_entities_with_at_least_so_many_events(
    tmp_path: Path, texts: list[str], figures: list[Any]
) -> None:
    log = EventLog.from_arrays([0, 0, 0, 1, 2, 2], [5, 5, 5, 5, 5, 4], np.arange(6) * 3600.0)
    draw_log(log, tmp_path / "log.png")
    _, users, items = figures[0].axes
    assert line_data(users) == [([1, 2, 3], [3, 2, 1])], "3 users have an event, 2 have two, 1 has three"
    assert line_data(items) == [([1, 5], [2, 1])]
    assert "6 events, 3 users, 6 items" in texts


@pytest.mark.parametrize("events", [1, 2])
def test_log_figure_of_a_tiny_log(tmp_path: Path, events: int) -> None:
    draw_log(EventLog.from_arrays([0] * events, [0] * events, [5.0] * events), tmp_path / "log.png")
    assert_png(tmp_path / "log.png")


def test_run_figure_with_longest_paths(tmp_path: Path, texts: list[str], figures: list[Any]) -> None:
    info = {"longest_path": [5, 6], "longest_path_uncut": [20, 30], "dnodes": [3, 5]}
    run = write_run(tmp_path / "run", [record(1, 0.2), record(2, 0.4), record(3, 0.3)], info)
    draw_run(run, tmp_path / "run.png")
    assert_png(tmp_path / "run.png")
    assert {"Training loss", "Validation metrics", "longest path (levels)"} <= set(texts)
    assert {"with 4 d-nodes per window", "MRR, best 0.400 (epoch 2)"} <= set(texts)
    loss, validation, paths = figures[0].axes
    assert line_data(loss) == [([1, 2, 3], [3.0, 1.5, 1.0])]
    assert line_data(validation) == [([1, 2, 3], [0.2, 0.4, 0.3]), ([1, 2, 3], [0.4, 0.8, 0.6])]
    labelled = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in paths.lines}
    assert labelled == {"without d-nodes": [20, 30], "with 4 d-nodes per window": [5, 6]}


@pytest.mark.parametrize("records", [[], [record(1, None)], [record(1, 0.0)]])
def test_run_figure_without_epochs_or_validation(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    draw_run(write_run(tmp_path / "run", records, {}), tmp_path / "run.png")
    assert_png(tmp_path / "run.png")


def test_comparison_figure(tmp_path: Path, texts: list[str], figures: list[Any]) -> None:
    def summary(mrr: float) -> dict[str, Any]:
        intervals = {"mrr": [mrr - 0.1, mrr + 0.1], "recall@10": [0.2, 0.4]}
        return {"events": 1200, "users": 44, "mrr": mrr, "recall@10": 0.3, "intervals": intervals}

    names = [("a/run", "edge", 0.5), ("b/run", "jodie", 0.4), ("b/gru4rec", "gru4rec", 0.3)]
    runs: list[dict[str, Any]] = [
        {"run": run, "model": model, "valid": summary(mrr + 0.07), "test": summary(mrr)} for run, model, mrr in names
    ]
    for run in runs[1:]:
        run["difference_to_best"] = summary(run["test"]["mrr"] - 0.5)
    draw_comparison({"protocol": "sampled-9999", "items": 20_000, "runs": runs}, tmp_path / "runs.png")
    assert_png(tmp_path / "runs.png")
    assert {"MRR", "Recall@10", "MRR, difference to best", "mean with 95 % confidence interval"} <= set(texts)
    assert {"a/run (edge)", "b/run (jodie)", "gru4rec"} <= set(texts)
    numbers = [text for text in texts if re.fullmatch(r"[+-]?0\.\d{3}", text)]
    assert numbers == ["0.500", "0.400", "0.300", *["0.300"] * 3, "-0.100", "-0.200"], "of test events, in this order"
    assert any("1,200 test events of 44 users, items ranked among 10,000 items" in text for text in texts)
    mrr, recall, _ = figures[0].axes
    bars = [([one - 0.1, one + 0.1], [row, row]) for row, one in enumerate((0.5, 0.4, 0.3))]
    dots = [([one], [row]) for row, one in enumerate((0.5, 0.4, 0.3))]
    assert line_data(mrr) == [line for both in zip(bars, dots, strict=True) for line in both]
    assert line_data(recall)[:2] == [([0.2, 0.4], [0, 0]), ([0.3], [0])]


def test_plan_figure(tmp_path: Path, texts: list[str]) -> None:
    draw_plan(tmp_path / "plan.png", CURVES, 90.0, example_events(plan_log(small_log(), windows=3)))
    assert_png(tmp_path / "plan.png")
    assert {"d-nodes per window", "longest path (levels, mean over windows)", "d-node", "initial state"} <= set(texts)
    assert "ψ of an active entity" not in texts
    titles = [text for text in texts if text.startswith("Events ")]
    assert len(titles) == 2
    assert "without d-nodes" in titles[0]
    assert re.search(r"[23] d-nodes: \d+ level", titles[1])
    depths = [int(title.split()[-2]) for title in titles]
    assert depths[1] < depths[0]


def test_plan_figure_shows_active_entities(tmp_path: Path, texts: list[str]) -> None:
    graph = example_events(plan_log(small_log(), windows=3, active_items=20))
    draw_plan(tmp_path / "plan.png", CURVES, 90.0, graph)
    assert "ψ of an active entity" in texts


def test_example_events_fit_on_the_lanes() -> None:
    graph = example_events(plan_log(small_log(), windows=3), least=3, most=9, lanes=6)
    assert 3 <= len(graph.prev) <= 9
    assert len(graph.names) == graph.lanes.max() + 1 <= 6
    assert len(graph.dnodes) <= 3


def test_example_events_are_those_that_depend_on_several_others() -> None:
    alone, repeated = [*range(20)], [30] * 8
    user = [*alone, *repeated, 1, 2, 1, 3, 1, 2, 3, 1, *alone]
    item = [*alone, *repeated, 1, 1, 2, 2, 1, 2, 1, 1, *alone]
    log = EventLog.from_arrays(user, item, np.arange(len(user)) * 1.0)
    graph = example_events(plan_log(log, windows=1), most=8)
    assert graph.first == 29, "not the first events, which are independent, nor a pair that repeats"
    assert len(graph.names) == 5


def test_log_scales_have_plain_numbers(tmp_path: Path) -> None:
    fig = figure(4, 4)
    axes = fig.subplots()
    axes.plot([1, 100], [1, 1e6])
    log_scales(axes)
    fig.savefig(tmp_path / "scales.png")
    x, y = ([label.get_text() for label in axis.get_ticklabels()] for axis in (axes.xaxis, axes.yaxis))
    assert {"1", "2", "5", "10", "100"} <= set(x)
    assert {"1", "10", "1k", "1M"} <= set(y)
    assert not {"2", "5"} & set(y)


def test_short_numbers() -> None:
    numbers = [0.5, 1, 999, 1000, 2500, 3e6, 2e9]
    assert [short_number(number) for number in numbers] == ["0.5", "1", "999", "1k", "2.5k", "3M", "2G"]


def test_a_path_that_cannot_hold_a_figure_is_refused(tmp_path: Path) -> None:
    check_plot_path(tmp_path / "figure.PNG")
    with pytest.raises(UsageError, match=r"figure.doc must end in one of: .*png"):
        check_plot_path(tmp_path / "figure.doc")
    with pytest.raises(UsageError, match=r"the folder .*no does not exist"):
        check_plot_path(tmp_path / "no" / "figure.png")
