"""EDGE, its experts, the heuristics and the paper's thirteen systems on real logs: docs/results.md's tables.

    python benchmarks/baselines.py tune --logs DIR --runs DIR --trials 6 --epochs 3 --last 150000 --jobs 2
    python benchmarks/baselines.py run --logs DIR --runs DIR --seeds 3 --epochs 20 --jobs 2
    python benchmarks/baselines.py table --logs DIR --runs DIR --seeds 3 --epochs 20

DIR of --logs has one prepared log per folder (dynedge prepare). `tune` gives each of the thirteen the same search
(dynedge tune) on a log, or on the --last events before its test events as a log of their own, and writes what it
chose to --settings; EDGE, its experts and the heuristics stay as they are. `run` trains each model with each seed and
ranks it among all items and among 499 drawn ones, several at a time if told. `table` is `dynedge compare LOG` of what
is there: it prints the tables, and writes RUNS/LOG-PROTOCOL.json with the rows and RUNS/LOG-PROTOCOL/index.html, the
page. Run again, each goes on with what is missing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow
import torch
from machine_info import describe_machine
from pyarrow import parquet

from dynedge.config import set_key, to_toml
from dynedge.data.log import read_log
from dynedge.runs.run_config import recipe_config

LOGS = "wikipedia,ml-100k,online_retail,globo-300k"
PROTOCOLS = "full", "sampled-499"
OURS = "edge", "memory", "counts", "recurrence", "edge-paper", "heuristic"
GRAPHS = "jodie", "deepcoevolve", "ctdne", "dynaernn", "tgat", "gcmc", "gcmc-sage", "gcmc-gat"
THIRTEEN = *GRAPHS, "sum-pooling", "gru4rec", "sasrec", "dien", "mimn"
HEAD = ("model", "seeds", "MRR", "less the best", "Recall@10", "s/epoch", "peak MiB", "parameters")
Chain = tuple[Path, list[list[Any]]]  # where, and what follows `dynedge`, one after the other
SETTINGS = Path(__file__).with_name("baselines.toml")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("tune", "run", "table"))
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--settings", type=Path, default=SETTINGS, help="what was chosen, by log and model")
    parser.add_argument("--names", default=LOGS, help="which of the logs")
    parser.add_argument("--models", default=",".join((*OURS, *THIRTEEN)))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--last", type=int, default=0, help="search on no more than so many events of a log")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    args.logs, args.runs = args.logs.absolute(), args.runs.absolute()
    args.runs.mkdir(parents=True, exist_ok=True)
    {"tune": tune, "run": run, "table": table}[args.do](args)


def tune(args: argparse.Namespace) -> None:
    pairs = [(log, model) for log, model in _pairs(args) if model in THIRTEEN]
    folder = args.runs / "searches"
    commands = []
    for log, model in pairs:
        (folder / log).mkdir(parents=True, exist_ok=True)
        command = ["tune", _searched(args, log), "--model", model, "--out", folder / log / model]
        commands.append([*command, "--trials", args.trials, "--epochs", args.epochs])
    _all([(folder, [command]) for command in commands], args.jobs)
    chosen = _chosen(args.settings)
    for log, model in pairs:
        trials = (folder / log / model / "trials.jsonl").read_text().splitlines()
        best = max(map(json.loads, trials), key=lambda trial: trial["valid_mrr"] or 0.0)
        chosen.setdefault(log, {})[model] = best["changed"]
    lines = ["# What `baselines.py tune` chose for each log and model; an empty table is the recipe as it is.\n"]
    for log in sorted(chosen):
        for model, changed in sorted(chosen[log].items()):
            lines.append(f"[{log}.{model}]")
            lines += [f'"{key}" = {json.dumps(value)}' for key, value in sorted(changed.items())] + [""]
    args.settings.write_text("\n".join(lines), encoding="utf-8")


def _searched(args: argparse.Namespace, log: str) -> Path:
    """The log, or the last events before its test events, without features, as a log of their own."""
    whole = read_log(args.logs / log)
    stop = whole.split.bounds(len(whole))[1]
    if not args.last or stop <= args.last:
        return Path(args.logs / log)
    place = Path(args.runs / "searches" / f"{log}-last-{args.last}")
    if not place.exists():
        columns = {"user": whole.user, "item": whole.item, "timestamp": whole.time}
        rows = {name: column[stop - args.last : stop] for name, column in columns.items()}
        file = place.with_suffix(".parquet")
        parquet.write_table(pyarrow.table(rows), file)
        prepare = ["prepare", file, "--user-col", "user", "--item-col", "item", "--time-unit", "s", "--out", place]
        subprocess.run(_dynedge(prepare), check=True, capture_output=True)
    return place


def run(args: argparse.Namespace) -> None:
    chains: list[Chain] = []
    for seed in range(args.seeds):
        for log, model in _pairs(args):
            if model == "heuristic":  # learns nothing: one seed, and the best of its recipes
                if not seed:
                    chains.append((_place(args, log), [_compare(args, log, [model], one) for one in PROTOCOLS]))
                continue
            folder = args.runs / log / f"{model}-{seed}"
            folder.parent.mkdir(exist_ok=True)
            told = ["--config", _entrant(args, log, model)] if _changed(args, log, model) else ["--model", model]
            train = ["train", args.logs / log, *told, "--seed", seed, "--epochs", args.epochs, "--out", folder]
            ranked = [["evaluate", folder, "--protocol", one] for one in PROTOCOLS]
            chains.append((_place(args, log), [[*train, "--resume"], *ranked]))
    _all(chains, args.jobs)


def table(args: argparse.Namespace) -> None:
    print(f"{describe_machine()}; torch {torch.__version__}; {args.seeds} seeds, at most {args.epochs} epochs")
    for protocol in PROTOCOLS:
        every = {}
        for log in args.names.split(","):
            kept = args.runs / f"{log}-{protocol}"
            whole = _dynedge([*_compare(args, log, args.models.split(","), protocol), "--report", kept])
            told = subprocess.run(whole, check=True, stdout=subprocess.PIPE, text=True, cwd=_place(args, log)).stdout
            kept.with_suffix(".json").write_text(told)
            found = json.loads(told)
            print(f"\n### {log}, {protocol}: {found['events']:,} test events of {found['users']:,} users\n")
            print("\n".join(markdown(found["rows"])), flush=True)
            every[log] = found["rows"]
        print(f"\n### {protocol}: MRR / Recall@10\n\n" + "\n".join(overview(every)), flush=True)


def _pairs(args: argparse.Namespace) -> list[tuple[str, str]]:
    return [(log, model) for model in args.models.split(",") for log in args.names.split(",")]


def _chosen(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _compare(args: argparse.Namespace, log: str, models: Sequence[str], protocol: str) -> list[Any]:
    entered = ",".join(_entrant(args, log, model) for model in models)
    command = ["compare", args.logs / log, "--models", entered, "--seeds", args.seeds, "--epochs", args.epochs]
    return [*command, "--runs", args.runs / log, "--protocol", protocol, "--json"]


def _place(args: argparse.Namespace, log: str) -> Path:
    """Where config files are looked for, so that a run is named after its model alone."""
    place = Path(args.runs / "settings" / log)
    place.mkdir(parents=True, exist_ok=True)
    return place


def _changed(args: argparse.Namespace, log: str, model: str) -> dict[str, Any]:
    return _chosen(args.settings).get(log, {}).get(model, {})


def _entrant(args: argparse.Namespace, log: str, model: str) -> str:
    """The model's name, or a config file of that place with what was chosen for it."""
    changed = _changed(args, log, model)
    if not changed:
        return model
    config = recipe_config(model)
    for key, value in (changed | {"training.epochs": args.epochs}).items():
        config = set_key(config, key, value)
    name = f"{model}.toml"
    (_place(args, log) / name).write_text(to_toml(config), encoding="utf-8")
    return name


