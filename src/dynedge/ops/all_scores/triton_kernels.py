"""Triton kernels of all_scores: items by their states at the window's start, then items updated before an event.

Both kernels sum a score in the same order, so that its bits do not depend on which of them computed it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _scores(
    query,
    vectors,
    id_embeddings,
    k,
    row,
    item,
    valid_event,
    valid_item,
    shift,
    d: tl.constexpr,
    DECAYING: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    HAS_IDS: tl.constexpr,
):
    """[BM, BN]: scores of rows of `vectors`, and of the ID embeddings of their items, for events k.

    The last DECAYING columns of a row are powers of two relative to `shift` [DECAYING].
    """
    WIDTH: tl.constexpr = 2 * d if HAS_IDS else d
    scores = tl.zeros([BM, BN], tl.float32)
    for low in tl.static_range(0, d, BK):
        across = low + tl.arange(0, BK)[None, :]
        along = low + tl.arange(0, BK)[:, None]
        left, right = valid_event[:, None] & (across < d), valid_item[None, :] & (along < d)
        q = tl.load(query + k[:, None] * WIDTH + across, mask=left, other=0.0)
        v = tl.load(vectors + row[None, :] * d + along, mask=right, other=0.0)
        if DECAYING and low + BK > d - DECAYING:
            decays = (along >= d - DECAYING) & (along < d)
            s = tl.load(shift + along - (d - DECAYING), mask=decays, other=0.0)
            v = tl.where(decays & valid_item[None, :], tl.exp2(v - s), v)
        scores += tl.dot(q, v, input_precision="ieee")
        if HAS_IDS:
            q = tl.load(query + k[:, None] * WIDTH + d + across, mask=left, other=0.0)
            v = tl.load(id_embeddings + item[None, :] * (d + 1) + along, mask=right, other=0.0)
            scores += tl.dot(q, v, input_precision="ieee")
    if HAS_IDS:
        scores += tl.load(id_embeddings + item * (d + 1) + d, mask=valid_item, other=0.0)[None, :]
    return scores


@triton.jit(do_not_specialize=["n", "items"])
def score_initial(
    out,
    query,
    states,
    id_embeddings,
    shift,
    n,
    items,
    d: tl.constexpr,
    DECAYING: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    HAS_IDS: tl.constexpr,
):
    """Scores of all items by their states at the window's start."""
    i = tl.program_id(0).to(tl.int64) * BN + tl.arange(
        0, BN
    )  # axis 0, the only one without a limit of 65,535 programs
    k = tl.program_id(1).to(tl.int64) * BM + tl.arange(0, BM)
    scores = _scores(
        *(query, states, id_embeddings, k, i, i, k < n, i < items),
        *(shift + tl.program_id(1) * DECAYING, d, DECAYING, BM, BN, BK, HAS_IDS),
    )
    tl.store(out + k[:, None] * items + i[None, :], scores, mask=(k < n)[:, None] & (i < items)[None, :])


@triton.jit(do_not_specialize=["n", "items"])
def score_updated(
    out,
    query,
    arena,
    id_embeddings,
    item,
    row_after,
    next_update,
    shift,
    n,
    items,
    d: tl.constexpr,
    DECAYING: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    HAS_IDS: tl.constexpr,
):
    """Scores of updated items: event e's has the state arena[row_after[e]] after e, up to next_update[e]."""
    e = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    k = tl.program_id(1).to(tl.int64) * BM + tl.arange(0, BM)
    if tl.program_id(0) * BN < (tl.program_id(1) + 1) * BM:
        item_of = tl.load(item + e, mask=e < n, other=0).to(tl.int64)
        rows = tl.load(row_after + e, mask=e < n, other=-1).to(tl.int64)
        until = tl.load(next_update + e, mask=e < n, other=-1)
        reads = (e[None, :] < k[:, None]) & (k[:, None] <= until[None, :]) & (rows >= 0)[None, :] & (k < n)[:, None]
        scores = _scores(
            *(query, arena, id_embeddings, k, rows, item_of, k < n, rows >= 0),
            *(shift + tl.program_id(1) * DECAYING, d, DECAYING, BM, BN, BK, HAS_IDS),
        )
        tl.store(out + k[:, None] * items + item_of[None, :], scores, mask=reads)
