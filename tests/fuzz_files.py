"""Damages the files of logs, runs and services at random, and runs commands on them in forked processes.

A case copies a folder, changes one file (a bit, an integer, a float, a JSON value, the length, the kind of file) and
runs commands on the copy. Each must end in time, with exit code 0, 2 or 3 and, unless that is 0, one sentence.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np

INTEGERS = -1, 0, 1, 2, 127, 1000, 10**6, 2**31 - 1, -(2**31), 2**62, -(2**63)
FLOATS = float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 1e38, 1e300
JSON_VALUES = None, -1, 0, 10**20, 1e300, "", "x", [], {}, [[]], True, "0" * 400, {"a": [1]}
TENSOR_TYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "BOOL": "|u1"}
OFTEN = "state.safetensors", "user.npy", "item.npy", "time.npy", "user_ids_offsets.npy"
SECONDS = 60  # a command that takes longer hangs
BUG = "this is a bug", "Traceback"

Command = Callable[[Path], int]


class Target(NamedTuple):
    """A folder whose files are damaged, and what is run on a damaged copy."""

    name: str
    folder: Path
    commands: Sequence[Command]
    unlisted: tuple[str, ...] = ()  # files that are removed first in half of the cases: the manifest of checksums


class Failure(NamedTuple):
    target: str
    change: str
    outcome: str


def fuzz(targets: Sequence[Target], cases: int, scratch: Path, seed: int = 0) -> tuple[list[Failure], dict[str, int]]:
    """Runs `cases` cases, spread over the targets; returns the failures and how often each outcome occurred."""
    failures, outcomes = list[Failure](), dict[str, int]()
    for case in range(cases):
        rng, target = random.Random(f"{seed} {case}"), targets[case % len(targets)]
        copy = scratch / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(target.folder, copy, symlinks=True)
        if rng.random() < 0.5:
            for name in target.unlisted:
                (copy / name).unlink(missing_ok=True)
        change = damage(copy, rng)
        outcome = run_in_fork(lambda copy=copy, target=target, rng=rng: rng.choice(target.commands)(copy), scratch)
        kind = "refused" if outcome.startswith(("exit 2", "exit 3")) else outcome.split(":")[0]
        outcomes[kind] = outcomes.get(kind, 0) + 1
        if kind not in ("exit 0", "refused"):
            failures.append(Failure(target.name, f"case {case}: {change}", outcome))
    return failures, outcomes


def run_in_fork(command: Callable[[], int], scratch: Path) -> str:
    """Runs a command in a forked process; returns "exit N", "signal N", "hangs" or "says it is a bug: ..."."""
    output = scratch / "output"
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
            sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
            code = command()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + SECONDS
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hangs"
        time.sleep(0.002)
    text = output.read_text(encoding="utf-8", errors="replace")
    if os.WIFSIGNALED(ended[1]):
        return f"signal {os.WTERMSIG(ended[1])}"
    code = os.WEXITSTATUS(ended[1])
    last = text.strip().splitlines()[-1] if text.strip() else ""
    if any(word in text for word in BUG):
        return f"says it is a bug: {last}"
    if code not in (0, 2, 3) or (code and not last.startswith("dynedge: ")):
        return f"exits with {code}: {last}"
    return f"exit {code}: {last}"


# ---- damage


def damage(folder: Path, rng: random.Random) -> str:
    """Changes one file of a folder and says how; files of states and columns are chosen more often."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in ("README.md", ".lock"))
    path = rng.choices(files, [10 if path.name in OFTEN else 3 if path.parent == folder else 1 for path in files])[0]
    name = path.relative_to(folder)
    if rng.random() < 0.06:
        return f"{name}: {_replace_file(path, rng)}"
    raw = bytearray(path.read_bytes())
    kinds: list[Callable[[bytearray, random.Random], str]] = [_flip_bits, _change_length]
    special = {".npy": _change_number_npy, ".safetensors": _change_number_tensors, ".json": _change_json}
    special |= {".toml": _change_text, ".jsonl": _change_text}
    if path.suffix in special:
        kinds += [special[path.suffix]] * 6
    change = rng.choice(kinds)(raw, rng)
    path.write_bytes(raw)
    return f"{name}: {change}"


def _replace_file(path: Path, rng: random.Random) -> str:
    path.unlink()
    kind = rng.choice(("nothing", "a pipe", "a folder", "a device", "a loop", "an empty file"))
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    elif kind == "a loop":
        path.symlink_to(path)
    elif kind == "an empty file":
        path.touch()
    return f"replaced by {kind}"


