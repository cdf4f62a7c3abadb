"""Compares EDGE, its experts, the heuristics and the paper's thirteen baselines on real logs, for docs/results.md.

    python benchmarks/baselines.py tune --logs DIR --runs DIR --trials 30 --epochs 6 --last 150000 --jobs 2
    python benchmarks/baselines.py run --logs DIR --runs DIR --seeds 3 --epochs 20 --jobs 2
    python benchmarks/baselines.py table --logs DIR --runs DIR --seeds 3 --epochs 20

--logs is a folder of prepared logs (dynedge prepare). `tune` runs the same hyperparameter search (dynedge tune) for
`edge` and each baseline on each log, or on a log of its --last events before the test events: the cheapest models
first, or those of --models in their order. It writes each finished trial to --searches, so that an interrupted search
continues where it stopped, also on another machine. After each search it writes the best settings so far to
--settings, with the number of trials and epochs that they were chosen by. `run` trains each model with each seed
and ranks the test events among all items and among 499 sampled ones, --jobs runs at a time. `table` calls `dynedge
compare LOG` on the models whose runs are finished, prints the tables, and writes the rows to RUNS/LOG-PROTOCOL.json
and a page to RUNS/LOG-PROTOCOL/index.html. Each command resumes with what is missing. All arithmetic is in float32,
also on a GPU.
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
from threading import Lock
from typing import Any

import pyarrow
import torch
from machine_info import describe_machine
from pyarrow import parquet

from dynedge.config import set_key, to_toml
from dynedge.data.log import read_log
from dynedge.models.registry import find_entry
from dynedge.runs.folder import is_finished
from dynedge.runs.run_config import recipe_config

LOGS = "wikipedia,ml-100k,online_retail,globo-300k"
PROTOCOLS = "full", "sampled-499"
DYNEDGE_MODELS = "edge", "memory", "counts", "recurrence", "edge-paper-small", "heuristic"
# By the time that an epoch takes on a CPU: the paper's thirteen systems, and newer ones.
BASELINES = (
    *("sum-pooling", "gru4rec", "sasrec", "gsasrec", "jodie", "gcmc", "ctdne", "gcmc-sage", "deepcoevolve", "tgn"),
    *("dynaernn", "tgat", "gcmc-gat", "craft", "graphmixer", "mimn", "dien"),
)
TUNED = "edge", *BASELINES
HEURISTIC = "heuristic"  # not trained: one seed, and the best of its recipes
PRECISION = "training.precision", "float32"
SEARCH = "search"  # in a model's settings: the trials and epochs that they were chosen by
HEAD = ("model", "seeds", "MRR", "difference to best", "Recall@10", "s/epoch", "peak MiB", "parameters")
CommandChain = tuple[Path, list[list[Any]]]  # working folder, and arguments of `dynedge` commands to run in order
SETTINGS = Path(__file__).with_name("baselines.toml")
SEARCHES = Path(__file__).with_name("searches")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("tune", "run", "table"), help="Command.")
    parser.add_argument("--logs", type=Path, required=True, help="Folder of log folders.")
    parser.add_argument("--runs", type=Path, required=True, help="Folder for runs and tables.")
    parser.add_argument("--settings", type=Path, default=SETTINGS, help="TOML file of the tuned settings.")
    parser.add_argument("--searches", type=Path, default=SEARCHES, help="Folder of the trials of all searches.")
    parser.add_argument("--names", default=LOGS, help="Names of logs, separated by commas.")
    parser.add_argument(
        "--models", default=",".join((*DYNEDGE_MODELS, *BASELINES)), help="Models, separated by commas."
    )
    parser.add_argument("--seeds", type=int, default=3, help="Number of seeds.")
    parser.add_argument("--epochs", type=int, default=20, help="Maximum number of epochs.")
    parser.add_argument("--trials", type=int, default=30, help="Number of trials per search.")
    parser.add_argument("--minutes", type=float, help="Time limit of a search; no trial starts after it.")
    parser.add_argument("--last", type=int, default=0, help="Maximum number of events to tune on; 0: all.")
    parser.add_argument("--jobs", type=int, default=1, help="Number of runs at the same time.")
    args = parser.parse_args()
    args.logs, args.runs, args.searches = args.logs.absolute(), args.runs.absolute(), args.searches.absolute()
    args.runs.mkdir(parents=True, exist_ok=True)
    {"tune": tune, "run": run, "table": print_tables}[args.command](args)


def tune(args: argparse.Namespace) -> None:
    lock = Lock()

    def search(pair: tuple[str, str]) -> None:
        log, model = pair
        command = ["tune", _tuning_log(args, log), "--model", model, "--out", args.searches / log / model]
        command += ["--trials", args.trials, "--epochs", args.epochs, "--set", "=".join(PRECISION)]
        command += [] if args.minutes is None else ["--minutes", args.minutes]
        _run_chain((args.runs, [command]), began)
        with lock:
            _store_settings(args, *pair)

    for log in args.names.split(","):
        (args.searches / log).mkdir(parents=True, exist_ok=True)
        _tuning_log(args, log)
    began = time.monotonic()
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(search, [pair for pair in _log_model_pairs(args) if pair[1] in TUNED]))


def _store_settings(args: argparse.Namespace, log: str, model: str) -> None:
    """Writes the best settings of a search's finished trials, if there are any, to the file of settings."""
    try:
        trials = (args.searches / log / model / "trials.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return
    best = max(map(json.loads, trials), key=lambda trial: trial["valid_mrr"] or 0.0)
    chosen = read_settings(args.settings)
    part = f" on the last {args.last:,} events" if _tuning_log(args, log) != args.logs / log else ""
    searched = f"{len(trials)} trials of {args.epochs} epochs{part}"
    chosen.setdefault(log, {})[model] = {**best["changed"], SEARCH: searched}
    write_settings(args.settings, chosen)


def write_settings(path: Path, chosen: dict[str, dict[str, dict[str, Any]]]) -> None:
    lines = ["# Settings that `baselines.py tune` chose for each log and model, and the search that chose them.\n"]
    for name in sorted(chosen):
        for one, changed in sorted(chosen[name].items()):
            lines.append(f"[{name}.{one}]")
            lines += [f'"{key}" = {json.dumps(value)}' for key, value in sorted(changed.items())] + [""]
    path.write_text("\n".join(lines), encoding="utf-8")


def _tuning_log(args: argparse.Namespace, log: str) -> Path:
    """Returns the log, or a new log of the last events before its test events, without features."""
    source = read_log(args.logs / log)
    stop = source.split.bounds(len(source))[1]
    if not args.last or stop <= args.last:
        return Path(args.logs / log)
    out = Path(args.runs / f"{log}-last-{args.last}")
    if not out.exists():
        columns = {"user": source.user, "item": source.item, "timestamp": source.time}
        rows = {name: column[stop - args.last : stop] for name, column in columns.items()}
        file = out.with_suffix(".parquet")
        parquet.write_table(pyarrow.table(rows), file)
        prepare = ["prepare", file, "--user-col", "user", "--item-col", "item", "--time-unit", "s", "--out", out]
        subprocess.run(_dynedge(prepare), check=True, capture_output=True)
    return out


def run(args: argparse.Namespace) -> None:
    chains: list[CommandChain] = []
    for seed in range(args.seeds):
        for log, model in _log_model_pairs(args):
            if model == HEURISTIC:
                if not seed:
                    chains.append(
                        (_settings_folder(args, log), [_compare(args, log, [model], one) for one in PROTOCOLS])
                    )
                continue
            folder = args.runs / log / f"{model}-{seed}"
            folder.parent.mkdir(exist_ok=True)
            train = ["train", args.logs / log, "--config", _entry(args, log, model), "--seed", seed, "--out", folder]
            ranked = [["evaluate", folder, "--protocol", one] for one in PROTOCOLS]
            chains.append((_settings_folder(args, log), [[*train, "--resume"], *ranked]))
    _run_all(chains, args.jobs)


def print_tables(args: argparse.Namespace) -> None:
    print(f"{describe_machine()}; torch {torch.__version__}; {args.seeds} seeds, at most {args.epochs} epochs")
    for protocol in PROTOCOLS:
        rows_by_log = {}
        for log in args.names.split(","):
            models = [model for model in args.models.split(",") if _has_finished(args, log, model)]
            if not models:
                continue
            report = args.runs / f"{log}-{protocol}"
            command = _dynedge([*_compare(args, log, models, protocol), "--report", report])
            output = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True, cwd=_settings_folder(args, log)
            ).stdout
            report.with_suffix(".json").write_text(output)
            leaderboard = json.loads(output)
            print(
                f"\n### {log}, {protocol}: {leaderboard['events']:,} test events of {leaderboard['users']:,} users\n"
            )
            print("\n".join(markdown(leaderboard["rows"])), flush=True)
            rows_by_log[log] = leaderboard["rows"]
        print(f"\n### {protocol}: MRR / Recall@10\n\n" + "\n".join(overview(rows_by_log)), flush=True)


