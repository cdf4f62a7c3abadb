"""Synthetic logs: exact counts, reproducible bits, and the shape of real logs."""

import re

import numpy as np
import pytest

from dynedge.data.log import EventLog
from dynedge.data.synthetic import RECIPES, HeavyTail, demo_names, sampling, simulator, synthesize
from dynedge.data.windows import cut_windows
from dynedge.errors import DataError, UsageError

pytestmark = pytest.mark.slow

SMALL = {
    "demo": 50_000,
    "ml-25m-like": 1_000_000,
    "taobao-like": 200_000,
    "lastfm-like": 1_293_103,
    "reddit-like": 100_000,
    "billion": 200_000,
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, EventLog]:
    folder = tmp_path_factory.mktemp("logs")
    return {name: synthesize(name, folder / name, events=events, quiet=True) for name, events in SMALL.items()}


@pytest.fixture(params=RECIPES)
def log(request: pytest.FixtureRequest, logs: dict[str, EventLog]) -> EventLog:
    return logs[request.param]


def counts(log: EventLog) -> tuple[np.ndarray, np.ndarray]:
    return np.bincount(log.user, minlength=log.num_users), np.bincount(log.item, minlength=log.num_items)


def by_user(log: EventLog) -> tuple[np.ndarray, np.ndarray]:
    """Returns positions sorted by user, then time, and which of them follow an event of the same user."""
    order = np.argsort(log.user, kind="stable")
    return order, np.flatnonzero(np.diff(log.user[order]) == 0) + 1


def test_full_sizes_equal_the_published_ones() -> None:
    sizes = {name: (recipe.users, recipe.items, recipe.events, recipe.split) for name, recipe in RECIPES.items()}
    assert sizes["ml-25m-like"] == (162_538, 59_048, 24_999_849, "0.7,0.1,0.2")
    assert sizes["taobao-like"] == (987_975, 4_111_798, 96_678_667, "0.7,0.1,0.2")
    assert sizes["lastfm-like"] == (1_000, 980, 1_293_103, "0.8,0.1,0.1")
    assert sizes["reddit-like"] == (10_000, 984, 672_447, "0.8,0.1,0.1")
    assert sizes["billion"][2:] == (1_000_000_000, "0.7,0.1,0.2")
    assert RECIPES["reddit-like"].features == 172
    assert all(recipe.description for recipe in RECIPES.values())


def test_full_demo_has_its_exact_counts(logs: dict[str, EventLog]) -> None:
    demo = logs["demo"]
    assert (demo.num_users, demo.num_items, len(demo)) == (400, 600, 50_000)


def test_every_user_and_item_occurs(log: EventLog) -> None:
    users, items = counts(log)
    assert (len(users), len(items)) == (log.metadata["users"], log.metadata["items"])
    assert users.min() >= 1
    assert items.min() >= 1


def test_dense_ids_are_in_order_of_first_appearance(log: EventLog) -> None:
    for column in (log.user, log.item):
        _, first = np.unique(column, return_index=True)
        assert (np.diff(first) > 0).all()


def test_times_are_sorted_and_start_on_the_recipes_day(log: EventLog) -> None:
    assert (np.diff(log.time) >= 0).all()
    start = np.datetime64(RECIPES[log.metadata["source"]["recipe"]].start, "s").astype(float)
    assert start <= log.time[0] < start + 86_400
    assert (log.metadata["first_time"], log.metadata["last_time"]) == (log.time[0], log.time[-1])


def test_the_metadata_describes_the_log(log: EventLog) -> None:
    name = log.metadata["source"]["recipe"]
    assert log.metadata["events"] == log.metadata["rows_read"] == SMALL[name]
    assert log.metadata["rejected"] == 0
    assert log.metadata["source"] == {"recipe": name, "seed": 0, "events": SMALL[name]}
    assert str(log.split) == RECIPES[name].split
    log.verify()


def test_external_ids_are_distinct_and_differ_from_dense_ids(log: EventLog) -> None:
    for ids in (log.user_ids, log.item_ids, *log.category_ids):
        external = ids.take(range(len(ids)))
        assert len(set(external)) == len(external)
        assert external != list(range(len(external)))