def _flip_bits(raw: bytearray, rng: random.Random) -> str:
    if not raw:
        return "unchanged"
    at = [rng.randrange(len(raw)) for _ in range(rng.choice((1, 1, 4, 64)))]
    for k in at:
        raw[k] ^= 1 << rng.randrange(8)
    return f"{len(at)} bits flipped, the first in byte {at[0]}"


def _change_length(raw: bytearray, rng: random.Random) -> str:
    if raw and rng.random() < 0.6:
        del raw[rng.randrange(len(raw)) :]
        return f"cut to {len(raw)} bytes"
    raw += bytes(rng.randrange(256) for _ in range(rng.choice((1, 8, 5000))))
    return f"extended to {len(raw)} bytes"


def _change_number_npy(raw: bytearray, rng: random.Random) -> str:
    """Changes a number of a column; its type is found in the .npy header."""
    if len(raw) <= 128:
        return _flip_bits(raw, rng)
    text = bytes(raw[:128]).decode("latin1")
    dtype = next((kind for kind in ("<i8", "<i4", "<f8", "<f4", "|u1") if kind in text), "|u1")
    return _change_number(raw, 128, len(raw), dtype, rng)


def _change_number_tensors(raw: bytearray, rng: random.Random) -> str:
    """Changes a number of a tensor, or the description of the tensor."""
    try:
        (size,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + size])
        name = rng.choice(sorted(name for name in header if name != "__metadata__"))
        entry = header[name]
        if rng.random() < 0.1:
            key = rng.choice(("dtype", "shape", "name"))
            if key == "name":
                header[f"{name}x"] = header.pop(name)
            else:
                entry[key] = rng.choice(("I64", "I32", "F32", "BF16", "BOOL")) if key == "dtype" else entry[key][::-1]
            text = json.dumps(header).encode()
            raw[: 8 + size] = struct.pack("<Q", len(text)) + text
            return f"{key} of {name} changed"
        start, stop = (8 + size + offset for offset in entry["data_offsets"])
        return f"{name}: {_change_number(raw, start, stop, TENSOR_TYPES.get(entry['dtype'], '|u1'), rng)}"
    except (ValueError, IndexError, KeyError, struct.error):
        return _flip_bits(raw, rng)


def _change_number(raw: bytearray, start: int, stop: int, dtype: str, rng: random.Random) -> str:
    kind = np.dtype(dtype)
    count = (stop - start) // kind.itemsize
    if not count:
        return _flip_bits(raw, rng)
    at = start + kind.itemsize * rng.choice((0, count - 1, *(rng.randrange(count) for _ in range(6))))
    if kind.kind == "f":
        value = rng.choice(FLOATS)
    else:
        limits = np.iinfo(kind)
        value = min(max(rng.choice((*INTEGERS, rng.randrange(-(2**31), 2**31), count)), limits.min), limits.max)
    with np.errstate(over="ignore"):
        raw[at : at + kind.itemsize] = np.array(value).astype(kind).tobytes()
    return f"number at byte {at} set to {value}"


def _change_json(raw: bytearray, rng: random.Random) -> str:
    """Replaces or removes a value anywhere in a JSON document."""
    try:
        document = json.loads(raw)
    except ValueError:
        return _flip_bits(raw, rng)
    places = list[tuple[dict | list, str | int]]()

    def collect(value: object) -> None:
        keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        for key in keys:
            places.append((value, key))
            collect(value[key])

    collect(document)
    if not places or rng.random() < 0.05:
        raw[:] = rng.choice((b"", b"[]", b"null", b"[" * 100_000, b"7", b'{"format": 1}'))
        return "replaced by another document"
    parent, key = rng.choice(places)
    if isinstance(parent, dict) and rng.random() < 0.15:
        del parent[key]
        change = f"{key!r} removed"
    else:
        parent[key] = rng.choice(JSON_VALUES)
        change = f"{key!r} set to {str(parent[key])[:30]!r}"
    raw[:] = json.dumps(document).encode()
    return change


