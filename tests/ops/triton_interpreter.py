"""Import this before any Triton kernel: without a GPU, kernels then run in Triton's interpreter."""

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")
torch.sparse.check_sparse_tensor_invariants.disable()  # as training does
