"""The external sort against numpy's stable sort, with buckets so small that every branch is taken."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynedge.data.ingest import external_sort


@given(st.lists(st.one_of(st.integers(0, 5), st.floats(0, 7e9)), max_size=200))
def test_stable_argsort_equals_numpys(times):
    time = np.array(times, np.float64)
    assert external_sort.stable_argsort(time).tolist() == np.argsort(time, kind="stable").tolist()


@given(
    rows=st.integers(1, 200),
    distinct=st.integers(1, 60),
    bucket_rows=st.integers(1, 40),
    chunk_rows=st.integers(1, 50),
)
@settings(max_examples=60, deadline=None)
def test_columns_on_disk_are_sorted_stably(tmp_path_factory, rows, distinct, bucket_rows, chunk_rows):
    folder = tmp_path_factory.mktemp("order")
    times = np.random.default_rng(rows).integers(0, distinct, rows)
    columns = {
        "time": times.astype(np.float64),
        "row": np.arange(rows, dtype=np.int32),
        "wide": np.arange(3 * rows, dtype=np.float32).reshape(rows, 3),
    }
    raw = {}
    for name, values in columns.items():
        (folder / name).write_bytes(b"skip" + values.tobytes())
        raw[name] = external_sort.ColumnFile(
            folder / name, values.dtype, values.shape[1] if values.ndim > 1 else None, 4
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_sort, "BUCKET_BYTES", bucket_rows * 24)
        patch.setattr(external_sort, "CHUNK_ROWS", chunk_rows)
        chunks = list(external_sort.sorted_chunks(raw, rows, folder))
    expected = np.argsort(columns["time"], kind="stable")
    for name, values in columns.items():
        assert np.array_equal(np.concatenate([chunk[name] for chunk in chunks]), values[expected]), name


def test_a_frequent_time_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(external_sort, "BUCKET_BYTES", 20 * 8)
    monkeypatch.setattr(external_sort, "CHUNK_ROWS", 30)
    time = np.random.default_rng(0).permutation(np.append(np.arange(100.0), np.full(900, 50.0)))
    (tmp_path / "time").write_bytes(time.tobytes())
    column = external_sort.ColumnFile(tmp_path / "time", time.dtype, None)
    chunks = [chunk["time"] for chunk in external_sort.sorted_chunks({"time": column}, len(time), tmp_path)]
    assert np.array_equal(np.concatenate(chunks), np.sort(time))
    assert max(map(len, chunks)) <= 60