def _dynedge(command: Iterable[Any]) -> list[str]:
    return [sys.executable, "-m", "dynedge", *map(str, command)]


def _all(chains: Sequence[Chain], jobs: int) -> None:
    began = time.monotonic()

    def do(chain: Chain) -> None:
        place, commands = chain
        for command in commands:
            ended = subprocess.run(_dynedge(command), check=False, capture_output=True, text=True, cwd=place)
            last = (ended.stderr.strip().splitlines() or [""])[-1]
            told = "done" if ended.returncode == 0 else f"exit {ended.returncode}: {last}"
            print(f"{time.monotonic() - began:6.0f} s  {' '.join(map(str, command))}: {told}", flush=True)
            if ended.returncode:
                return

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(do, chains))


def markdown(rows: list[dict[str, Any]]) -> list[str]:
    """A table for the docs; the best bold, the second best in italics, a failure in words."""
    order = {name: sorted((row[name] for row in rows if row["seeds"]), reverse=True) for name in ("mrr", "recall@10")}
    lines = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    for row in rows:
        name = named(row)
        if not row["seeds"]:
            lines.append(f"| {name} | – | {row['error']} |{' |' * (len(HEAD) - 3)}")
            continue
        metrics = [marked(row, metric, order[metric]) for metric in order]
        less = signed(row["difference_to_best"]) if row["difference_to_best"] else ""
        costs = [f"{row['seconds_per_epoch']:.3g}", f"{row['peak_mib']:,.0f}", f"{row['parameters']:,}"]
        cells = [name, str(len(row["seeds"])), metrics[0], less, metrics[1], *costs]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def overview(every: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A line for each model, a column for each log, the best on the first log first."""
    cells: dict[str, list[str]] = {}
    for log, rows in every.items():
        best = max(row["mrr"] for row in rows if row["seeds"])
        for row in rows:
            name = named(row).partition(" (")[0]
            told = f"{row['mrr']:.4f} / {row['recall@10']:.4f}" if row["seeds"] else row["error"]
            mark = "**" if row["mrr"] == best else ""
            short = f" ({len(row['seeds'])})" if 0 < len(row["seeds"]) < len(rows[0]["seeds"]) and told else ""
            cells.setdefault(name, ["–"] * len(every))[list(every).index(log)] = f"{mark}{told}{mark}{short}"
    lines = [f"| {' | '.join(['', *every])} |", f"|{'---|' * (1 + len(every))}"]
    return lines + [f"| {' | '.join([name, *told])} |" for name, told in cells.items()]


def named(row: dict[str, Any]) -> str:
    """A config file is named after its model."""
    return str(row["model"]).partition(".toml")[0]


def marked(row: dict[str, Any], name: str, order: list[float]) -> str:
    low, high = row["intervals"][name]
    mark = {0: "**", 1: "*"}.get(order.index(row[name]), "")
    return f"{mark}{row[name]:.4f}{mark} [{low:.4f}, {high:.4f}]"


def signed(less: dict[str, Any]) -> str:
    low, high = less["intervals"]["mrr"]
    return f"{less['mrr']:+.4f} [{low:+.4f}, {high:+.4f}]"


if __name__ == "__main__":
    main()
