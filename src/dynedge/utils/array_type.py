"""`Array`: the numpy array type of signatures. Dtype and shape are written beside it, as in `float32[n, d]`."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
