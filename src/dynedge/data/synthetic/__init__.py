"""Synthetic logs: deterministic, made in pieces, and shaped like real ones, from a demo to a billion events.

A small world is played forward, one event at a time, at a cost that does not grow with the log:

- A *pool* of sessions is under way at once. Each step one of them makes an event and the clock moves on; a
  session that ends gives its place to a new user's, or to that of a user who came before: the oftener someone
  came, the likelier they come again, so activity is heavy-tailed.
- Items belong to *clusters*. A cluster's living items stand in a *chart*, and a rank is drawn by a heavy-tailed
  law. A new item enters the chart anywhere and pushes what it meets down, an octave of ranks at a time; charts
  also churn. So items rise and fade.
- A user has a few *tastes* (clusters) and a *mood*, and both drift. The next item is one of the user's recent
  items, or the *follower* of the last item, or a draw from the chart. Every item has one follower a mood: who
  knows only the last item cannot tell which, who has followed the user can.
- Users and items are numbered as they first appear, on a schedule that ends at exactly the counts asked for.

The same recipe, seed and number of events give the same bits on any machine: all draws are integers, and no
function whose last bit differs between machines (a power, a logarithm, a matrix product) touches a column.

Legend: N users, M items, E events, P sessions in the pool, C clusters, A ranks in a chart, R recent items a user.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from dynedge.data.id_index import IdIndex
from dynedge.data.log import EventLog, LogWriter, read_log
from dynedge.data.synthetic.demo_names import GENRES, people, titles
from dynedge.data.synthetic.recipes import FEWEST, RECIPES, Law, Recipe, scaled
from dynedge.data.synthetic.simulator import CLUSTER, ITEMS, USERS, Piece, World, make_pieces, new_world
from dynedge.errors import UsageError
from dynedge.utils.arrays import Array
from dynedge.utils.progress import Progress

__all__ = ["FEWEST", "RECIPES", "Law", "Recipe", "make_pieces", "new_world", "synthesize"]


def synthesize(
    recipe: str,
    out: str | os.PathLike[str],
    *,
    seed: int = 0,
    events: int | None = None,
    force: bool = False,
    quiet: bool = False,
) -> EventLog:
    """Make a log by one of the RECIPES, write it to `out` and open it.

    With another number of `events`, users and items are scaled with it, so that each has as much to do as in the
    full log; the log spans less time, not sparser time. At least FEWEST of both remain, or one an event. Fewer
    clusters too, so that their charts keep their length, but four while there are items for them.
    """
    if recipe not in RECIPES:
        raise UsageError(f"there is no recipe '{recipe}'; the recipes are {', '.join(RECIPES)}.")
    chosen = scaled(RECIPES[recipe], events)
    world = new_world(recipe, chosen, seed)
    with LogWriter(out, force=force) as writer:
        first_time, last_time = _write_events(writer, chosen, world, quiet)
        assert (world.tally[USERS], world.tally[ITEMS]) == (chosen.users, chosen.items)
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
            item_features=[chosen.category] if chosen.category else [],
            split=chosen.split,
            source={"recipe": recipe, "seed": seed, "events": chosen.events},
            time={"unit": "s"},
        )
    return read_log(out)


def _write_events(writer: LogWriter, recipe: Recipe, world: World, quiet: bool) -> tuple[float, float]:
    """A second thread hashes and writes a piece while the next is made. Returns the first and the last time."""

    def write(piece: Piece) -> None:
        writer.column("user", np.int32).append(piece.user)
        writer.column("item", np.int32).append(piece.item)
        writer.column("time", np.float64).append(piece.time)
        if recipe.features:
            writer.column("features", np.float32, recipe.features).append(piece.features)

    times: list[float] = []
    writing: Future[None] | None = None
    with Progress("making events", recipe.events, quiet=quiet) as progress, ThreadPoolExecutor(1) as thread:
        for piece in make_pieces(recipe, world):
            times = [times[0] if times else float(piece.time[0]), float(piece.time[-1])]
            if writing is not None:
                writing.result()  # two pieces in memory, never more
            writing = thread.submit(write, piece)
            progress.advance(len(piece.user))
        assert writing is not None
        writing.result()
    return times[0], times[1]


def _write_ids(writer: LogWriter, recipe: Recipe, world: World) -> None:
    cluster = world.link[:, CLUSTER]
    writer.ids("user_ids", IdIndex.from_ids(people(recipe.users)) if recipe.named else _numbers(recipe.users))
    writer.ids("item_ids", IdIndex.from_ids(titles(cluster)) if recipe.named else _numbers(recipe.items))
    if recipe.category:
        found, place = _by_first_appearance(cluster)
        genres = list(GENRES)
        writer.column("item_categories", np.int32, 1).append(place[:, None])
        writer.ids(
            "category_0_ids", IdIndex.from_ids(genres[c] for c in found) if recipe.named else _numbers(len(found))
        )


def _by_first_appearance(values: Array) -> tuple[Array, Array]:
    """The distinct values as they first appear, and each value's place among them."""
    distinct, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return distinct[order], place[inverse]


def _numbers(count: int) -> IdIndex:
    """Distinct numbers in no visible order, as a database would have given them out."""
    bits = max(4, count.bit_length() + 2)
    scattered = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0xD1B54A32D192ED03)
    return IdIndex((scattered & np.uint64(2**bits - 1)).astype(np.int64) + 1)  # an odd factor: one to one in 2^bits
