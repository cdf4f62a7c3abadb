"""Approximate nearest-neighbour indexes of items, for models whose scores are inner products of two vectors.

The folder has the index, and the vectors as Parquet files (id, vector), which vector stores read: items.parquet is
what to index, users.parquet what to search it with, by inner product. index.json states the settings and the recall
measured against the exact search of the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from dynedge.data.frames import ids_to_arrow, library
from dynedge.data.id_index import GrowableIdIndex
from dynedge.errors import UsageError
from dynedge.inference.session import Session
from dynedge.models.capabilities import Searchable, capable
from dynedge.utils.array_type import Array
from dynedge.utils.atomic_io import atomic_folder

SUMMARY = "index.json"
MEASURED_USERS = 1000  # whose exact lists the index is compared with
FLAT_ITEMS = 10_000  # below this, faiss compares all vectors
PROBES, EF_CONSTRUCTION, M = 16, 200, 16
ABLE = "edge-paper-small"  # a model that has an index
SAME = 1e-4  # largest difference of base scores, relative to all scores, that is rounding

Search = Callable[[Array, int], Array]  # queries float32[n, D], k -> items int64[n, k]


def write_index(session: Session, kind: str, out: Path, k: int, *, force: bool = False) -> dict[str, Any]:
    """Writes the folder, complete or not at all; returns the content of index.json."""
    if kind not in BUILDERS:
        raise UsageError(f"--index {kind!r} is not one of {', '.join(BUILDERS)}.")
    items, users = _vectors(session)
    with atomic_folder(out, force=force, is_ours=lambda old: (old / SUMMARY).is_file()) as folder:
        search, settings = BUILDERS[kind](items, folder / f"index.{kind}")
        sample = np.linspace(0, len(users) - 1, min(MEASURED_USERS, len(users))).astype(np.int64)
        exact, _ = session.top_items(sample, min(k, len(items)))
        found = search(users[sample], exact.shape[1])
        summary = {
            "index": kind,
            "metric": "inner product",
            "items": len(items),
            "users": len(users),
            "dim": items.shape[1],
            "time": session.coverage.last_time,
            "k": exact.shape[1],
            f"recall@{exact.shape[1]}": recall(exact, found),
            "measured_users": len(sample),
            **settings,
        }
        _write(folder / "items.parquet", "item_id", session.items, items)
        _write(folder / "users.parquet", "user_id", session.users, users)
        (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def recall(exact: Array, found: Array) -> float:
    """The share of the exact lists' items [n, k] that are in the lists found."""
    hits = [len(np.intersect1d(mine, theirs)) for mine, theirs in zip(exact, found, strict=True)]
    return float(sum(hits) / max(exact.size, 1))


@torch.no_grad()
def _vectors(session: Session) -> tuple[Array, Array]:
    """(items float32[I, D], queries of all users float32[U, D]); UsageError if scores are not inner products."""
    name = session.config.name
    model = capable(session.model, Searchable)
    if model is None:
        raise UsageError(
            f"{session.folder}: the model {name} does not score items by inner products of vectors; {ABLE} does."
        )
    items = np.ascontiguousarray(model.item_matrix(torch.arange(len(session.items)), session.state).float().numpy())
    queries = np.empty((len(session.users), items.shape[1]), np.float32)
    for user in range(len(queries)):
        base, query = model.query_vector(user, session.coverage.last_time, session.state)
        queries[user] = query.float().numpy()
        if float(base.max() - base.min()) > SAME * (1 + float(np.abs(items @ queries[user]).max())):
            raise UsageError(
                f"{session.folder}: scores of the model {name} have other parts than inner products (counts, items "
                f"already seen); an index of vectors cannot give its lists. {ABLE} has inner products only."
            )
    return items, queries


def _faiss(items: Array, path: Path) -> tuple[Search, dict[str, Any]]:
    faiss = library("faiss", "--index faiss", "'dynedge[ann]'")
    lists = int(4 * np.sqrt(len(items)))
    factory = "Flat" if len(items) < FLAT_ITEMS else f"IVF{lists},Flat"
    index = faiss.index_factory(items.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    index.train(items)
    index.add(items)
    if factory != "Flat":
        index.nprobe = PROBES
    faiss.write_index(index, str(path))
    return lambda queries, k: index.search(queries, k)[1], {"factory": factory, "nprobe": PROBES}


def _hnsw(items: Array, path: Path) -> tuple[Search, dict[str, Any]]:
    hnswlib = library("hnswlib", "--index hnsw", "'dynedge[ann]'")
    index = hnswlib.Index(space="ip", dim=items.shape[1])
    index.init_index(max_elements=len(items), ef_construction=EF_CONSTRUCTION, M=M, random_seed=0)
    index.add_items(items, np.arange(len(items)))
    index.save_index(str(path))

    def search(queries: Array, k: int) -> Array:
        index.set_ef(min(max(10 * k, 100), len(items)))
        return np.asarray(index.knn_query(queries, k)[0]).astype(np.int64)

    return search, {"M": M, "ef_construction": EF_CONSTRUCTION, "ef": "10 k, at least 100"}


BUILDERS: dict[str, Callable[[Array, Path], tuple[Search, dict[str, Any]]]] = {"faiss": _faiss, "hnsw": _hnsw}


def _write(path: Path, column: str, ids: GrowableIdIndex, vectors: Array) -> None:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    pq.write_table(pa.table({column: ids_to_arrow(ids.all()), "vector": lists}), path)
