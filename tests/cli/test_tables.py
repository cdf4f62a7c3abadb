"""Tables: plain text columns, and rich's on a terminal."""

import re
import sys

from dynedge.cli.tables import LEGEND, mark_best, metric_cell, plain_table, rich_table, table

ROWS = [["model", "MRR"], ["edge", "0.5123 [0.4, 0.6]"], ["a [bold]name[/bold]", "-"]]


def test_plain_tables_align_the_first_column_left_and_the_others_right():
    assert plain_table(ROWS).splitlines() == [
        "model                              MRR",
        "edge                 0.5123 [0.4, 0.6]",
        "a [bold]name[/bold]                  -",
    ]
    assert plain_table([["a", "b"], ["ccc", "ddd"]], text_columns=(0, 1)) == "a    b\nccc  ddd"


def test_rich_tables_hold_the_same_cells_and_no_markup():
    drawn = rich_table(ROWS, width=80)
    assert "\x1b[1m" in drawn, "headings are bold"
    plain = re.sub(r"\x1b\[[0-9;]*m", "", drawn)
    assert [line.split() for line in plain.splitlines() if "─" not in line] == [
        line.split() for line in plain_table(ROWS).splitlines()
    ]
    assert "─" in plain
    assert "\x1b[1m" not in rich_table(ROWS[1:], header=False)


def test_a_terminal_gets_the_rich_table(monkeypatch):
    assert table(ROWS) == plain_table(ROWS)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "\x1b[1m" in table(ROWS)


def test_cells_show_the_metric_and_its_interval():
    summary = {"mrr": 0.5, "mean_rank": 1234.5, "intervals": {"mrr": [0.4, 0.6], "mean_rank": [1000.0, 2000.0]}}
    assert metric_cell("mrr", summary) == "0.5000 [0.4000, 0.6000]"
    assert metric_cell("mrr", summary, signed=True) == "+0.5000 [+0.4000, +0.6000]"
    assert metric_cell("mean_rank", summary) == "1,234.5 [1,000.0, 2,000.0]"
    assert metric_cell("mrr", {"mrr": None}) == "-"


def test_the_best_two_values_are_marked_and_ties_share_a_mark():
    assert mark_best("mrr", [0.1, 0.3, None, 0.3, 0.2]) == ["0.1000 ", "0.3000*", "- ", "0.3000*", "0.2000°"]
    assert mark_best("mean_rank", [5.0, 2.0]) == ["5.0°", "2.0*"]
    assert LEGEND == "* best, ° second best"
