"""The command `refresh`: brings a served run up to date with the events that its service received."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from dynedge.cli import app, stopped
from dynedge.cli.options import Json, Replay, RunFolder, UpdateEpochs, UpdateRate
from dynedge.cli.serve import JournalUrl, ServiceFolder, open_redis_journal, service_folder
from dynedge.errors import DataError


@app.command()
def refresh(
    run: RunFolder,
    data: ServiceFolder = None,
    journal: JournalUrl = None,
    epochs: UpdateEpochs = 2,
    replay: Replay = 1.0,
    rate: UpdateRate = 0.5,
    as_json: Json = False,
) -> None:
    """Train a served run on the events that its service received.

    The events are added to the run's log (as export and append do), the run is continued on it (as update does), and
    if the result ranks the latest events no worse, it takes the place of RUN; the old one becomes RUN.previous. The
    service may keep running: SIGHUP or POST /reload lets it use the new run. Interrupted, the same command continues.
    """
    from dynedge.runs.update_run import UpdateConfig
    from dynedge.serving import refresh as refreshing
    from dynedge.serving.sqlite_journal import JOURNAL, SqliteJournal
    from dynedge.utils.signals import StoppedBySignal, StopSignal

    folder = service_folder(run, data)
    if journal is None and not (folder / JOURNAL).is_file():
        raise DataError(
            f"{folder / JOURNAL} does not exist: no service has run there; pass its folder with --data DIR."
        )
    opened = SqliteJournal(folder / JOURNAL) if journal is None else open_redis_journal(journal)
    settings, absolute = UpdateConfig(epochs, replay, rate), Path(run).absolute()
    try:
        with StopSignal() as stop:
            refreshed = refreshing.refresh(absolute, folder, opened, settings, stop=stop, quiet=False)
    except StoppedBySignal as signal:
        raise stopped(signal, signal.exit_code, "run the same command again to continue") from None
    finally:
        opened.close()
    summary = {"run": str(run), **asdict(refreshed)}
    print(json.dumps(summary) if as_json else _text(summary))


def _text(summary: dict[str, object]) -> str:
    outcome = "replaced; reload the service" if summary["accepted"] else "kept: the candidate is worse"
    mrrs = f"MRR of the latest events {summary['current_mrr']:.4f} before, {summary['mrr']:.4f} after"
    return f"{summary['run']}: {summary['events']:,} events added to its log, {mrrs}; {outcome}"
