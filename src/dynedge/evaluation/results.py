"""Results of an evaluation and of a comparison as tables, for the Python API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dynedge.data.frames import Frame
from dynedge.evaluation.list_metrics import LIST_METRICS
from dynedge.evaluation.metrics import METRICS
from dynedge.evaluation.summary import describe_candidates

PARTS = "valid", "test"


class Evaluation(Frame):
    """Metrics of one model: a row per part of the split and metric (part, metric, value, low, high).

    `low` and `high` bound the 95 % confidence interval. `valid` and `test` are the summaries as `dynedge evaluate
    --json` prints them, and `mrr`, `recall_at_10` the main test metrics. Metrics of recommended lists, such as
    coverage@10, are there if `evaluate` was called with `lists=True`; they have no interval.
    """

    def __init__(self, model: str, protocol: str, items: int, valid: dict[str, Any], test: dict[str, Any]) -> None:
        self.model, self.protocol, self.items, self.valid, self.test = model, protocol, items, valid, test
        summaries = {"valid": valid, "test": test}
        rows = [(part, name, *_interval(summaries[part], name)) for part in PARTS for name in METRICS]
        rows += [("test", name, test[name], None, None) for name in LIST_METRICS if name in test]
        super().__init__(_columns(("part", "metric", "value", "low", "high"), rows))

    @property
    def mrr(self) -> float | None:
        return self.test["mrr"]

    @property
    def recall_at_10(self) -> float | None:
        return self.test["recall@10"]

    def __repr__(self) -> str:
        candidates = describe_candidates(self.protocol, self.items)
        return (
            f"Evaluation({self.model}: {_main_metrics(self.test)}; {self.test['events']:,} test events, {candidates})"
        )


class Comparison(Frame):
    """Test metrics of several models on the same events, the best by MRR first.

    A row per model and metric: value and its 95 % interval (low, high), and the paired mean difference to the best
    model with its interval (difference, difference_low, difference_high), empty for the best itself.
    """

    def __init__(self, models: Sequence[Mapping[str, Any]]) -> None:
        self.models = [str(model["name"]) for model in models]
        self._tests = [model["test"] for model in models]
        rows = [
            (model["name"], name, *_interval(model["test"], name), *_interval(model.get("difference_to_best"), name))
            for model in models
            for name in METRICS
        ]
        rows += [
            (model["name"], name, model["test"][name], *[None] * 5)
            for model in models
            for name in LIST_METRICS
            if name in model["test"]
        ]
        names = "model", "metric", "value", "low", "high", "difference", "difference_low", "difference_high"
        super().__init__(_columns(names, rows))

    @property
    def best(self) -> str:
        """The model with the highest test MRR."""
        return self.models[0]

    def __repr__(self) -> str:
        width = max(map(len, self.models))
        lines = (f"{m:{width}}  {_main_metrics(test)}" for m, test in zip(self.models, self._tests, strict=True))
        return "Comparison on {:,} test events\n".format(self._tests[0]["events"]) + "\n".join(lines)


def _main_metrics(test: Mapping[str, Any]) -> str:
    texts = []
    for name, title in (("mrr", "MRR"), ("recall@10", "Recall@10")):
        value, low, high = _interval(test, name)
        texts.append(f"{title} -" if value is None else f"{title} {value:.4f} [{low:.4f}, {high:.4f}]")
    return ", ".join(texts)


def _interval(summary: Mapping[str, Any] | None, name: str) -> tuple[float | None, float | None, float | None]:
    if summary is None or summary[name] is None:
        return None, None, None
    low, high = summary["intervals"][name]
    return summary[name], low, high


def _columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
