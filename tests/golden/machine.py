"""Expected values of the golden tests: one JSON file each, with the machine that wrote it.

The same code gives the same bits on the same kind of CPU with the same libraries: there, checksums must be equal. On
any other machine sums are rounded in another order; there only the rounded numbers are compared.

To write the files again after a deliberate change of results: DYNEDGE_WRITE_GOLDEN=1 pytest tests/golden -n 0
"""

import hashlib
import json
import os
from pathlib import Path

import llvmlite.binding
import numba
import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parent
WRITING = bool(os.environ.get("DYNEDGE_WRITE_GOLDEN"))


def this_machine():
    return {
        "cpu": llvmlite.binding.get_host_cpu_name(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "numba": numba.__version__,
        "numpy": np.__version__,
    }


def checksum(arrays):
    """Of arrays or tensors, whatever their names and order."""
    digests = []
    for array in arrays:
        plain = np.ascontiguousarray(array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else array)
        digests.append(hashlib.sha256(f"{plain.dtype}{plain.shape}".encode() + plain.tobytes()).hexdigest())
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()[:20]


class Golden:
    """`check(case, checksums, numbers)` against the file, or into it."""

    def __init__(self, name):
        self.path = FOLDER / f"{name}.json"
        written = json.loads(self.path.read_text()) if self.path.is_file() else {}
        self.exact = written.get("machine") == this_machine()
        self.cases = written.get("cases", {})

    def check(self, case, checksums, numbers):
        if WRITING:
            self.cases[case] = {"checksums": checksums, "numbers": numbers}
            written = {"machine": this_machine(), "cases": dict(sorted(self.cases.items()))}
            self.path.write_text(json.dumps(written, indent=1) + "\n")
            return
        expected = self.cases[case]
        if self.exact:
            assert checksums == expected["checksums"]
        assert numbers == pytest.approx(expected["numbers"], rel=0.05, abs=0.02)
