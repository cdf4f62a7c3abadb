"""`export --index`: an index, vectors whose inner products are the model's scores, and its measured recall."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from serving.small_run import make_run

from dynedge.inference.ann_index import recall
from dynedge.inference.session import Session


@pytest.mark.parametrize("kind", ["faiss", "hnsw"])
def test_lists_of_the_vectors_are_those_of_the_run(cli_run, runs_folder, tmp_path, kind):
    pytest.importorskip({"faiss": "faiss", "hnsw": "hnswlib"}[kind])
    run = make_run(runs_folder, "edge-paper-large")
    code, out, err = cli_run("export", run, "--index", kind, "--out", tmp_path / "index", "--k", 5)
    assert code == 0, err
    assert f"{kind} index of 36 items, recall@5 1.0000 of the exact search" in out
    items, users = (pq.read_table(tmp_path / "index" / f"{side}.parquet") for side in ("items", "users"))
    vectors, queries = (np.array(table["vector"].to_pylist(), np.float32) for table in (items, users))
    session = Session.open(run)
    exact, scores = session.top_items(np.arange(len(queries)), 5)
    product = queries @ vectors.T
    best = np.argsort(-product, axis=1)[:, :5]
    assert (np.sort(best, 1) == np.sort(exact, 1)).mean() > 0.99  # ties
    offset = scores - np.take_along_axis(product, exact, 1)
    np.testing.assert_allclose(offset, np.repeat(offset[:, :1], 5, 1), atol=1e-4)
    assert items["item_id"].to_pylist() == session.items.take(range(len(session.items)))
    summary = json.loads((tmp_path / "index" / "index.json").read_text())
    assert (summary["items"], summary["dim"], summary["k"]) == (36, vectors.shape[1], 5)
    assert (tmp_path / "index" / f"index.{kind}").stat().st_size > 1000


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        ("edge", "faiss", "other parts than inner products"),
        ("memory", "hnsw", "does not score items by inner products of vectors; edge-paper-small does"),
        ("edge-paper-large", "annoy", "--index 'annoy' is not one of faiss, hnsw"),
    ],
)
def test_what_has_no_index_is_refused(cli_run, runs_folder, tmp_path, model, kind, words):
    run = make_run(runs_folder, model)
    code, out, err = cli_run("export", run, "--index", kind, "--out", tmp_path / "index")
    assert (code, out) == (2, "")
    assert words in err
    assert not (tmp_path / "index").exists()


def test_recall_is_the_share_of_exact_items_found():
    assert recall(np.array([[1, 2], [3, 4]]), np.array([[2, 5], [4, 3]])) == 0.75
