"""Protocol `tgb` against brute force, and against the evaluator and the splits that py-tgb publishes."""

import io
import json
import pickle
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from evaluation.scorers import Constant, LastItem, NanForUnseen, Popular
from evaluation.test_protocol import mean_position
from hypothesis import given
from hypothesis import strategies as st

from dynedge.data.ingest.pipeline import prepare
from dynedge.data.log import EventLog
from dynedge.data.splits import Split
from dynedge.data.stored_negatives import StoredNegatives, read_negatives, write_negatives
from dynedge.data.windows import Window
from dynedge.errors import DataError
from dynedge.evaluation.board import SAMPLED, TGB_SPLIT, Board, same_time_items
from dynedge.evaluation.negatives import evaluation_candidates
from dynedge.evaluation.protocol import rank_events

rows = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 8)), min_size=1, max_size=30)


def log_of(events, items=9):
    user, item, time = zip(*sorted(events, key=lambda event: event[2]), strict=True)
    return EventLog.from_arrays(user, item, time, num_users=3, num_items=items)


def published(module):
    """A module of py-tgb, which warns while it is imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(module)


def others_at_the_same_time(log, k):
    same = (log.user == log.user[k]) & (log.time == log.time[k])
    return set(log.item[same].tolist()) - {int(log.item[k])}


@given(rows)
def test_the_users_other_items_of_the_same_time_are_found(events):
    log = log_of(events)
    event, item = same_time_items(log, range(len(log)))
    found = sorted(zip(event.tolist(), item.tolist(), strict=True))
    assert found == sorted((k, one) for k in range(len(log)) for one in others_at_the_same_time(log, k))
    assert event.tolist() == sorted(event.tolist())


@given(rows, st.sampled_from([Constant, Popular, NanForUnseen, LastItem]), st.integers(1, 20))
def test_ranks_equal_brute_force(events, kind, chunk):
    log = log_of(events)
    model = kind.of(log)
    ranks = rank_events(model, log, range(len(log)), model.start(), protocol="tgb", max_events=chunk)
    for k in range(len(log)):
        seen = Counter(log.item[:k].tolist())
        own = log.item[:k][log.user[:k] == log.user[k]][-1:].tolist()
        score = {
            Constant: lambda one: 0,
            Popular: lambda one, seen=seen: seen[one],
            NanForUnseen: lambda one, seen=seen: seen[one],
            LastItem: lambda one, own=own: one in own,
        }[kind]
        candidates = [one for one in range(9) if one not in others_at_the_same_time(log, k)]
        assert ranks[k] == mean_position(score, log.item[k], candidates)


def busy_log(events=400, items=30):
    """Many events share user and second."""
    rng = np.random.default_rng(3)
    time = np.sort(rng.integers(0, events // 3, events))
    return EventLog.from_arrays(rng.integers(0, 6, events), rng.zipf(1.4, events) % items, time, num_items=items)


def test_the_published_evaluator_of_tgb_gives_the_same_numbers():
    evaluator = published("tgb.linkproppred.evaluate").Evaluator("tgbl-wiki")
    log, model = busy_log(), Popular.of(busy_log())
    ranks = rank_events(model, log, range(len(log)), model.start(), protocol="tgb")
    scores = model.score(Window(log, range(len(log))), None, model.start()).numpy()
    mrr, hits, left_out = [], [], 0
    for k in range(len(log)):
        others = others_at_the_same_time(log, k)
        negatives = [one for one in range(log.num_items) if one not in others and one != log.item[k]]
        given_scores = {"y_pred_pos": scores[k, log.item[k]][None], "y_pred_neg": scores[k, negatives][None]}
        result = evaluator.eval({**given_scores, "eval_metric": ["mrr"]})
        mrr.append(float(result["mrr"]))
        hits.append(float(result["hits@10"]))
        left_out += len(others)
    assert left_out > 100
    assert np.mean(mrr) == pytest.approx(np.mean(1 / ranks), rel=1e-6)  # it computes in float32
    assert np.mean(hits) == np.mean(ranks <= 10)


def test_the_split_by_time_is_that_of_tgb():
    dataset = published("tgb.linkproppred.dataset").LinkPropPredDataset
    for log in (busy_log(), busy_log(401), log_of([(0, 1, 5), (1, 2, 5), (0, 2, 5)])):
        masks = dataset.generate_splits(None, {"timestamps": log.time})
        parts = Split.parse(TGB_SPLIT).at(log.time).ranges(len(log))
        assert [len(part) for part in parts.values()] == [int(mask.sum()) for mask in masks]
        assert all(mask[part.start : part.stop].all() for mask, part in zip(masks, parts.values(), strict=True))


@pytest.fixture
def stored(tmp_path):
    """A log on disk with stored negatives for its last six events, of different numbers; one has none."""
    log = busy_log(60, 20)
    log = prepare({"user_id": log.user, "item_id": log.item, "timestamp": log.time}, tmp_path / "log")
    counts = [3, 0, 5, 2, 2, 4]
    rng = np.random.default_rng(0)
    items = np.concatenate([rng.integers(0, log.num_items, count) for count in counts])
    write_negatives(log, StoredNegatives(len(log) - 6, np.append(0, np.cumsum(counts)), items))
    return log


def test_stored_negatives_are_the_candidates(stored):
    log, negatives, model = stored, read_negatives(stored), Popular.of(stored)
    events = range(len(log) - 8, len(log))  # the first two precede the stored ones
    for chunk in (1, 3, 100):
        ranks = rank_events(model, log, events, model.start(), protocol="tgb", max_events=chunk)
        scores = model.score(Window(log, events), None, model.start())
        for k, position in enumerate(events):
            true = int(log.item[position])
            own = negatives.of(range(position, position + 1)).tolist()
            if not own:
                drawn = evaluation_candidates(
                    range(position, position + 1), torch.tensor([true]), log.num_items, SAMPLED
                )
                own = drawn[0, 1:].tolist()
            above = sum(float(scores[k, one]) > float(scores[k, true]) for one in own)
            equal = sum(float(scores[k, one]) == float(scores[k, true]) for one in own)
            assert ranks[k] == 1 + above + equal / 2


def test_negatives_of_other_events_and_damaged_ones_are_refused(stored):
    folder = stored.path / "negatives"
    about = json.loads((folder / "negatives.json").read_text())
    (folder / "negatives.json").write_text(json.dumps({**about, "log": "another"}))
    with pytest.raises(DataError, match="negatives of other events"):
        Board(stored, range(len(stored)))
    for start in ("x", [1], float("inf"), -1, len(stored) + 1):
        (folder / "negatives.json").write_text(json.dumps({**about, "start": start}))
        with pytest.raises(DataError, match="is damaged; prepare the log again"):
            read_negatives(stored)
    (folder / "negatives.json").write_text(json.dumps(about))
    for items in (np.full(16, stored.num_items, np.int32), np.full(16, -1, np.int32), np.zeros(16), np.int32(3)):
        np.save(folder / "items.npy", items)
        with pytest.raises(DataError, match="is damaged; prepare the log again"):
            read_negatives(stored)
    archive = io.BytesIO()
    np.savez(archive, items=np.zeros(16, np.int32))
    for content in (b"", b"PK\x03\x04", archive.getvalue(), pickle.dumps(stored.num_items)):
        (folder / "items.npy").write_bytes(content)
        with pytest.raises(DataError, match="is damaged; prepare the log again"):
            read_negatives(stored)
