"""The numbers printed in the EDGE paper (Chen et al., Efficient Dynamic Graph Representation Learning at Scale).

Logs are named as `dynedge prepare --dataset` names them, systems as recipes here; `edge-paper` is the paper's EDGE.
"""

from __future__ import annotations

# Table 1: users, items, events. The paper prints users and items of LastFM the other way round.
STATISTICS = {
    "lastfm": (980, 1_000, 1_293_103),
    "reddit": (10_000, 984, 672_447),
    "ml-25m": (162_538, 59_048, 24_999_849),
    "taobao": (987_975, 4_111_798, 96_678_667),
}
TITLES = {"lastfm": "lastfm-1K", "reddit": "Reddit", "ml-25m": "ML-25M", "taobao": "Taobao"}

# Tables 2 and 3: MRR and Recall@10; None: out of memory.
ACCURACY: dict[str, dict[str, tuple[float, float] | None]] = {
    "taobao": {
        "gcmc": (0.303, 0.542),
        "gcmc-sage": (0.149, 0.366),
        "gcmc-gat": (0.230, 0.494),
        "sum-pooling": (0.415, 0.664),
        "gru4rec": (0.546, 0.777),
        "dien": (0.605, 0.834),
        "mimn": (0.607, 0.828),
        "sasrec": (0.488, 0.702),
        "dynaernn": None,
        "tgat": (0.016, 0.025),
        "jodie": (0.454, 0.680),
        "edge-paper": (0.675, 0.841),
    },
    "ml-25m": {
        "gcmc": (0.171, 0.378),
        "gcmc-sage": (0.109, 0.264),
        "gcmc-gat": (0.185, 0.404),
        "sum-pooling": (0.302, 0.591),
        "gru4rec": (0.364, 0.657),
        "dien": (0.356, 0.638),
        "mimn": (0.363, 0.653),
        "sasrec": (0.360, 0.653),
        "dynaernn": (0.249, 0.509),
        "tgat": (0.114, 0.219),
        "jodie": (0.354, 0.634),
        "edge-paper": (0.397, 0.673),
    },
    "lastfm": {
        "ctdne": (0.01, 0.01),
        "deepcoevolve": (0.019, 0.039),
        "jodie": (0.195, 0.307),
        "dynaernn": (0.021, 0.038),
        "tgat": (0.015, 0.023),
        "edge-paper": (0.199, 0.332),
    },
    "reddit": {
        "ctdne": (0.165, 0.257),
        "deepcoevolve": (0.171, 0.275),
        "jodie": (0.726, 0.852),
        "dynaernn": (0.157, 0.301),
        "tgat": (0.602, 0.775),
        "edge-paper": (0.725, 0.855),
    },
}

# Table 4, on ML-25M: longest path by d-nodes of Algorithm 2, and (d-nodes, longest path) by parts of cut-by-time.
DNODES = (0, 10, 20, 40, 80, 160, 320, 640)
PARTS = (1, 2, 4, 8, 16, 32, 64, 128)
PATHS: dict[str, tuple[tuple[float, ...], tuple[tuple[int, float], ...]]] = {
    "ml-25m": (
        (209.75, 164.05, 142.81, 115.01, 89.63, 66.12, 45.47, 29.43),
        ((0, 209.75), (134, 202.6), (250, 198.95), (346, 196.29), (429, 193.02), (506, 190.84), (588, 187.39),
         (701, 179.51)),
    )
}  # fmt: skip

# Table 5: thresholds (n* of users, n* of items; None: ∞), minutes per epoch, MRR, Recall@10.
Threshold = tuple[int, int] | None
THRESHOLDS: tuple[Threshold, ...] = ((200, 100), (400, 200), (800, 400), (1600, 800), None)
LADDER: dict[str, dict[Threshold, tuple[float, float | None, float | None]]] = {
    "taobao": {
        (200, 100): (13.14, 0.675, 0.642),
        (400, 200): (13.84, 0.674, 0.841),
        (800, 400): (14.52, 0.674, 0.841),
        (1600, 800): (15.57, 0.675, 0.841),
        None: (27.50, 0.674, 0.841),
    },
    "ml-25m": {
        (200, 100): (12.72, 0.397, 0.674),
        (400, 200): (22.79, 0.404, 0.683),
        (800, 400): (64.0, 0.409, 0.687),
        (1600, 800): (181.0, 0.406, 0.688),
        None: (1254.0, None, None),
    },
}