def _has_finished(args: argparse.Namespace, log: str, model: str) -> bool:
    """Returns whether the runs of all seeds are trained."""
    runs = [f"{model}-{seed}" for seed in range(args.seeds)]
    if model == HEURISTIC:
        runs = [f"{recipe}-0" for recipe in find_entry(model).recipes]
    return all(is_finished(args.runs / log / run) for run in runs)


def _log_model_pairs(args: argparse.Namespace) -> list[tuple[str, str]]:
    return [(log, model) for model in args.models.split(",") for log in args.names.split(",")]


def read_settings(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _compare(args: argparse.Namespace, log: str, models: Sequence[str], protocol: str) -> list[Any]:
    entries = ",".join(_entry(args, log, model) for model in models)
    command = ["compare", args.logs / log, "--models", entries, "--seeds", args.seeds, "--epochs", args.epochs]
    return [*command, "--runs", args.runs / log, "--protocol", protocol, "--json"]


def _settings_folder(args: argparse.Namespace, log: str) -> Path:
    """Returns the working folder with the config files, so that a run is named after its model alone."""
    folder = Path(args.runs / "settings" / log)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _tuned_settings(args: argparse.Namespace, log: str, model: str) -> dict[str, Any]:
    changed = read_settings(args.settings).get(log, {}).get(model, {})
    return {key: value for key, value in changed.items() if key != SEARCH}


def _entry(args: argparse.Namespace, log: str, model: str) -> str:
    """Returns the name of a config file with the model's tuned settings, or that of all heuristics."""
    if model == HEURISTIC:
        return model
    config, changed = recipe_config(model), _tuned_settings(args, log, model)
    for key, value in (changed | {"training.epochs": args.epochs} | dict([PRECISION])).items():
        config = set_key(config, key, value)
    name = f"{model}.toml"
    (_settings_folder(args, log) / name).write_text(to_toml(config), encoding="utf-8")
    return name


def _dynedge(command: Iterable[Any]) -> list[str]:
    return [sys.executable, "-m", "dynedge", *map(str, command)]


def _run_all(chains: Sequence[CommandChain], jobs: int) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda chain: _run_chain(chain, began), chains))


