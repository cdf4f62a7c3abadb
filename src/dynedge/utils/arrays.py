"""The type of a numpy array in signatures; its element type and shape are written beside it: `float32[n, d]`."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
