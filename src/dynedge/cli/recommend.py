"""The command `recommend`: the best next items for users, by their original ids."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynedge.cli import app
from dynedge.cli.options import Json, NewerEvents, RunFolder
from dynedge.cli.tables import table
from dynedge.errors import UsageError

if TYPE_CHECKING:
    from dynedge.inference.recommend import Recommendations
    from dynedge.inference.session import Session


@app.command()
def recommend(
    run: RunFolder,
    users: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…", help='Users by their ids in the original data; quote an id with a comma: "A, B".'
        ),
    ] = None,
    all_users: Annotated[bool, typer.Option("--all-users", help="All users of the run; needs --out.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Parquet file for --all-users.")] = None,
    k: Annotated[int, typer.Option("--k", metavar="K", help="Number of items per user.", min=1)] = 10,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="T",
            help="Time of the request: a number in the unit of the log, or ISO 8601. [default: the newest event]",
        ),
    ] = None,
    filter_seen: Annotated[bool, typer.Option("--filter-seen", help="Hide items the user has already seen.")] = False,
    log: NewerEvents = None,
    as_json: Json = False,
) -> None:
    """Recommend the K best items for users, with scores.

    Answers come from the states saved in RUN; no data is needed. With --log, the log's newer events, up to --time,
    update the states first; RUN itself is not changed. Unknown users get the most popular items.
    """
    if (users is None) == (not all_users):
        raise UsageError("pass either --users A,B or --all-users --out FILE.parquet.")
    if all_users != (out is not None):
        raise UsageError("--all-users and --out FILE.parquet go together.")
    if out:
        from dynedge.inference.parquet_export import check_target

        check_target(out)
    session, seconds = open_session(run, log, time, "--time")
    if out:
        _write(session, out, k, seconds, filter_seen, as_json)
        return
    from dynedge.inference.recommend import distinct_users
    from dynedge.inference.recommend import recommend as recommend_to

    requested = distinct_users(session, _parse_ids(users or ""))
    recommendations = recommend_to(session, requested, k, seconds, filter_seen=filter_seen)
    for user in recommendations.unknown:
        print(f"dynedge: user {user!r} is not in {run}; recommending the most popular items.", file=sys.stderr)
    answer = _as_dict(session, seconds, recommendations)
    print(json.dumps(answer) if as_json else _text(answer))


def open_session(run: Path, log: Path | None, time: str | None, flag: str) -> tuple[Session, float | None]:
    """Opens a run, updates its states with the newer events of `log`, and parses `time`, the value of `flag`."""
    from dynedge.data.log import read_log
    from dynedge.data.timestamps import format_timestamp, parse_timestamp
    from dynedge.inference.session import Session

    session = Session.open(run)
    seconds = None if time is None else parse_timestamp(time, session.time_unit, flag)
    newest = session.coverage.last_time
    if log is None and seconds is not None and seconds < newest:
        raise UsageError(
            f"{flag} {time} is before {format_timestamp(newest)}, the newest event in {run}; to go back in time, "
            "pass the log it was trained on with --log LOG."
        )
    if log is not None:
        count = session.advance_to(session.encode(read_log(log)), seconds, quiet=False)
        note = f"{count:,} events of {log} added"
    else:
        note = "--log LOG adds newer ones"
    print(f"{run} contains events up to {format_timestamp(session.coverage.last_time)}; {note}.", file=sys.stderr)
    return session, seconds


def _parse_ids(text: str) -> list[int | str]:
    """Returns comma-separated ids, as in CSV: spaces belong to an id only inside quotes."""
    found = re.findall(r'\s*"((?:[^"]|"")*)"\s*(?:,|$)|([^,]+)', text)
    ids = [quoted.replace('""', '"') or plain.strip() for quoted, plain in found]
    return [external_id for external_id in ids if external_id]


def _write(session: Session, out: Path, k: int, seconds: float | None, filter_seen: bool, as_json: bool) -> None:
    from dynedge.inference.parquet_export import write_recommendations

    rows = write_recommendations(session, out, k, seconds, filter_seen=filter_seen, quiet=False)
    summary = {"out": str(out), "users": len(session.users), "rows": rows}
    print(json.dumps(summary) if as_json else f"{out}: {rows:,} recommendations for {summary['users']:,} users")


def _as_dict(session: Session, seconds: float | None, recommendations: Recommendations) -> dict[str, Any]:
    return {
        "run": str(session.folder),
        "model": session.config.name,
        "time": session.coverage.last_time if seconds is None else seconds,
        "users": recommendations.to_records(),
    }


def _text(answer: dict[str, Any]) -> str:
    lists = []
    for user in answer["users"]:
        rows = [
            [f"{rank:4}  {best['item_id']}", f"{best['score']:.4f}"] for rank, best in enumerate(user["items"], 1)
        ]
        note = "" if user["known"] else " (unknown user: the most popular items and their shares of all events)"
        items = table(rows, header=False) if rows else "      nothing to recommend"
        lists.append(f"{user['user_id']}{note}\n{items}")
    return "\n\n".join(lists)
