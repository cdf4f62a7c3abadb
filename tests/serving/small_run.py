"""A small log, runs of several models on it, and events to send them: known people, new ones, some late."""

import numpy as np
import torch

from dynedge.config import set_key
from dynedge.data.log import read_log
from dynedge.data.synthetic import synthesize
from dynedge.inference.event_input import Event
from dynedge.inference.session import Live
from dynedge.runs.folder import RunFolder
from dynedge.runs.run_config import recipe_config, resolve_key
from dynedge.runs.train_run import train_run

SMALL = {"epochs": 1, "windows": 8, "dim": 8}
MODELS_SERVED = {
    "edge": SMALL,
    "edge-paper": {**SMALL, "dnodes": 2, "active_users": 40, "active_items": 40},
    "memory": {"epochs": 1, "windows": 8},
    "next-300-unseen": {},
}


def make_run(runs_folder, name):
    """The run's folder, trained once."""
    if not (runs_folder / "log").exists():
        synthesize("demo", runs_folder / "log", events=3000, quiet=True)
    if not (runs_folder / name).exists():
        config = recipe_config(name)
        for key, value in MODELS_SERVED[name].items():
            config = set_key(config, resolve_key(config, key, key), value)
        with RunFolder(runs_folder / name) as run:
            train_run(run, config, read_log(runs_folder / "log"), quiet=True)
    return runs_folder / name


def make_events(runs_folder, count, seed=0, new=0.1, late=0.05, repeated=0.0):
    """What the log has after the run's training events, told by own ids, with strangers among them."""
    log, rng, found = read_log(runs_folder / "log"), np.random.default_rng(seed), []
    for k in range(count):
        at = 2400 + k % (len(log) - 2400)
        user, item = log.user_ids[int(log.user[at])], log.item_ids[int(log.item[at])]
        time = float(log.time[2400]) + 30.0 * k
        if rng.random() < new:
            user = f"new user {rng.integers(30)}"
        if rng.random() < new:
            item = f"new item {rng.integers(30)}"
        if rng.random() < late:
            time -= float(rng.integers(1, 10**6))
        event = Event(str(user), str(item), time, (), f"event {k}")
        found.append(found[rng.integers(len(found))] if found and rng.random() < repeated else event)
    return found


def bits(live):
    """All that a state is made of, but for room that is not used yet and where a hash table has what."""
    users, items = len(live.users), len(live.items)
    found = {
        "events": live.coverage.events,
        "time": live.coverage.last_time,
        "items": live.coverage.item_counts[:items].tobytes(),
    }
    found |= {"users": live.users.added, "names": live.items.added}
    for name, tensor in live.clock.tensors().items():
        found[f"clock {name}"] = tensor.numpy()[: users if name == "user" else items].tobytes()
    for name, tensor in live.state.items():
        if name.endswith("_slots"):
            continue
        table, _, column = name.rpartition(".")
        if f"{table}.used" in live.state and column in ("rows", "row_keys", "entries", "entry_times"):
            used = live.state[f"{table}.used"][0 if column.startswith("row") else 1]
            assert not tensor[used:].any()
            tensor = tensor[:used]  # noqa: PLW2901
        elif column == "popularity":
            assert not tensor[:, items:].any()
            tensor = tensor[:, :items]  # noqa: PLW2901
        assert torch.isfinite(tensor).all()
        found[name] = tensor.contiguous().numpy().tobytes()
    return found


def open_live(folder):
    return Live.open(folder)
