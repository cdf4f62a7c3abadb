"""The command `recommend`: the best next items for users, by their original ids."""

from __future__ import annotations

import json
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

RULES = "Rules"


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
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write: .parquet, .csv or .jsonl (JSON lines).")
    ] = None,
    k: Annotated[int, typer.Option("--k", metavar="K", help="Number of items per user.", min=1)] = 10,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="T",
            help="Time of the request: a number in the unit of the log, or ISO 8601. [default: the newest event]",
        ),
    ] = None,
    filter_seen: Annotated[
        bool, typer.Option("--filter-seen", help="Hide items the user has already seen.", rich_help_panel=RULES)
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=A,B,…",
            help="Only items with these values of a column; item_id=A,B or item_id=@FILE (an id a line) lists items.",
            rich_help_panel=RULES,
        ),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=A,B,…", help="Values of a column that exclude an item.", rich_help_panel=RULES),
    ] = None,
    boost: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE:X", help="Score bonus X for items with this value.", rich_help_panel=RULES
        ),
    ] = None,
    max_per: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=N", help="Maximum number of items with the same value.", rich_help_panel=RULES),
    ] = None,
    min_score: Annotated[
        float | None, typer.Option(metavar="X", help="Minimum score of recommended items.", rich_help_panel=RULES)
    ] = None,
    diversity: Annotated[
        float,
        typer.Option(
            metavar="D",
            help="Weight of diversity, 0 to 1 (maximal marginal relevance).",
            rich_help_panel=RULES,
        ),
    ] = 0.0,
    log: NewerEvents = None,
    as_json: Json = False,
) -> None:
    """Recommend the K best items for users, with scores.

    Answers come from the states saved in RUN; no data is needed. With --log, the log's newer events, up to --time,
    update the states first; RUN itself is not changed. Unknown users get the most popular items. Columns of
    rules are those of `prepare --item-features` and `--item-table`; flags of rules can be repeated.
    """
    if (users is None) == (not all_users):
        raise UsageError("pass either --users A,B or --all-users --out FILE.")
    if all_users and out is None:
        raise UsageError("--all-users needs --out FILE.")
    from dynedge.inference.rule_texts import parse_list, parse_rules

    named = parse_list(users or "")
    if not (named or all_users):
        raise UsageError("--users names no user: pass ids of the original data, separated by commas.")
    rules = parse_rules(
        filter_seen=filter_seen,
        allow=allow,
        deny=deny,
        boost=boost,
        max_per=max_per,
        min_score=min_score,
        diversity=diversity,
        files=True,
    )
    if out:
        from dynedge.inference.table_files import FORMATS, check_target

        check_target(out, tuple(FORMATS))
    session, seconds = open_session(run, log, time, "--time")
    if all_users:
        from dynedge.inference.table_files import write_recommendations

        assert out is not None
        rows = write_recommendations(session, out, k, seconds, rules, quiet=False)
        _print_written(out, rows, len(session.users), as_json)
        return
    from dynedge.inference.recommend import distinct_users
    from dynedge.inference.recommend import recommend as recommend_to

    requested = distinct_users(session, named)
    recommendations = recommend_to(session, requested, k, seconds, rules)
    for user in recommendations.unknown:
        print(f"dynedge: user {user!r} is not in {run}; recommending the most popular items.", file=sys.stderr)
    if out:
        from dynedge.inference.table_files import write_table

        written = recommendations.to_arrow()
        write_table(out, written.schema, [written])
        _print_written(out, len(recommendations), len(requested), as_json)
        return
    answer = _as_dict(session, seconds, recommendations)
    print(json.dumps(answer) if as_json else _text(answer))


def _print_written(out: Path, rows: int, users: int, as_json: bool) -> None:
    summary = {"out": str(out), "users": users, "rows": rows}
    print(json.dumps(summary) if as_json else f"{out}: {rows:,} recommendations for {users:,} users")


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
            [f"{rank:4}  {best['item_id']}", *_details(best), f"{best['score']:.4f}"]
            for rank, best in enumerate(user["items"], 1)
        ]
        note = "" if user["known"] else " (unknown user: the most popular items and their shares of all events)"
        items = (
            table(rows, header=False, text_columns=range(len(rows[0]) - 1)) if rows else "      nothing to recommend"
        )
        lists.append(f"{user['user_id']}{note}\n{items}")
    return "\n\n".join(lists)


def _details(item: dict[str, Any]) -> list[str]:
    """The columns that describe an item, as one text; nothing if items have no such columns."""
    return [", ".join(map(str, item["metadata"].values()))] if "metadata" in item else []
