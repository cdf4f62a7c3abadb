"""A small log, runs of several models trained on it, and events to send: known and new entities, some late."""

import hashlib
from dataclasses import replace

import numpy as np
import torch

from dynedge.config import set_key
from dynedge.data.log import read_log
from dynedge.data.synthetic import synthesize
from dynedge.inference.event_input import Event
from dynedge.runs.folder import RunFolder
from dynedge.runs.run_config import recipe_config, resolve_key
from dynedge.runs.train_run import train_run

SMALL = {"epochs": 1, "windows": 8, "dim": 8}
MODELS_SERVED = {
    "edge": SMALL,
    "edge-paper-large": {**SMALL, "dnodes_share": 0.006, "active_users": 40, "active_items": 40},
    "memory": {"epochs": 1, "windows": 8},
    "next-300-unseen": {},
}
TRAINED = 2400  # of the log's 3,000 events


def make_run(folder, name):
    """Returns the run folder of a model, trained on first use."""
    if not (folder / "log").exists():
        synthesize("demo", folder / "log", events=3000, quiet=True)
    if not (folder / name).exists():
        config = recipe_config(name)
        for key, value in MODELS_SERVED[name].items():
            config = set_key(config, resolve_key(config, key, key), value)
        with RunFolder(folder / name) as run:
            train_run(run, config, read_log(folder / "log"), quiet=True)
    return folder / name


def make_run_with_features(folder):
    """Returns the run folder of a recurrence that was trained with two features per event."""
    make_run(folder, "memory")
    if not (folder / "features").exists():
        log = read_log(folder / "log")
        features = np.random.default_rng(0).normal(size=(len(log), 2)).astype(np.float32)
        with_features = replace(log, features=features, metadata={**log.metadata, "features": ["a", "b"]})
        config = recipe_config("recurrence")
        for key, value in SMALL.items():
            config = set_key(config, resolve_key(config, key, key), value)
        with RunFolder(folder / "features") as run:
            train_run(run, config, with_features, quiet=True)
    return folder / "features"


def make_events(folder, count, seed=0, new=0.1, late=0.05, repeated=0.0):
    """Returns the log's events after training with external ids; shares of them are new, late or repeated."""
    log, rng, events = read_log(folder / "log"), np.random.default_rng(seed), []
    for k in range(count):
        at = TRAINED + k % (len(log) - TRAINED)
        user, item = log.user_ids[int(log.user[at])], log.item_ids[int(log.item[at])]
        time = float(log.time[TRAINED]) + 30.0 * k
        if rng.random() < new:
            user = f"new user {rng.integers(30)}"
        if rng.random() < new:
            item = f"new item {rng.integers(30)}"
        if rng.random() < late:
            time -= float(rng.integers(1, 10**6))
        event = Event(str(user), str(item), time, (), f"event {k}")
        events.append(events[rng.integers(len(events))] if events and rng.random() < repeated else event)
    return events


# By tensor whose memory grows: which number in `used` is its length. Of the event index and of hash tables.
USED = {"history": 0, "history_time": 0, "occurrences": 1, "rows": 0, "row_keys": 0, "entries": 1, "entry_times": 1}


def state_bits(session):
    """Returns everything a session's state consists of, except unused capacity and the layout of hash tables."""
    users, items, coverage = len(session.users), len(session.items), session.coverage
    bits = {"events": coverage.events, "time": coverage.last_time, "items": coverage.item_counts[:items].tobytes()}
    bits |= {"added users": session.users.added, "added items": session.items.added}
    for name, tensor in session.late_events.tensors().items():
        bits[f"last_event_time {name}"] = tensor.numpy()[: users if name == "user" else items].tobytes()
    for name, tensor in session.state.items():
        if name.endswith("_slots"):
            continue
        column = name.rpartition(".")[2]
        if column in USED:
            used = session.state[f"{name.removesuffix(column)}used"][USED[column]]
            assert not tensor[used:].any()
            tensor = tensor[:used]  # noqa: PLW2901
        elif column == "popularity":
            assert not tensor[:, items:].any()
            tensor = tensor[:, :items]  # noqa: PLW2901
        assert torch.isfinite(tensor).all()
        bits[name] = tensor.contiguous().numpy().tobytes()
    return bits


def state_hash(session):
    """Returns a hash of `state_bits`."""
    return hashlib.sha256(repr(sorted(state_bits(session).items())).encode()).hexdigest()


def stop(engine):
    """Closes without a last snapshot, as after a kill."""
    engine.snapshot_position = 10**50
    if engine._writer.is_alive():
        engine.close()
