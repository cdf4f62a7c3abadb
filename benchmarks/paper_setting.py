"""The setting in which training speed is measured: the paper's sizes, and negatives that a chunk of events shares."""

from dataclasses import replace

from dynedge.models.edge.config import PAPER_LARGE

PAPER = replace(
    PAPER_LARGE,
    dnodes=160,
    dnodes_share=None,
    solver="penalty",
    phi_warmup=0,
    negatives_per_event=False,
    evolve_active=True,
)
