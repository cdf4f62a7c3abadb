"""dynedge: learn how users and items evolve from a time-stamped log, and say what comes next."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dynedge.api import Edge
    from dynedge.errors import DataError, DynedgeError, UsageError
    from dynedge.events.ingest import prepare
    from dynedge.events.log import EventLog, read_log
    from dynedge.events.split import Split, windows
    from dynedge.events.synthetic import synthesize

# Public name -> the module it lives in. Resolved on first use, so that `import dynedge` stays light.
_HOME = {
    "DataError": "dynedge.errors",
    "DynedgeError": "dynedge.errors",
    "Edge": "dynedge.api",
    "EventLog": "dynedge.events.log",
    "Split": "dynedge.events.split",
    "UsageError": "dynedge.errors",
    "prepare": "dynedge.events.ingest",
    "read_log": "dynedge.events.log",
    "synthesize": "dynedge.events.synthetic",
    "windows": "dynedge.events.split",
}

__all__ = [  # noqa: RUF022
    "DataError",
    "DynedgeError",
    "Edge",
    "EventLog",
    "Split",
    "UsageError",
    "prepare",
    "read_log",
    "synthesize",
    "windows",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dynedge' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
