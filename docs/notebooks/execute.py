"""Executes the notebooks of this folder and stores their output.

python docs/notebooks/execute.py                 # in place
python docs/notebooks/execute.py --out FOLDER    # as copies, as tests do
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
TIMEOUT_S = 300  # of a cell, with kernels that are not compiled yet


def execute(path: Path, folder: str) -> Any:
    """Returns the notebook with the output of its cells; they run in `folder`."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    place = {"metadata": {"path": folder}}
    executed = NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="python3", resources=place).execute()
    for cell in executed.cells:  # times and warnings of compiling differ between runs
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    return executed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER, help="Folder of the executed notebooks.")
    args = parser.parse_args()
    import nbformat

    for path in sorted(FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(execute(path, folder), args.out / path.name)
        print(f"wrote {args.out / path.name}")


if __name__ == "__main__":
    main()
