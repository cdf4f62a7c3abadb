"""The command `demo`: every step on a small synthetic log, by the commands a user would type."""

from __future__ import annotations

import csv
import shlex
import sys
import tempfile
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
    steps = _steps(out)
    for number, (title, commands) in enumerate(steps.items(), 1):
        print(f"\nStep {number} of {len(steps)}: {title}")
        for arguments in commands:
            print(f"\n$ dynedge {shlex.join(arguments)}", flush=True)
            if code := run(arguments):
                raise typer.Exit(code)
    print(
        f"\nPlots: {out / 'log.png'} (activity), {out / 'plan.png'} (path length by d-nodes), "
        f"{out / 'edge.png'} (learning curve), {out / 'compare.png'} (edge and the baselines)."
    )
    program = sys.argv[0] if Path(sys.argv[0]).name == "dynedge" else "dynedge"
    command = [program, "serve", f"{out / 'edge'}", "--replay", f"{out / 'log'}"]
    print("\nNext, serve the model and watch it in a browser while the rest of the log is replayed:")
    print(f"  {shlex.join(command)}")


def _steps(out: Path) -> dict[str, list[list[str]]]:
    """Returns the commands of each step, by the step's title."""
    log, edge = f"{out / 'log'}", f"{out / 'edge'}"
    runs = [edge, *(f"{out / name}" for name in BASELINES)]
    options = ["--windows", "40", "--dnodes", "40", "--epochs", EPOCHS, "--plot", f"{out / 'edge.png'}"]
    return {
        "convert the CSV file to a log": [
            ["prepare", f"{out / 'events.csv'}", "--item-features", "genre", "--out", log, "--force"]
        ],
        "print statistics of the log": [["info", log, "--plot", f"{out / 'log.png'}"]],
        "see how d-nodes shorten training": [["plan", log, "--windows", "40", "--plot", f"{out / 'plan.png'}"]],
        "train the default model": [["train", log, "--out", edge, "--force", *options]],
        "train four baselines": [
            ["train", log, "--model", name, "--out", f"{out / name}", "--force", *options]
            for name, options in BASELINES.items()
        ],
        "compare all of them on the test events": [["compare", *runs, "--plot", f"{out / 'compare.png'}"]],
        "recommend songs": [["recommend", edge, "--users", ",".join(USERS), "--k", "3", "--log", log]],
    }


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
