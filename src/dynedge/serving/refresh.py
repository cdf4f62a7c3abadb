"""Refreshes a served run: export of the journal, append to the run's log, update, guarded swap of the run folder.

Every step can be interrupted and repeated: rows enter the log whole or not at all, and never twice; an update
resumes; the folders are exchanged in one system call. A candidate that ranks the log's latest events worse than the
current run is dropped.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from dynedge.data.ingest.append import append
from dynedge.data.ingest.schema import Schema
from dynedge.data.log import EventLog, read_log
from dynedge.errors import DataError, DynedgeError
from dynedge.evaluation.metrics import mean
from dynedge.inference.event_input import Event
from dynedge.inference.session import Session
from dynedge.runs.folder import CURRENT_STATE, MODEL, RUN_FILES, RunFolder, check_finished, read_config, update_info
from dynedge.runs.manifest import write_manifest
from dynedge.runs.update_run import UpdateConfig, ranks_without_training, update_run
from dynedge.serving.journal import Entry, Journal
from dynedge.serving.journal_export import write_events
from dynedge.serving.validation import applicable_events
from dynedge.utils.atomic_io import exchange, file_sha256, write_text
from dynedge.utils.signals import StopSignal
from dynedge.utils.tensor_io import save_tensors, with_prefixes

HELD_BACK = 5000  # maximum number of latest events, of the test part, on which a candidate is compared
COLUMNS = ("user_id", "item_id", "timestamp", "event_id")
RECORD = "refresh.json"  # in the service's folder, and in a run that replaced another one


@dataclass(frozen=True)
class Refreshed:
    """Outcome of a refresh, and how many candidates were accepted and dropped so far."""

    events: int  # added to the log
    accepted: bool
    mrr: float  # of the candidate, on the latest events
    current_mrr: float
    accepted_total: int
    dropped_total: int


def refresh(
    run: Path,
    data: Path,
    journal: Journal,
    settings: UpdateConfig | None = None,
    *,
    stop: StopSignal | None = None,
    quiet: bool = True,
) -> Refreshed:
    """Brings a run up to date with the events of a journal; `data` is the service's folder.

    Raises DataError if there is nothing new since the last refresh. The previous run is RUN.previous afterwards.
    """
    check_finished(run)
    candidate = run.with_name(run.name + ".next")
    if _is_parent(candidate, run):
        return _finish_swap(run, candidate, data)
    session, record = Session.open(run), _read_record(data)
    trained_on = session.run_log.metadata.get("trained_on", {})
    if not Path(trained_on.get("path", "/nowhere")).is_dir():
        raise DataError(f"{run}: its log is not at the path that the run recorded; move it back there.")
    added = _append_journal(session, journal, read_log(trained_on["path"]), data)
    log = read_log(trained_on["path"])
    if len(log) == max(trained_on["events"], record.get("dropped_at", 0)):
        raise DataError(f"{journal.name} has no events that {log.path} lacks: there is nothing new to learn from.")
    _update(run, log, candidate, settings, stop, quiet)
    held_back = read_config(candidate).training.resolve_split(log).ranges(len(log))["test"][-HELD_BACK:]
    mrr, current = (mean("mrr", ranks_without_training(one, log, held_back)) or 0.0 for one in (candidate, run))
    accepted = mrr >= current
    totals = record.get("accepted_total", 0) + int(accepted), record.get("dropped_total", 0) + int(not accepted)
    refreshed = Refreshed(added, accepted, mrr, current, *totals)
    if accepted:
        _write_current_state(candidate, log)
        write_text(candidate / RECORD, json.dumps(asdict(refreshed)) + "\n")
        exchange(candidate, run)
        return _finish_swap(run, candidate, data)
    write_text(data / RECORD, json.dumps({**asdict(refreshed), "dropped_at": len(log)}) + "\n")
    shutil.rmtree(candidate)
    return refreshed


def _is_parent(folder: Path, run: Path) -> bool:
    """Whether `run` is an update of the run in `folder`: a refresh was interrupted after exchanging them."""
    parent = (update_info(run) or {}).get("parent_model")
    return (folder / MODEL).is_file() and (run / RECORD).is_file() and file_sha256(folder / MODEL) == parent


def _finish_swap(run: Path, old: Path, data: Path) -> Refreshed:
    """Records the swap and moves the old run to RUN.previous; repeating it does no harm."""
    try:
        refreshed = Refreshed(**json.loads((run / RECORD).read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DataError(
            f"{run / RECORD} is damaged ({error}). It records a refresh that has replaced the run; remove the file, "
            f"and rename {old} to {run.name}.previous or remove it, to go on without that record."
        ) from None
    write_text(data / RECORD, json.dumps(asdict(refreshed)) + "\n")
    previous = run.with_name(run.name + ".previous")
    shutil.rmtree(previous, ignore_errors=True)
    old.rename(previous)
    return refreshed


def _read_record(data: Path) -> dict[str, int]:
    """Returns the integers of the service's record; one that is missing or damaged counts as the first refresh."""
    try:
        record = dict(json.loads((data / RECORD).read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}
    return {name: value for name, value in record.items() if isinstance(value, int)}


def _append_journal(session: Session, journal: Journal, log: EventLog, data: Path) -> int:
    """Adds the journal's events to the log that are newer than its last one; returns their number.

    Where the log has event ids, they tell new events, so that those at the time of the last one are added too.
    """
    by_id, last_time = log.event_ids is not None, float(log.time[-1])

    def newer(entries: Iterable[Entry]) -> list[tuple[Entry, Event]]:
        valid = applicable_events(session, entries)
        return [pair for pair in valid if pair[1].time > last_time or (by_id and pair[1].time == last_time)]

    file = data / "refresh.parquet"
    try:
        count = write_events(journal, file, COLUMNS, log.metadata, events_of=newer)
        if not count:
            return 0
        features, item_features = tuple(log.metadata["features"]), tuple(log.metadata["item_features"])
        event_id = COLUMNS[3] if by_id else None
        schema = Schema(*COLUMNS[:3], event_id=event_id, features=features, item_features=item_features)
        assert log.path is not None
        return append(log.path, file, schema, max_bad=1.0).events
    finally:
        file.unlink(missing_ok=True)


def _update(
    run: Path,
    log: EventLog,
    candidate: Path,
    settings: UpdateConfig | None,
    stop: StopSignal | None,
    quiet: bool,
) -> None:
    """Makes the candidate; an interrupted one is resumed if it is the same update, else made anew."""
    work = partial(update_run, run, log, settings=settings, stop=stop, quiet=quiet)
    if candidate.exists():
        try:
            with RunFolder(candidate, resume=True) as resumed:
                work(resumed)
            return
        except DynedgeError:  # of another log, or the run before a swap
            shutil.rmtree(candidate)
    with RunFolder(candidate) as new:
        work(new)


def _write_current_state(folder: Path, log: EventLog) -> None:
    """Lets a run's state contain all events of the log, not only those of training."""
    session = Session.open(folder)
    session.apply(log, range(session.coverage.events, len(log)))
    tensors = with_prefixes(state=dict(session.state), coverage=session.coverage.tensors())
    save_tensors(folder / CURRENT_STATE, tensors)
    write_manifest(folder, RUN_FILES)
