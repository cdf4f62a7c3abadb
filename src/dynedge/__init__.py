"""dynedge: learn how users and items evolve from a time-stamped log, and recommend what comes next."""

import os
from typing import TYPE_CHECKING, Any

# Between two of its operations torch's threads sleep. By default they busy-wait, and take the cores from the threads
# that prepare what comes next. It has an effect only if torch is imported later, and none if the user has set it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dynedge.api import Edge, Model, compare
    from dynedge.data.ingest.append import append
    from dynedge.data.ingest.pipeline import prepare
    from dynedge.data.log import EventLog, read_log
    from dynedge.data.splits import Split
    from dynedge.data.synthetic import synthesize
    from dynedge.data.windows import cut_windows
    from dynedge.errors import DataError, DynedgeError, UsageError

# Public name -> its module. Resolved on first use, so that `import dynedge` is quick.
_HOME = {
    "DataError": "dynedge.errors",
    "DynedgeError": "dynedge.errors",
    "Edge": "dynedge.api",
    "EventLog": "dynedge.data.log",
    "Model": "dynedge.api",
    "Split": "dynedge.data.splits",
    "UsageError": "dynedge.errors",
    "append": "dynedge.data.ingest.append",
    "compare": "dynedge.api",
    "prepare": "dynedge.data.ingest.pipeline",
    "read_log": "dynedge.data.log",
    "synthesize": "dynedge.data.synthetic",
    "cut_windows": "dynedge.data.windows",
}

_SHARED_WITH_COMMANDS = {"append", "prepare", "read_log", "synthesize"}  # whose messages name flags

__all__ = [  # noqa: RUF022
    "DataError",
    "DynedgeError",
    "Edge",
    "EventLog",
    "Model",
    "Split",
    "UsageError",
    "append",
    "compare",
    "prepare",
    "read_log",
    "synthesize",
    "cut_windows",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dynedge' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    if name in _SHARED_WITH_COMMANDS:
        from dynedge.utils.api_words import api_words

        value = api_words()(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
