"""The demo: the whole way on a small log, by the same verbs a user types."""

from __future__ import annotations

import csv
import shlex
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from dynedge.cli import app, run
from dynedge.cli.data import Force
from dynedge.errors import DataError

EPOCHS = "5"
RULES = {"counts": ["--epochs", EPOCHS], "next": [], "recent": [], "popular": []}  # what EDGE is set beside
USERS = "Ada Abara", "Diego Garcia", "Zoe Demir", "A Stranger"


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="A folder for everything the demo makes.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Another seed, another log.")] = 0,
    events: Annotated[int, typer.Option(help="A log of so many events.", min=1000)] = 50_000,
    force: Force = False,
) -> None:
    """Go the whole way on a small made-up log: from a CSV file to EDGE beside plain rules, and recommendations."""
    if out.exists() and not (force and out.is_dir()):
        raise DataError(f"{out} already exists; choose another --out or pass --force to write into it.")
    out.mkdir(exist_ok=True)
    _write_events(out / "events.csv", seed, events)
    print(f"{out / 'events.csv'}: {events:,} plays of songs by made-up listeners. What dynedge makes of them:")
    for verb in _verbs(out):
        print(f"\n$ dynedge {shlex.join(verb)}", flush=True)
        if code := run(verb):
            raise typer.Exit(code)
    print(
        f"\nLook at {out / 'log.png'} (who is active, and when), {out / 'plan.png'} (what d-nodes do), "
        f"{out / 'edge.png'} (how it learned) and {out / 'compare.png'} (EDGE beside the rules)."
    )
    typed = sys.argv[0] if Path(sys.argv[0]).name == "dynedge" else "dynedge"
    command = [typed, "serve", f"{out / 'edge'}", "--replay", f"{out / 'log'}"]
    print(f"\nAnd watch it live: this opens a page on {out / 'edge'}, with the rest of the log played into it:")
    print(f"  {shlex.join(command)}")


def _verbs(out: Path) -> Iterator[list[str]]:
    log, edge = f"{out / 'log'}", f"{out / 'edge'}"
    yield ["prepare", f"{out / 'events.csv'}", "--item-features", "genre", "--out", log, "--force"]
    yield ["info", log, "--plot", f"{out / 'log.png'}"]
    yield ["plan", log, "--windows", "40", "--plot", f"{out / 'plan.png'}"]
    train = ["--windows", "40", "--dnodes", "40", "--epochs", EPOCHS, "--plot", f"{out / 'edge.png'}"]
    yield ["train", log, "--out", edge, "--force", *train]
    for rule, more in RULES.items():
        yield ["train", log, "--model", rule, "--out", f"{out / rule}", "--force", *more]
    yield ["compare", edge, *(f"{out / rule}" for rule in RULES), "--plot", f"{out / 'compare.png'}"]
    yield ["recommend", edge, "--users", ",".join(USERS), "--k", "3", "--log", log]


def _write_events(path: Path, seed: int, events: int) -> None:
    """The demo log as somebody's file: names, ISO times."""
    from dynedge.data.synthetic import synthesize

    with tempfile.TemporaryDirectory() as folder, open(path, "w", newline="", encoding="utf-8") as file:
        log = synthesize("demo", Path(folder) / "log", seed=seed, events=events)
        rows = csv.writer(file)
        rows.writerow(["user_id", "item_id", "timestamp", "genre"])
        genre = log.category_ids[0].take(log.item_categories[:, 0])
        users, items = log.user_ids.take(range(log.num_users)), log.item_ids.take(range(log.num_items))
        for user, item, time in zip(log.user.tolist(), log.item.tolist(), log.time.tolist(), strict=True):
            moment = datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            rows.writerow([users[user], items[item], moment, genre[item]])
