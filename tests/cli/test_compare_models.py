"""The table of `dynedge compare LOG`, from a given leaderboard; tests/experiments trains real ones."""

import re

from dynedge.cli.compare_models import _text


def row(model, mrr, recall, **changes):
    intervals = {"mrr": [mrr - 0.01, mrr + 0.01], "recall@10": [recall - 0.02, recall + 0.02]}
    difference = {"mrr": mrr - 0.9, "intervals": {"mrr": [mrr - 0.95, mrr - 0.85]}}
    measured = {"seconds_per_epoch": 2.5, "peak_mib": 3000.4, "parameters": 12_345}
    values = {"model": model, "mrr": mrr, "recall@10": recall, "intervals": intervals, **measured}
    return {**values, "difference_to_best": difference, "seeds": [{}, {}], "error": None, "lists": None, **changes}


def test_every_number_is_in_its_column():
    rows = [
        row("edge", 0.9, 0.5, difference_to_best=None),
        row("jodie", 0.8, 0.7, seconds_per_epoch=None, peak_mib=None, seeds=[{}]),
        row("slow", 0.7, 0.6, error="seed 1: stopped"),
        row("huge", 0.0, 0.0, seeds=[], error="no memory"),
    ]
    counts = {"events": 1234, "users": 56, "items": 20_000, "protocol": "sampled-499"}
    board = {"log": "shop", "runs": "shop-runs", "best": "edge", "rows": rows, **counts}
    heading, table, legend, failed = _text(board).split("\n\n")
    assert heading.startswith("shop, 1,234 test events of 56 users, items ranked among 500 items")
    first, *lines = (re.split(r"\s{2,}(?!\[)", line) for line in table.splitlines())
    measured = ["MRR, 95 % interval", "difference to best", "Recall@10, 95 % interval"]
    assert first == ["model", "seeds", *measured, "s/epoch", "peak MiB", "parameters"]
    cost = ["2.5", "3,000", "12.3 k"]
    assert lines == [
        ["edge", "2", "0.9000* [0.8900, 0.9100]", "0.5000  [0.4800, 0.5200]", *cost],
        [
            "jodie",
            "1",
            "0.8000° [0.7900, 0.8100]",
            "-0.1000 [-0.1500, -0.0500]",
            "0.7000* [0.6800, 0.7200]",
            "-",
            "-",
            "12.3 k",
        ],
        ["slow", "2", "0.7000  [0.6900, 0.7100]", "-0.2000 [-0.2500, -0.1500]", "0.6000° [0.5800, 0.6200]", *cost],
    ]
    assert "mean difference per event to edge" in legend
    assert legend.endswith("runs: shop-runs")
    assert failed.splitlines() == ["failed:", "  slow: seed 1: stopped", "  huge: no memory"]
