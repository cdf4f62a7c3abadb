"""The command `doctor`: what is installed, what the machine has, and whether the program works on it."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import tempfile
import time
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Any

import typer

from dynedge import __version__
from dynedge.cli import app
from dynedge.cli.options import Json

PACKAGES = "torch", "numpy", "numba", "pyarrow", "typer", "rich", "safetensors"
FOR_DEVELOPMENT = {"dev", "http-tests", "oldest", "peers"}  # extras that users do not need


@app.command()
def doctor(
    test: Annotated[bool, typer.Option("--test/--no-test", help="Run a small test: 10 s once compiled.")] = True,
    as_json: Json = False,
) -> None:
    """Check the installation, with a small test.

    The test trains a small model and asks it for recommendations. Exit code 1 if it fails.
    """
    found: dict[str, Any] = {
        "dynedge": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "devices": _devices(),
        "kernels": _kernels(),
        "disk": {folder: round(shutil.disk_usage(folder).free / 2**30, 1) for folder in (".", tempfile.gettempdir())},
        "extras": _extras(),
    }
    if test:
        found["test"] = _test()
    print(json.dumps(found) if as_json else _text(found))
    if test and not found["test"]["passed"]:
        raise typer.Exit(1)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _devices() -> dict[str, Any]:
    import torch

    gpus = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    return {"cores": len(os.sched_getaffinity(0)), "threads": torch.get_num_threads(), "gpus": gpus} | (
        {"triton": _version("triton")} if gpus else {}
    )


def _kernels() -> dict[str, Any]:
    """Compiled kernels that are cached, and how many of the default model's are missing."""
    import dynedge.runs.train_run  # noqa: F401 - it imports the kernels
    from dynedge.utils.numba_compile import cache_folder, count_missing_kernels

    files = list(cache_folder().glob("*.nbc"))
    size = sum(path.stat().st_size for path in files) / 2**20
    return {
        "folder": str(cache_folder()),
        "cached": len(files),
        "mib": round(size),
        "missing": count_missing_kernels(),
    }


def _extras() -> dict[str, list[str]]:
    """The packages of each extra that are not installed."""
    missing: dict[str, list[str]] = {}
    for requirement in (requires("dynedge") or ()) if _version("dynedge") else ():  # none in a copy of the sources
        extra = re.search(r"extra == ['\"]([\w-]+)", requirement)
        package = re.match(r"[\w.-]+", requirement)
        if extra and package and extra[1] not in FOR_DEVELOPMENT:
            absent = missing.setdefault(extra[1], [])
            if _version(package[0]) is None:
                absent.append(package[0])
    return dict(sorted(missing.items()))


def _test() -> dict[str, Any]:
    started = time.monotonic()
    try:
        _train_and_recommend()
    except Exception as error:  # what goes wrong is what this command reports
        return {"passed": False, "error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    return {"passed": True, "seconds": round(time.monotonic() - started, 1)}


def _train_and_recommend() -> None:
    import dynedge

    with tempfile.TemporaryDirectory() as folder:
        log = dynedge.synthesize("demo", Path(folder) / "log", events=600, quiet=True)
        model = dynedge.Model("counts", epochs=1, windows=10).fit(log)
        model.save(Path(folder) / "run")
        user = log.user_ids[0]
        again = dynedge.Model.load(Path(folder) / "run")
        if again.recommend(user).of(user) != model.recommend(user).of(user):
            raise RuntimeError("a saved model recommends other items than before it was saved")


def _text(found: dict[str, Any]) -> str:
    devices, kernels = found["devices"], found["kernels"]
    missing = f"; {kernels['missing']} are compiled at first use" if kernels["missing"] else ""
    rows = {
        "dynedge": f"{found['dynedge']}, Python {found['python']}, {found['platform']}",
        "packages": ", ".join(f"{name} {number or 'missing'}" for name, number in found["packages"].items()),
        "devices": f"{devices['cores']} CPU cores; {', '.join(devices['gpus']) or 'no GPU'}",
        "kernels": f"{kernels['folder']}: {kernels['cached']} compiled, {kernels['mib']} MiB{missing}",
        "disk": ", ".join(f"{free} GiB free in {folder}" for folder, free in found["disk"].items()),
    }
    for extra, absent in found["extras"].items():
        hint = f"missing {', '.join(absent)}: pip install 'dynedge[{extra}]'"
        rows[f"[{extra}]"] = hint if absent else "installed"
    if "test" in found:
        test = found["test"]
        rows["test"] = f"passed in {test['seconds']} s" if test["passed"] else f"FAILED: {test['error']}"
    return "\n".join(f"{name:14}{value}" for name, value in rows.items())