def _run_chain(chain: CommandChain, began: float) -> None:
    """Runs commands in order, until one fails, and prints how each ended."""
    folder, commands = chain
    for command in commands:
        ended = subprocess.run(_dynedge(command), check=False, capture_output=True, text=True, cwd=folder)
        last = (ended.stderr.strip().splitlines() or [""])[-1]
        status = "done" if ended.returncode == 0 else f"exit {ended.returncode}: {last}"
        print(f"{time.monotonic() - began:6.0f} s  {' '.join(map(str, command))}: {status}", flush=True)
        if ended.returncode:
            return


def markdown(rows: list[dict[str, Any]]) -> list[str]:
    """Returns a Markdown table: the best in bold, the second best in italics, failures by their message."""
    order = {name: sorted((row[name] for row in rows if row["seeds"]), reverse=True) for name in ("mrr", "recall@10")}
    lines = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    for row in rows:
        name = model_name(row)
        if not row["seeds"]:
            lines.append(f"| {name} | – | {row['error']} |{' |' * (len(HEAD) - 3)}")
            continue
        metrics = [metric_cell(row, metric, order[metric]) for metric in order]
        difference = difference_cell(row["difference_to_best"]) if row["difference_to_best"] else ""
        costs = [f"{row['seconds_per_epoch']:.3g}", f"{row['peak_mib']:,.0f}", f"{row['parameters']:,}"]
        cells = [name, str(len(row["seeds"])), metrics[0], difference, metrics[1], *costs]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def overview(rows_by_log: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Returns a Markdown table with a row per model and a column per log, sorted by the first log."""
    cells: dict[str, list[str]] = {}
    for log, rows in rows_by_log.items():
        best = max(row["mrr"] for row in rows if row["seeds"])
        for row in rows:
            name = model_name(row).partition(" (")[0]
            cell = f"{row['mrr']:.4f} / {row['recall@10']:.4f}" if row["seeds"] else row["error"]
            mark = "**" if row["mrr"] == best else ""
            seeds = f" ({len(row['seeds'])})" if 0 < len(row["seeds"]) < len(rows[0]["seeds"]) and cell else ""
            cells.setdefault(name, ["–"] * len(rows_by_log))[list(rows_by_log).index(log)] = (
                f"{mark}{cell}{mark}{seeds}"
            )
    lines = [f"| {' | '.join(['', *rows_by_log])} |", f"|{'---|' * (1 + len(rows_by_log))}"]
    return lines + [f"| {' | '.join([name, *columns])} |" for name, columns in cells.items()]


def model_name(row: dict[str, Any]) -> str:
    """Returns the model of a leaderboard row: a config file is named after its model."""
    return str(row["model"]).partition(".toml")[0]


def metric_cell(row: dict[str, Any], name: str, order: list[float]) -> str:
    low, high = row["intervals"][name]
    mark = {0: "**", 1: "*"}.get(order.index(row[name]), "")
    return f"{mark}{row[name]:.4f}{mark} [{low:.4f}, {high:.4f}]"


def difference_cell(difference: dict[str, Any]) -> str:
    low, high = difference["intervals"]["mrr"]
    return f"{difference['mrr']:+.4f} [{low:+.4f}, {high:+.4f}]"


if __name__ == "__main__":
    main()