def test_the_same_seed_gives_the_same_bits_with_any_chunk_size(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ml-25m-like", "reddit-like"):
        one = synthesize(name, tmp_path / f"{name}-1", events=3_000, seed=7, quiet=True)
        monkeypatch.setattr(simulator, "CHUNK_BYTES", 10_007)
        two = synthesize(name, tmp_path / f"{name}-2", events=3_000, seed=7, quiet=True)
        monkeypatch.undo()
        assert one.metadata["columns"] == two.metadata["columns"]


def test_other_seeds_and_recipes_give_other_logs(tmp_path) -> None:
    logs = [
        synthesize(name, tmp_path / f"{name}-{seed}", events=2_000, seed=seed, quiet=True).metadata["columns"]
        for name, seed in (("demo", 0), ("demo", 1), ("demo", -1), ("billion", 0))
    ]
    for column in ("user", "item", "time"):
        assert len({columns[column]["sha256"] for columns in logs}) == len(logs)


def test_the_bits_are_the_same_on_every_machine(logs: dict[str, EventLog]) -> None:
    # Change a value only when a recipe or the simulator was changed on purpose.
    fingerprints = {name: log.fingerprint[:12] for name, log in logs.items()}
    assert fingerprints == FINGERPRINTS


FINGERPRINTS = {
    "demo": "0bd0fb00cd6a",
    "ml-25m-like": "1ca9835ef060",
    "taobao-like": "e90af0ea18b7",
    "lastfm-like": "888cdb91f857",
    "reddit-like": "06b9d39fdde4",
    "billion": "89e5e402921d",
}


def test_activity_and_popularity_are_heavy_tailed(log: EventLog) -> None:
    for side in counts(log):
        ordered = np.sort(side)[::-1]
        tenth = ordered[: len(side) // 10].sum() / len(log)
        assert 0.25 < tenth < 0.95
        assert side.mean() > 1.2 * np.median(side)


def test_users_act_in_sessions_that_interleave(log: EventLog) -> None:
    order, again = by_user(log)
    gaps = log.time[order[again]] - log.time[order[again - 1]]
    assert np.mean(gaps) > 2 * np.median(gaps)  # bursts: most gaps are short, some are long
    assert np.mean(np.diff(log.user) != 0) > 0.5


@pytest.mark.parametrize(
    ("name", "repeats", "last"),
    [
        ("demo", (0.5, 0.9), (0.03, 0.2)),
        ("lastfm-like", (0.6, 0.95), (0.02, 0.12)),
        ("reddit-like", (0.7, 0.95), (0.75, 0.85)),
        ("ml-25m-like", (0.0, 0.12), (0.0, 0.01)),
    ],
)
def test_the_share_of_repeats_is_as_in_real_logs(
    logs: dict[str, EventLog], name: str, repeats: tuple, last: tuple
) -> None:
    """The share of events with an earlier item of the user, and with the user's last item."""
    log = logs[name]
    pairs = log.user.astype(np.int64) * log.num_items + log.item
    assert repeats[0] <= 1 - len(np.unique(pairs)) / len(log) <= repeats[1]
    order, again = by_user(log)
    assert last[0] <= np.mean(log.item[order[again]] == log.item[order[again - 1]]) <= last[1]


def test_items_rise_and_fade(logs: dict[str, EventLog]) -> None:
    for name in ("demo", "taobao-like", "billion"):
        log = logs[name]
        quarter = len(log) // 4
        top = [
            set(np.argsort(-np.bincount(part, minlength=log.num_items), kind="stable")[:50])
            for part in (log.item[quarter : 2 * quarter], log.item[-quarter:])
        ]
        assert 0 < len(top[0] & top[1]) < 40


def test_users_drift_between_genres(logs: dict[str, EventLog]) -> None:
    demo = logs["demo"]
    genre = demo.item_categories[demo.item, 0]
    stays = []
    for user in np.flatnonzero(counts(demo)[0] > 200):
        mine = genre[demo.user == user]
        early, late = (np.bincount(half).argmax() for half in np.array_split(mine, 2))
        stays.append(early == late)
    assert 0.1 < np.mean(stays) < 0.9
    share = [np.bincount(genre[demo.user == user]).max() / counts(demo)[0][user] for user in range(100)]
    assert np.mean(share) > 2 / 12  # users prefer some of the twelve genres


def test_the_next_item_depends_on_the_last_item_but_not_on_it_alone(logs: dict[str, EventLog]) -> None:
    """Top-1 hits on the last tenth, learned from the rest: transitions beat popularity but are far from perfect."""
    demo = logs["demo"]
    order, again = by_user(demo)
    before, after, position = demo.item[order[again - 1]], demo.item[order[again]], order[again]
    train = position < len(demo) * 9 // 10
    table = np.zeros((demo.num_items, demo.num_items))
    np.add.at(table, (before[train], after[train]), 1)
    transitions = np.mean(table.argmax(1)[before[~train]] == after[~train])
    popular = np.mean(np.bincount(after[train]).argmax() == after[~train])
    assert transitions > 4 * popular
    assert transitions < 0.4


def test_item_categories_are_coded_by_first_appearance(logs: dict[str, EventLog]) -> None:
    for name, feature in (("demo", "genre"), ("taobao-like", "category")):
        log = logs[name]
        assert log.metadata["item_features"] == [feature]
        assert log.item_categories.shape == (log.num_items, 1)
        codes, first = np.unique(log.item_categories, return_index=True)
        assert (codes == np.arange(len(log.category_ids[0]))).all()
        assert (np.diff(first) > 0).all()
    assert RECIPES["taobao-like"].clusters == 9_400


def test_demo_names_are_readable(logs: dict[str, EventLog]) -> None:
    demo = logs["demo"]
    assert all(re.fullmatch(r"[A-Z][a-z]+ [A-Z][a-z]+", name) for name in demo.user_ids.take(range(400)))
    assert all(re.fullmatch(r"[A-Z][a-z]+ [A-Z][a-z]+", title) for title in demo.item_ids.take(range(600)))
    assert set(demo.category_ids[0].take(range(12))) == set(demo_names.GENRES)


def test_names_stay_distinct_when_words_run_out(tmp_path) -> None:
    more = synthesize("demo", tmp_path / "log", events=600_000, quiet=True)
    for ids, count in ((more.user_ids, 4_800), (more.item_ids, 7_200)):
        assert len(set(ids.take(range(len(ids))))) == count


def test_features_depend_on_the_item(logs: dict[str, EventLog]) -> None:
    reddit = logs["reddit-like"]
    assert reddit.features.shape == (100_000, 172)
    assert np.isfinite(reddit.features).all()
    assert np.abs(reddit.features.mean(0)).max() < 2
    centred = reddit.features - reddit.features.mean(0)
    _, item, size = np.unique(reddit.item, return_inverse=True, return_counts=True)
    means = np.zeros((len(size), 172))
    np.add.at(means, item, centred)
    means /= size[:, None]
    explained = (means[item] ** 2).sum() / (centred**2).sum()
    assert 0.2 < explained < 0.95  # by chance it would be items/events, 0.0015


@pytest.mark.parametrize("events", [1, 2, 15, 16, 17, 100])
@pytest.mark.parametrize("name", RECIPES)
def test_tiny_logs_have_their_exact_counts(tmp_path, name: str, events: int) -> None:
    log = synthesize(name, tmp_path / "log", events=events, quiet=True)
    assert len(log) == events
    users, items = counts(log)
    assert (len(users), len(items)) == (min(16, events), min(16, events))
    assert users.min() >= 1
    assert items.min() >= 1


def test_the_longest_path_of_ml_25m_like_is_that_of_the_paper(logs: dict[str, EventLog]) -> None:
    """Windows of the full size; the paper's mean over 300 of them is 209.75 (benchmarks/synthetic_logs.py --path).

    The median of these twelve is used: items that appear shortly before training ends are popular and still inactive,
    so that the last two or three windows have longer paths, and here they are a quarter of all.
    """
    log = logs["ml-25m-like"]
    end = log.split.bounds(len(log))[0]
    inactive = [np.bincount(log.user[:end]) <= 200, np.bincount(log.item[:end]) <= 100]
    lengths = []
    for span in cut_windows(end, round(300 * len(log) / RECIPES["ml-25m-like"].events)):
        level: dict[tuple[int, int], int] = {}
        for k in span:
            reads = [(side, int(x)) for side, x in enumerate((log.user[k], log.item[k])) if inactive[side][x]]
            height = 1 + max((level.get(entity, 0) for entity in reads), default=0)
            level.update(dict.fromkeys(reads, height))
        lengths.append(max(level.values()))
    assert 185 < np.median(lengths) < 235


def test_heavy_tail_is_sampled_by_octaves() -> None:
    rng = np.array([3], np.uint64)
    table = HeavyTail(4, 0.5, 3).table()
    sampled = np.bincount([sampling.sample_heavy_tail(rng, table) for _ in range(70_000)])
    assert len(sampled) == 4 + 8 + 16
    octaves = [sampled[:4].sum(), sampled[4:12].sum(), sampled[12:].sum()]
    np.testing.assert_allclose(octaves, [40_000, 20_000, 10_000], atol=500)  # about four standard deviations


def test_an_unknown_recipe_is_an_error_that_lists_all(tmp_path) -> None:
    with pytest.raises(UsageError, match="demo, ml-25m-like, taobao-like, lastfm-like, reddit-like, billion"):
        synthesize("netflix", tmp_path / "log")


@pytest.mark.parametrize("events", [0, -5, 2**32])
def test_impossible_sizes_are_usage_errors(tmp_path, events: int) -> None:
    with pytest.raises(UsageError, match="--events"):
        synthesize("demo", tmp_path / "log", events=events)


def test_an_existing_log_is_replaced_only_with_force(tmp_path) -> None:
    synthesize("demo", tmp_path / "log", events=10, quiet=True)
    with pytest.raises(DataError, match="--force"):
        synthesize("demo", tmp_path / "log", events=20, quiet=True)
    assert len(synthesize("demo", tmp_path / "log", events=20, force=True, quiet=True)) == 20


def test_a_full_disk_leaves_no_log(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dynedge.data.log_writer.ColumnWriter.append", full)
    with pytest.raises(DataError, match="disk is full"):
        synthesize("demo", tmp_path / "log", quiet=True)
    assert not list(tmp_path.iterdir())
