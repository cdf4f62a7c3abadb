"""Training output: metrics.jsonl, progress on stderr, and trackers on request."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from dynedge.training.trackers import Trackers
from dynedge.training.train_state import Record
from dynedge.utils.atomic_io import write_text
from dynedge.utils.progress import Progress, clock, print_line, quantity

METRICS = "metrics.jsonl"


class TrainingLogger:
    """Writes one record per epoch to `folder` and progress to stderr; no folder: no files, quiet: no progress."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        quiet: bool = False,
        track: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`track` names trackers (trackers.py), which get `settings` too."""
        self.folder, self.quiet, self._settings = folder, quiet, settings or {}
        self._trackers = Trackers(track, folder)
        self._file: TextIO | None = None
        self._epochs = 0
        self._progress = Progress("training", 0, quiet=True)

    def start(self, history: list[Record], epochs: int, events: int) -> None:
        """Opens the outputs. `history` replaces metrics.jsonl, which may have lines past the checkpoint.

        `events` is the number of events left to train on, over all epochs.
        """
        self._trackers.start(self._settings, len(history))
        self._epochs = epochs
        self._progress = Progress("training", events, quiet=self.quiet)
        if self.folder:
            write_text(self.folder / METRICS, "".join(map(_json_line, history)))
            self._file = open(self.folder / METRICS, "a", encoding="utf-8")  # noqa: SIM115
        if history:
            self.message(f"resuming after epoch {history[-1]['epoch']}")

    def log_window(self, epoch: int, events: int, metrics: dict[str, float]) -> None:
        """Advances the progress line by one window."""
        shown = "".join(f", {name} {metrics[name]:.4g}" for name in ("loss", "residual") if name in metrics)
        self._progress.description = f"epoch {epoch + 1}/{self._epochs}{shown}"
        self._progress.advance(events)

    def log_epoch(self, record: Record) -> None:
        """Writes an epoch's record to all outputs."""
        if self._file:
            self._file.write(_json_line(record))
            self._file.flush()
        self._trackers.log(record["epoch"], record)
        self.message(_sentence(record, self._epochs))

    def message(self, line: str) -> None:
        """Prints a line on stderr."""
        if not self.quiet:
            print_line(line)

    def close(self) -> None:
        self._progress.erase()
        if self._file:
            self._file.close()
        self._trackers.close()


def _sentence(record: Record, epochs: int) -> str:
    parts = [f"epoch {record['epoch']}/{epochs}", f"loss {record['loss']:.4f}"]
    if "residual" in record:
        parts.append(f"residual {record['residual']:.4g}")
    if "state_norm" in record:
        parts.append(f"state norm {record['state_norm']:.3g}")
    if record["valid_mrr"] is not None:
        parts.append(f"valid MRR {record['valid_mrr']:.4f}, Recall@10 {record['valid_recall@10']:.4f}")
    parts.append(f"{quantity(record['events_per_s'])} events/s")
    parts.append(f"{clock(record['seconds'])} + {clock(record['valid_seconds'])} validation")
    return ", ".join(parts)


def _json_line(record: Record) -> str:
    """Returns the record as a line of strict JSON, in which NaN and infinity become null."""
    return json.dumps({name: _finite_or_none(value) for name, value in record.items()}) + "\n"


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
