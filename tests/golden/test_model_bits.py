"""Every model trained and ranked for a few windows on a small log: the bits of ranks, states and parameters stay."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from golden.machine import Golden, checksum

from dynedge.config import flatten, set_key
from dynedge.data.id_index import IdIndex
from dynedge.data.log import EventLog
from dynedge.evaluation.protocol import rank_events
from dynedge.models.registry import entries
from dynedge.runs.run_config import build_model, recipe_config, resolve_config
from dynedge.training.loop import fit

pytestmark = pytest.mark.slow

SMALL = {
    "dim": 8,
    "windows": 6,
    "min_window_events": 0,
    "window_events": 128,
    "history_length": 5,
    "walk_length": 5,
    "neighbours": 5,
    "hidden": 16,
    "snapshots": 3,
    "training_examples": 300,
}
# Beside every recipe as it is: what only some settings reach.
VARIANTS = {
    "edge, d-nodes": ("edge", {"dnodes": 6, "active_users": 60, "active_items": 60}),
    "recurrence, penalty": ("recurrence", {"dnodes": 6, "solver": "penalty"}),
    "recurrence, augmented": ("recurrence", {"depth": 4, "solver": "augmented", "event_features": "false"}),
    "recurrence, refresh-penalty": ("recurrence", {"dnodes": 4, "solver": "refresh-penalty", "time_gaps": "false"}),
    "recurrence, sampled": ("recurrence", {"full_softmax_up_to": 0, "negatives": 16}),
    "recurrence, no ids": ("recurrence", {"candidate_id_up_to": "0"}),
    "edge-paper, evolving": ("edge-paper-large", {"evolve_active": "true", "active_users": 60, "active_items": 60}),
    "edge-paper, penalty": ("edge-paper-small", {"solver": "penalty", "phi_lr_factor": 10}),
    "jodie, mse": ("jodie", {"loss": "mse"}),
    "jodie, sampled": ("jodie", {"full_softmax_up_to": 0, "negatives": 16}),
    "gru4rec, bpr-max": ("gru4rec", {"loss": "bpr-max", "full_softmax_up_to": 0, "negatives": 16}),
    "gru4rec, top1-max": ("gru4rec", {"loss": "top1-max", "shuffle": "false"}),
    "memory, plain": ("memory", {"gating_hidden": 0, "rescaling_hidden": 0}),
    "memory, limited": ("memory", {"occurrences": 8, "history_events": 6, "rescaled_items": 5}),
    "tgat, sampled": ("tgat", {"full_softmax_up_to": 0, "negatives": 16}),
}
RECIPES = {recipe: (recipe, {}) for name, entry in entries().items() for recipe in entry.names(name)}
GOLDEN = Golden("model_bits")


@pytest.fixture(scope="module")
def log():
    rng = np.random.default_rng(5)
    events, users, items = 1500, 40, 70
    user = rng.zipf(1.4, events) % users
    item = np.where(rng.random(events) < 0.4, user * 3 % items, rng.zipf(1.3, events) % items)
    time = np.cumsum(rng.integers(0, 4, events)).astype(np.float64)
    features = rng.standard_normal((events, 2))
    made = EventLog.from_arrays(user, item, time, features=features, num_users=users, num_items=items + 2)
    kinds = np.arange(items + 2, dtype=np.int32)[:, None] % 5 - 1
    return replace(made, item_categories=kinds, category_ids=(IdIndex.from_ids(["a", "b", "c", "d"]),))


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", {**RECIPES, **VARIANTS})
def test_bits(case, log):
    recipe, changes = {**RECIPES, **VARIANTS}[case]
    config = recipe_config(recipe)
    for key in flatten(config):
        name = key.rpartition(".")[2]
        if key.startswith("model.") and (name in SMALL or name in changes):
            config = set_key(config, key, changes.get(name, SMALL.get(name)))
    config = replace(config, training=replace(config.training, epochs=2, seed=3, device="cpu"))
    config = resolve_config(config, log)
    model = build_model(config, log)
    course = fit(model, log, config.training)
    valid = log.split.ranges(len(log))["valid"]
    model.eval()
    state = model.start()
    with torch.no_grad():
        for start in range(0, valid.start, 500):
            rank_events(model, log, range(start, min(start + 500, valid.start)), state)
    full = rank_events(model, log, valid, state)
    sampled = rank_events(model, log, valid, model.start(), protocol="sampled-499")
    last = course.history[-1]
    GOLDEN.check(
        case,
        {
            "ranks": checksum([full, sampled]),
            "state": checksum(state.values()),
            "best": checksum(course.best.tensors.values()),
            "parameters": checksum(model.state_dict().values()),
        },
        {
            "loss": round(last["loss"], 6),
            "valid_mrr": round(last["valid_mrr"], 6),
            "mrr": round(float((1 / full).mean()), 6),
            "sampled_mrr": round(float((1 / sampled).mean()), 6),
        },
    )