def _change_text(raw: bytearray, rng: random.Random) -> str:
    """Replaces a value of a line KEY = VALUE, or flips bits."""
    lines = bytes(raw).split(b"\n")
    with_values = [k for k, line in enumerate(lines) if b"=" in line]
    if not with_values:
        return _flip_bits(raw, rng)
    k = rng.choice(with_values)
    key = lines[k].partition(b"=")[0]
    value = rng.choice(
        (b"-1", b"0", b"1e300", b'"x"', b"[]", b"true", b"99999999999999999999", b"nan", b"1000000000")
    )
    lines[k] = key + b"= " + value
    raw[:] = b"\n".join(lines)
    return f"{key.decode(errors='replace').strip()} set to {value.decode()}"


# ---- what is damaged

SMALL = {"epochs": 1, "windows": 4, "dim": 8}
MODELS = {
    "edge": SMALL,
    "edge-paper-large": {**SMALL, "dnodes_share": 0.02, "active_users": 12, "active_items": 12},
    "memory": {"epochs": 1, "windows": 4},
    "next-300-unseen": {},
    "sasrec": {"epochs": 1, "dim": 8},
    "tgat": {"epochs": 1, "windows": 4, "dim": 8},
    "jodie": SMALL,
    "deepcoevolve": SMALL,
    "ctdne": {"dim": 8},
}


def make_targets(place: Path, models: Sequence[str]) -> list[Target]:
    """A log with every kind of column, a run of each model with its checkpoints, and the folder of a service."""
    from dynedge.cli import run as cli
    from dynedge.inference.event_input import Event
    from dynedge.runs.evaluate_run import evaluate_run
    from dynedge.serving.engine import Engine

    log = _make_log(place)
    plan = _command("plan", "--dnodes", "2")
    runs = [_make_run(place, log, name) for name in models]
    targets = [Target("log", log, (_command("info"), plan, _command("train", *TRAIN, place / "trained")))]
    with redirect_stdout(None):
        plan(log)
        for run in runs:
            evaluate_run(run, quiet=True)
    for run in runs:
        commands = (
            _command("recommend", "--users", "üser 1"),
            _command("recommend", "--users", "üser 1", "--log", log, "--filter-seen"),
            _command("evaluate"),
            _command("evaluate", "--protocol", "sampled-499"),
            lambda copy: cli(["train", str(log), "--out", str(copy), "--resume", "--epochs", "2"]),
        )
        targets.append(Target(f"run {run.name}", run, commands, ("manifest.json",)))
    data = place / "data"
    engine = Engine(runs[0], data)
    engine.submit([Event("new", "item 1", 2e5 + k, (1.0,), f"e{k}") for k in range(20)]).result()
    engine.close()
    targets.append(Target("service", data, (lambda copy: _serve(runs[0], copy), lambda copy: _export(runs[0], copy))))
    return targets


TRAIN = "--model", "next-300-unseen", "--force", "--out"


def _command(name: str, *arguments: object) -> Command:
    from dynedge.cli import run as cli

    return lambda folder: cli([name, str(folder), *map(str, arguments)])


def _serve(run: Path, data: Path) -> int:
    from dynedge.errors import DynedgeError
    from dynedge.serving.engine import Engine

    try:
        engine = Engine(run, data)
        engine.journal.of_user("new", 5)
        engine.close()
    except DynedgeError as error:
        print(f"dynedge: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _export(run: Path, data: Path) -> int:
    from dynedge.cli import run as cli

    return cli(["export", str(run), "--data", str(data), "--out", str(data / "out.parquet"), "--force"])


def _make_log(place: Path) -> Path:
    from dynedge.data.ingest.pipeline import prepare
    from dynedge.data.ingest.schema import Schema

    rng, rows = random.Random(0), ["user,item,time,mark,weight,kind,id"]
    for k in range(400):
        user, item = rng.randrange(30), rng.randrange(25)
        rows.append(f"üser {user},item {item},{1e5 + 40 * k},{k % 5},{rng.random()},kind {item % 4},event {k}")
    (place / "events.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    schema = Schema("user", "item", "time", "mark", "id", ("weight",), ("kind",))
    prepare(place / "events.csv", place / "log", schema)
    return place / "log"


def _make_run(place: Path, log: Path, name: str) -> Path:
    from dynedge.config import set_key
    from dynedge.data.log import read_log
    from dynedge.runs.folder import RunFolder
    from dynedge.runs.run_config import recipe_config, resolve_key
    from dynedge.runs.train_run import train_run

    config = recipe_config(name)
    for key, value in MODELS[name].items():
        config = set_key(config, resolve_key(config, key, key), value)
    with RunFolder(place / name) as run:
        train_run(run, config, read_log(log), quiet=True)
    return place / name
