"""Synthetic logs: deterministic, generated in chunks, and shaped like real ones, from a demo to a billion events.

The simulator produces one event at a time, at a cost that does not grow with the log:

- A fixed number of sessions is active at once. Each step, a random session produces an event and the clock advances.
  A session that ends is replaced by one of a new user or of a returning user; users return in proportion to their
  past sessions, so activity is heavy-tailed.
- Items belong to *clusters*. A cluster's current items form a *chart*, from which ranks are sampled by a heavy-tailed
  distribution. A new item enters at a random rank and displaces others down the chart; charts also churn. So items
  rise and fade.
- A user has a few *tastes* (clusters) and a *mood*, and both drift. The next item is one of the user's recent items,
  the *successor* of the last item, or a sample from the chart. Every item has one successor per mood, so a model that
  knows only the last item cannot tell which, and one that follows the user can.
- Users and items are numbered by first appearance, on a schedule that ends at exactly the numbers of the recipe.

The same recipe, seed and number of events give the same bits on any machine: all samples are integers, and no
function whose last bit differs between machines (a power, a logarithm, a matrix product) touches a column.
"""

from __future__ import annotations

import os

import numpy as np

from dynedge.data.id_index import IdIndex
from dynedge.data.log import EventLog, read_log
from dynedge.data.log_writer import LogWriter
from dynedge.data.synthetic.demo_names import GENRES, people, titles
from dynedge.data.synthetic.recipes import MIN_ENTITIES, RECIPES, HeavyTail, Recipe, scaled
from dynedge.data.synthetic.simulator import simulate
from dynedge.data.synthetic.world import CLUSTER, ITEMS, USERS, World, initial_world
from dynedge.errors import UsageError
from dynedge.utils.array_type import Array
from dynedge.utils.prefetch import prefetch
from dynedge.utils.progress import Progress

__all__ = ["MIN_ENTITIES", "RECIPES", "HeavyTail", "Recipe", "initial_world", "simulate", "synthesize"]


def synthesize(
    recipe: str,
    out: str | os.PathLike[str],
    *,
    seed: int = 0,
    events: int | None = None,
    force: bool = False,
    quiet: bool = False,
) -> EventLog:
    """Generates a log by one of the RECIPES, writes it to `out` and opens it.

    With another number of `events`, users and items are scaled in proportion, so that activity and density stay those
    of the full log and the time span changes; at least MIN_ENTITIES of both remain, or one per event. Clusters are
    scaled too, so that charts keep their length, to at least four where there are enough items.
    """
    if recipe not in RECIPES:
        raise UsageError(f"recipe '{recipe}' is unknown; choose one of: {', '.join(RECIPES)}.")
    chosen = scaled(RECIPES[recipe], events)
    world = initial_world(recipe, chosen, seed)
    with LogWriter(out, force=force) as writer:
        first_time, last_time = _write_events(writer, chosen, world, quiet)
        assert (world.counters[USERS], world.counters[ITEMS]) == (chosen.users, chosen.items)
        _write_ids(writer, chosen, world)
        writer.finish(
            events=chosen.events,
            users=chosen.users,
            items=chosen.items,
            rows_read=chosen.events,
            rejected=0,
            first_time=first_time,
            last_time=last_time,
            features=[f"f{k}" for k in range(chosen.features)],
            item_features=[chosen.category_name] if chosen.category_name else [],
            split=chosen.split,
            source={"recipe": recipe, "seed": seed, "events": chosen.events},
            time={"unit": "s"},
        )
    return read_log(out)


def _write_events(writer: LogWriter, recipe: Recipe, world: World, quiet: bool) -> tuple[float, float]:
    """Hashes and writes chunks while a thread generates the next; returns the first and the last time."""
    times: list[float] = []
    with Progress("making events", recipe.events, quiet=quiet) as progress:
        for chunk in prefetch(simulate(recipe, world), depth=1):
            writer.column("user", np.int32).append(chunk.user)
            writer.column("item", np.int32).append(chunk.item)
            writer.column("time", np.float64).append(chunk.time)
            if recipe.features:
                writer.column("features", np.float32, recipe.features).append(chunk.features)
            times = [times[0] if times else float(chunk.time[0]), float(chunk.time[-1])]
            progress.advance(len(chunk.user))
    return times[0], times[1]


def _write_ids(writer: LogWriter, recipe: Recipe, world: World) -> None:
    cluster, named = world.item_table[:, CLUSTER], recipe.readable_names
    writer.ids("user_ids", IdIndex.from_ids(people(recipe.users)) if named else _integer_ids(recipe.users))
    writer.ids("item_ids", IdIndex.from_ids(titles(cluster)) if named else _integer_ids(recipe.items))
    if recipe.category_name:
        clusters, code = _by_first_appearance(cluster)
        genres = list(GENRES)
        writer.column("item_categories", np.int32, 1).append(code[:, None])
        names = IdIndex.from_ids(genres[c] for c in clusters) if named else _integer_ids(len(clusters))
        writer.ids("category_0_ids", names)


def _by_first_appearance(values: Array) -> tuple[Array, Array]:
    """Returns the distinct values in order of first appearance, and each value's index among them."""
    distinct, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    index = np.empty(len(order), np.int32)
    index[order] = np.arange(len(order), dtype=np.int32)
    return distinct[order], index[inverse]


def _integer_ids(count: int) -> IdIndex:
    """Returns distinct integers in no visible order, like the keys of a database."""
    bits = max(4, count.bit_length() + 2)
    scattered = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0xD1B54A32D192ED03)
    return IdIndex((scattered & np.uint64(2**bits - 1)).astype(np.int64) + 1)  # an odd factor: one to one in 2^bits
