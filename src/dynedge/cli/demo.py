"""The command `demo`: every step on a small synthetic log, by the commands a user would type."""

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
from dynedge.cli.options import Force
from dynedge.errors import DataError

EPOCHS = "5"
BASELINES = {"counts": ["--epochs", EPOCHS], "next": [], "recent": [], "popular": []}  # name -> options of `train`
USERS = "Ada Abara", "Diego Garcia", "Zoe Demir", "A Stranger"


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for everything the demo creates.")] = Path(
        "demo"
    ),
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed of the log.")] = 0,
    events: Annotated[int, typer.Option(metavar="N", help="Number of events.", min=1000)] = 50_000,
    force: Force = False,
) -> None:
    """Run every step on a small synthetic log.

    From a CSV file to a trained model, a comparison with baselines, and recommendations.
    """
    if out.exists() and not (force and out.is_dir()):
        raise DataError(f"{out} already exists; choose another --out or pass --force to write into it.")
    out.mkdir(exist_ok=True)
    _write_events(out / "events.csv", seed, events)
    print(f"{out / 'events.csv'}: {events:,} plays of songs by synthetic listeners.")
    for arguments in _commands(out):
        print(f"\n$ dynedge {shlex.join(arguments)}", flush=True)
        if code := run(arguments):
            raise typer.Exit(code)
    print(
        f"\nPlots: {out / 'log.png'} (activity), {out / 'plan.png'} (path length by d-nodes), "
        f"{out / 'edge.png'} (learning curve), {out / 'compare.png'} (edge and the baselines)."
    )
    program = sys.argv[0] if Path(sys.argv[0]).name == "dynedge" else "dynedge"
    command = [program, "serve", f"{out / 'edge'}", "--replay", f"{out / 'log'}"]
    print(f"\nNext: serve {out / 'edge'}, with a live page and the rest of the log replayed into it:")
    print(f"  {shlex.join(command)}")


def _commands(out: Path) -> Iterator[list[str]]:
    log, edge = f"{out / 'log'}", f"{out / 'edge'}"
    yield ["prepare", f"{out / 'events.csv'}", "--item-features", "genre", "--out", log, "--force"]
    yield ["info", log, "--plot", f"{out / 'log.png'}"]
    yield ["plan", log, "--windows", "40", "--plot", f"{out / 'plan.png'}"]
    options = ["--windows", "40", "--dnodes", "40", "--epochs", EPOCHS, "--plot", f"{out / 'edge.png'}"]
    yield ["train", log, "--out", edge, "--force", *options]
    for name, options in BASELINES.items():
        yield ["train", log, "--model", name, "--out", f"{out / name}", "--force", *options]
    yield ["compare", edge, *(f"{out / name}" for name in BASELINES), "--plot", f"{out / 'compare.png'}"]
    yield ["recommend", edge, "--users", ",".join(USERS), "--k", "3", "--log", log]


def _write_events(path: Path, seed: int, events: int) -> None:
    """Writes the synthetic log as a CSV file with names and ISO times."""
    from dynedge.data.synthetic import synthesize

    with tempfile.TemporaryDirectory() as folder, open(path, "w", newline="", encoding="utf-8") as file:
        log = synthesize("demo", Path(folder) / "log", seed=seed, events=events)
        rows = csv.writer(file)
        rows.writerow(["user_id", "item_id", "timestamp", "genre"])
        genre = log.category_ids[0].take(log.item_categories[:, 0])
        users, items = log.user_ids.take(range(log.num_users)), log.item_ids.take(range(log.num_items))
        for user, item, seconds in zip(log.user.tolist(), log.item.tolist(), log.time.tolist(), strict=True):
            time = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            rows.writerow([users[user], items[item], time, genre[item]])
