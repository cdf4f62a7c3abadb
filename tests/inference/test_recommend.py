"""Recommendations: arrays, frames, records and Parquet files are views of the same result."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, json
from serving.small_run import make_run

from dynedge.inference.recommend import distinct_users, recommend
from dynedge.inference.rules import Rules
from dynedge.inference.session import NO_ITEM, Session
from dynedge.inference.table_files import write_recommendations


@pytest.fixture(scope="module")
def session(runs_folder):
    return Session.open(make_run(runs_folder, "edge"))


def flat(records):
    return [
        (record["user_id"], item["item_id"], item["score"], rank)
        for record in records
        for rank, item in enumerate(record["items"], 1)
    ]


def test_all_views_agree(session, tmp_path):
    users = session.users.take(range(len(session.users)))
    answer = recommend(session, users, 4)
    rows = flat(answer.to_records())
    assert len(rows) == len(answer) == 4 * len(users)
    columns = answer.user_id.tolist(), answer.item_id.tolist(), answer.score.tolist(), answer.rank.tolist()
    assert list(zip(*columns, strict=True)) == rows
    for frame in (answer.to_pandas(), answer.to_polars()):
        assert list(frame.columns) == ["user_id", "item_id", "score", "rank", "genre"]
        assert list(frame["item_id"]) == [item for _, item, _, _ in rows]
    genres = [item["metadata"]["genre"] for record in answer.to_records() for item in record["items"]]
    for name in ("all.parquet", "all.csv", "all.jsonl"):
        assert write_recommendations(session, tmp_path / name, 4) == len(rows)
    tables = pq.read_table(tmp_path / "all.parquet"), csv.read_csv(tmp_path / "all.csv")
    for table in (*tables, json.read_json(tmp_path / "all.jsonl")):
        *found, found_genres = zip(*(row.values() for row in table.to_pylist()), strict=True)
        expected = list(zip(*rows, strict=True))
        assert found[:2] + found[3:] == expected[:2] + expected[3:]
        assert np.array(found[2], np.float32).tolist() == list(expected[2])
        assert list(found_genres) == genres


def test_unknown_users_get_the_most_popular_items_with_their_shares(session):
    known = session.users[3]
    answer = recommend(session, ["nobody", known, "nobody"], 5)
    assert answer.users == ("nobody", known, "nobody")
    assert answer.unknown == ("nobody", "nobody")
    counts = np.sort(session.coverage.item_counts)[::-1][:5]
    for one in answer.to_records()[::2]:
        assert not one["known"]
        assert [item["score"] for item in one["items"]] == pytest.approx(counts / session.coverage.events)
    assert answer.to_records()[1] == recommend(session, [known], 5).to_records()[0]


def test_a_user_requested_twice_is_scored_once_and_answered_twice(session, monkeypatch):
    scored, top_items = [], session.top_items

    def record_rows(rows, *args, **kwargs):
        scored.extend(rows.tolist())
        return top_items(rows, *args, **kwargs)

    monkeypatch.setattr(session, "top_items", record_rows)
    users = [session.users[row] for row in (5, 2, 5)]
    first, other, again = recommend(session, users, 3).to_records()
    assert first == again
    assert first["items"] != other["items"]
    assert [other["user_id"], first["user_id"]] == [users[1], users[0]]
    assert scored == [5, 2]
    assert distinct_users(session, users) == users[:2]
    for user, record in zip(users, (first, other), strict=False):
        (alone,) = recommend(session, [user], 3).to_records()
        assert [item["item_id"] for item in record["items"]] == [item["item_id"] for item in alone["items"]]


def test_padding_is_in_no_view(session):
    seen = recommend(session, [session.users[0]], len(session.items), rules=Rules(filter_seen=True))
    assert (seen.item_rows == NO_ITEM).any()
    (record,) = seen.to_records()
    assert len(record["items"]) == len(seen) == len(seen.item_id) == (seen.item_rows != NO_ITEM).sum()
    assert np.isfinite(seen.score).all()
