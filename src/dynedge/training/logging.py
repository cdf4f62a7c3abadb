"""What is told while training: metrics.jsonl, a moving line on a terminal or plain lines, TensorBoard if asked."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, TextIO

from dynedge.errors import UsageError
from dynedge.training.train_state import Record
from dynedge.utils.atomic_io import write_text
from dynedge.utils.progress import Progress, clock, quantity

METRICS = "metrics.jsonl"


class RunLog:
    """Given no folder it writes no file; quiet, it prints nothing."""

    def __init__(self, folder: Path | None = None, *, quiet: bool = False, tensorboard: bool = False) -> None:
        self.folder, self.quiet = folder, quiet
        self._terminal = sys.stderr.isatty()
        self._new_board = _tensorboard() if tensorboard and folder else None
        self._board: Any = None
        self._file: TextIO | None = None
        self._epochs = 0
        self._progress = Progress("training", 0, quiet=True)

    def begin(self, history: list[Record], epochs: int, events: int) -> None:
        """`events` are still to be trained on. Lines that a killed run wrote past its checkpoint go."""
        self._epochs = epochs
        self._progress = Progress("training", events, quiet=self.quiet)
        if self.folder:
            write_text(self.folder / METRICS, "".join(map(_line, history)))
            self._file = open(self.folder / METRICS, "a", encoding="utf-8")  # noqa: SIM115
        if self._new_board and self.folder:
            self._board = self._new_board(str(self.folder / "tensorboard"), purge_step=len(history) + 1)
        if history:
            self.say(f"going on after epoch {history[-1]['epoch']}")

    def window(self, epoch: int, events: int, log: dict[str, float]) -> None:
        shown = "".join(f", {name} {log[name]:.4g}" for name in ("loss", "residual") if name in log)
        self._progress.what = f"epoch {epoch + 1}/{self._epochs}{shown}"
        self._progress.advance(events)

    def epoch(self, record: Record) -> None:
        if self._file:
            self._file.write(_line(record))
            self._file.flush()
        if self._board:
            for name, value in record.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(name, value, record["epoch"])
        self.say(_sentence(record, self._epochs))

    def say(self, line: str) -> None:
        if not self.quiet:
            print(f"\r\x1b[K{line}" if self._terminal else line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._terminal and not self.quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        if self._file:
            self._file.close()
        if self._board:
            self._board.close()


def _sentence(record: Record, epochs: int) -> str:
    parts = [f"epoch {record['epoch']}/{epochs}", f"loss {record['loss']:.4f}"]
    if "residual" in record:
        parts.append(f"residual {record['residual']:.4g}")
    if record["valid_mrr"] is not None:
        parts.append(f"valid MRR {record['valid_mrr']:.4f}, Recall@10 {record['valid_recall@10']:.4f}")
    parts.append(f"{quantity(record['events_per_s'])} events/s")
    parts.append(f"{clock(record['seconds'])} + {clock(record['valid_seconds'])} validation")
    return ", ".join(parts)


def _line(record: Record) -> str:
    """Strict JSON: a number that is none becomes null."""
    return json.dumps({name: _plain(value) for name, value in record.items()}) + "\n"


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _tensorboard() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError("--tensorboard needs TensorBoard: pip install 'dynedge[track]'.") from None
    return SummaryWriter
