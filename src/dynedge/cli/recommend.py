"""The verb `recommend`: what users will want next, by their own ids."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynedge.cli import app
from dynedge.cli.data import Json
from dynedge.errors import UsageError

if TYPE_CHECKING:
    from dynedge.inference.recommend import Recommendations
    from dynedge.inference.session import Live

Log = Annotated[
    Path | None,
    typer.Option(metavar="LOG", help="First take in the events of this log that the run does not know yet."),
]


@app.command()
def recommend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    users: Annotated[
        str | None, typer.Option(metavar="A,B", help='Users by their own ids; "A, B" in quotes is one id.')
    ] = None,
    all_users: Annotated[bool, typer.Option("--all-users", help="Every user of the run, into --out.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="A .parquet file for --all-users.")] = None,
    k: Annotated[int, typer.Option("--k", metavar="K", help="Items a user.", min=1)] = 10,
    time: Annotated[
        str | None,
        typer.Option(metavar="T", help="When: a number in the log's unit or ISO 8601; default: the newest event's."),
    ] = None,
    filter_seen: Annotated[bool, typer.Option("--filter-seen", help="Leave out what a user has had.")] = False,
    log: Log = None,
    as_json: Json = False,
) -> None:
    """Print the K best items for each user, with their scores.

    Without data, from what the run knows: its training events, or whatever it was saved with. With --log, that log's
    later events, up to --time, are taken in first. RUN itself stays as it is. A user who is not known gets the
    popular list, and stderr says so.
    """
    if (users is None) == (not all_users):
        raise UsageError("pass either --users A,B or --all-users --out FILE.parquet.")
    if all_users != (out is not None):
        raise UsageError("--all-users and --out FILE.parquet go together.")
    asked = _ids(users or "")
    if out:
        from dynedge.inference.export import check_target

        check_target(out)
    live, moment = open_live(run, log, time, "--time")
    if out:
        _write(live, out, k, moment, filter_seen, as_json)
        return
    from dynedge.inference.recommend import recommend as answer

    found = answer(live, asked, k, moment, filter_seen=filter_seen)
    for user in found.unknown:
        print(f"dynedge: {run} does not know the user {user!r}; theirs is the popular list.", file=sys.stderr)
    told = _told(live, moment, found)
    print(json.dumps(told) if as_json else _text(told))


def open_live(run: Path, log: Path | None, time: str | None, flag: str) -> tuple[Live, float | None]:
    """The run in the state to answer from, walked through `log` where there is one, and the time asked for."""
    from dynedge.data.log import read_log
    from dynedge.data.timestamps import format_timestamp, parse_timestamp
    from dynedge.inference.event_input import with_rows_of
    from dynedge.inference.session import Live

    live = Live.open(run)
    moment = None if time is None else parse_timestamp(time, live.time_unit, flag)
    if log is None and moment is not None and moment < live.coverage.last_time:
        raise UsageError(
            f"{flag} {time} is before {format_timestamp(live.coverage.last_time)}, the newest event that {run} "
            "knows; with --log LOG, the log it was trained on, it goes back there."
        )
    if log is not None:
        count = live.walk_to(with_rows_of(live.ids, read_log(log)), moment, quiet=False)
        told = f"{count:,} events of {log} taken in"
    else:
        told = "--log LOG takes in later ones"
    print(f"{run} knows events up to {format_timestamp(live.coverage.last_time)}; {told}.", file=sys.stderr)
    return live, moment


def _ids(text: str) -> list[int | str]:
    """Separated by commas; quotes as in CSV."""
    return [name.strip() for row in csv.reader([text], skipinitialspace=True) for name in row if name.strip()]


def _write(live: Live, out: Path, k: int, moment: float | None, filter_seen: bool, as_json: bool) -> None:
    from dynedge.inference.export import write_recommendations

    rows = write_recommendations(live, out, k, moment, filter_seen=filter_seen, quiet=False)
    told = {"out": str(out), "users": live.ids.num_users, "rows": rows}
    print(json.dumps(told) if as_json else f"{out}: {rows:,} recommendations for {told['users']:,} users")


def _told(live: Live, moment: float | None, found: Recommendations) -> dict[str, Any]:
    return {
        "run": str(live.folder),
        "model": live.config.name,
        "time": live.coverage.last_time if moment is None else moment,
        "users": [
            {
                "user": user,
                "known": user not in found.unknown,
                "items": [{"item": item, "score": score} for item, score in found.of(user)],
            }
            for user in found.asked
        ],
    }


def _text(told: dict[str, Any]) -> str:
    from dynedge.cli.evaluate import table

    lists = []
    for one in told["users"]:
        rows = [[f"{at:4}  {best['item']}", f"{best['score']:.4f}"] for at, best in enumerate(one["items"], 1)]
        whose = "" if one["known"] else " (not known: the popular list, with shares of all events)"
        lists.append(f"{one['user']}{whose}\n{table(rows) if rows else '      nothing to recommend'}")
    return "\n\n".join(lists)
