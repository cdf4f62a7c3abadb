"""Tests of the leaderboard page: what it states, highlights and escapes."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dynedge.errors import UsageError
from dynedge.evaluation.list_metrics import TITLES
from dynedge.report.leaderboard_page import HEADINGS, check_folder, page, write_page


def row(model: str, mrr: float, **changes: Any) -> dict[str, Any]:
    intervals = {"mrr": [mrr - 0.01, mrr + 0.01], "recall@10": [0.4, 0.6]}
    return {
        "model": model,
        "mrr": mrr,
        "recall@10": 0.5,
        "intervals": intervals,
        "difference_to_best": {"mrr": mrr - 0.9, "intervals": {"mrr": [mrr - 0.95, mrr - 0.85]}},
        "seconds_per_epoch": 2.5,
        "peak_mib": 300.0,
        "parameters": 1000,
        "seeds": [{"valid": [0.1, 0.3, 0.2]}, {"valid": [0.1, 0.2, 0.25]}],
        "error": None,
        "lists": None,
        **changes,
    }


def leaderboard(*rows: dict[str, Any], protocol: str = "full", items: int = 20_000) -> dict[str, Any]:
    counts = {"events": 1234, "users": 56, "items": items}
    return {"log": "data/shop", "protocol": protocol, "runs": "data/shop-runs", "rows": list(rows), **counts}


BEST = row("edge", 0.9, difference_to_best=None)
FAILED = row("huge", 0.0, seeds=[], error="not enough memory") | dict.fromkeys(("mrr", "intervals"))


@pytest.mark.parametrize(
    ("protocol", "items", "candidates"),
    [
        ("full", 20_000, "all 20,000 items"),
        ("sampled-499", 20_000, "500 items"),
        ("sampled-9999", 20_000, "10,000 items"),
        ("sampled-9999", 144, "144 items"),
    ],
)
def test_the_page_states_how_many_candidates_the_protocol_ranks(protocol: str, items: int, candidates: str) -> None:
    text = page(leaderboard(BEST, protocol=protocol, items=items))
    assert f"ranked among {candidates}" in text
    assert f"--protocol {protocol}<" in text
    assert re.findall(r"[\d,]+ items", text) == [candidates.removeprefix("all ")]


def test_the_page_has_plain_headings_and_the_numbers_of_each_row() -> None:
    text = page(leaderboard(BEST, row("jodie", 0.8)))
    assert "<h1>Leaderboard: shop</h1>" in text
    assert re.findall("<th>(.*?)</th>", text) == list(HEADINGS)
    assert {"MRR with 95&#8239;% confidence interval", "MRR, difference to best"} <= set(HEADINGS)
    assert "-0.1000 <small>-0.150 to -0.050</small>" in text
    assert '<span class="first">0.9000</span>' in text
    assert '<span class="second">0.8000</span>' in text
    assert "1,234 test events of 56 users" in text


def test_every_number_is_in_its_column() -> None:
    second = row("jodie", 0.8, seconds_per_epoch=1234.5, peak_mib=2048.4, parameters=12_345, seeds=[{"valid": [0.1]}])
    second["recall@10"], second["intervals"]["recall@10"] = 0.75, [0.7, 0.79]
    text = page(leaderboard(BEST, second))
    tables = re.findall("<tr>(<td>.*?)</tr>", text, re.DOTALL)
    columns = [dict(zip(HEADINGS, re.findall("<td>(.*?)</td>", cells), strict=True)) for cells in tables]
    plain = [{name: re.sub("<svg.*</svg>|<.*?>", "", cell) for name, cell in one.items()} for one in columns]
    picture = "MRR with 95&#8239;% confidence interval"
    assert plain[1] == {
        "model": "jodie",
        "MRR": "0.8000 0.790 to 0.810",
        picture: "",
        "Recall@10": "0.7500 0.700 to 0.790",
        "MRR, difference to best": "-0.1000 -0.150 to -0.050",
        "s/epoch": "1.23e+03",
        "memory (MiB)": "2,048",
        "parameters": "12.3 k",
        "seeds": "1",
    }
    assert (plain[0]["MRR, difference to best"], plain[0]["seeds"]) == ("–", "2")
    assert "<title>MRR of jodie: 0.8000, 0.7900 to 0.8100</title>" in columns[1][picture]
    marked = [re.findall('class="(first|second)">(.*?)<', one["Recall@10"]) for one in columns]
    assert marked == [[("second", "0.5000")], [("first", "0.7500")]]


def test_every_row_has_a_cell_for_every_heading() -> None:
    text = page(leaderboard(BEST, row("jodie", 0.8), FAILED))
    for cells in re.findall("<tr>(<td>.*?)</tr>", text):
        spans = [int(span) for span in re.findall(r'<td[^>]*colspan="(\d+)"', cells)]
        assert len(re.findall("<td", cells)) - len(spans) + sum(spans) == len(HEADINGS)


def test_a_failed_model_is_shown_with_its_error() -> None:
    text = page(leaderboard(BEST, FAILED))
    assert ">huge</td>" in text
    assert "not enough memory" in text


def test_a_leaderboard_of_failures_only_is_a_page_without_charts() -> None:
    text = page(leaderboard(FAILED))
    assert "<svg" not in text
    assert "not enough memory" in text


def test_models_without_training_time_or_epochs_have_no_charts() -> None:
    static = row("popular", 0.5, seconds_per_epoch=None, peak_mib=None, seeds=[{"valid": []}])
    text = page(leaderboard(static))
    assert "Learning curves" not in text
    assert "MRR by training time" not in text


def test_names_are_escaped_and_tags_are_balanced() -> None:
    text = page(leaderboard(row("<b>&", 0.9, difference_to_best=None), row("jodie", 0.5, error="seed 2: <i>")))
    assert "<figcaption>&lt;b&gt;&amp;</figcaption>" in text
    assert "<b>" not in text
    assert "<i>" not in text
    open_tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag != "meta":
                open_tags.append(tag)

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Reader().feed(text)
    assert not open_tags


def test_the_selected_epoch_of_each_seed_is_marked() -> None:
    text = page(leaderboard(BEST))
    assert "<title>epoch 2: 0.3000</title>" in text
    assert "<title>epoch 3: 0.2500</title>" in text


def test_points_are_further_right_the_slower_and_higher_the_better() -> None:
    fast, slow = row("fast", 0.2, seconds_per_epoch=1.0), row("slow", 0.4, seconds_per_epoch=100.0)
    text = page(leaderboard(slow, fast))
    place = re.compile(r'cx="([\d.]+)" cy="([\d.]+)" r="5.5"><title>(\w+): MRR ([\d.]+), (.*?) per epoch<')
    points = {name: (float(x), float(y), mrr, time) for x, y, name, mrr, time in place.findall(text)}
    assert {name: point[2:] for name, point in points.items()} == {
        "fast": ("0.2000", "1.0 s"),
        "slow": ("0.4000", "1:40 min"),
    }
    assert points["fast"][0] < points["slow"][0]
    assert points["fast"][1] > points["slow"][1], "y counts from the top"


def test_the_page_is_written_to_a_new_folder(tmp_path: Path) -> None:
    check_folder(tmp_path / "page")
    assert write_page(leaderboard(BEST), tmp_path / "page") == tmp_path / "page" / "index.html"
    assert (tmp_path / "page" / "index.html").read_text().startswith("<!doctype html>")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file; give a folder"):
        check_folder(tmp_path / "file")
    with pytest.raises(UsageError, match=r"the folder .*no/such does not exist"):
        check_folder(tmp_path / "no" / "such" / "page")


def test_metrics_of_lists_are_a_table_of_their_own() -> None:
    values = dict(zip(TITLES, [0.1, 0.2, 3.4, None, 0.5, 0.6, 0.7], strict=True))
    text = page(leaderboard(BEST | {"lists": values}, row("jodie", 0.8)))
    table = text[text.index("Metrics beyond accuracy") :].split("</table>")[0]
    assert re.findall(r"<th>(.*?)</th>", table) == ["model", *TITLES.values()]
    cells = ["edge", "0.1000", "0.2000", "3.4000", "–", "0.5000", "0.6000", "0.7000"]
    assert re.findall(r"<td>(.*?)</td>", table) == cells
    assert "Metrics beyond accuracy" not in page(leaderboard(BEST))
