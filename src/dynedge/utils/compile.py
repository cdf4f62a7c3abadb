"""`compiled`: numba's njit with a disk cache that is never stale.

Numba caches a function by the text of its own file, so that a change in another file's kernel, or in a constant that
was frozen into the code, goes unnoticed. Here the cache entry is keyed by all that the machine code follows from: the
function's byte code and constants, the constants it reads, and the same of every compiled function it calls. A change
anywhere gives another key; a change of comments, docstrings or line numbers gives the same one.

Entries are in $DYNEDGE_CACHE_DIR, else in ~/.cache/dynedge/kernels, and outlive the checkout they were made from.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.dispatcher import Dispatcher

from dynedge.errors import DataError

KEPT_DAYS = 30  # an older entry of the same function under another key is removed


def compiled(function: Any = None, **options: Any) -> Any:
    """Compile a function to machine code that runs without the interpreter lock; options are those of numba.njit."""

    def wrap(function: Any) -> Any:
        dispatcher = numba.njit(nogil=True, **options)(function)
        if isinstance(dispatcher, Dispatcher):  # a plain function where NUMBA_DISABLE_JIT is set
            dispatcher._cache = _LazyCache(dispatcher)  # type: ignore[attr-defined]
        return dispatcher

    return wrap if function is None else wrap(function)


@cache
def cache_folder() -> Path:
    """$DYNEDGE_CACHE_DIR, else a folder of the user's; where neither can be written, a temporary one."""
    wanted = os.environ.get("DYNEDGE_CACHE_DIR") or Path.home() / ".cache" / "dynedge" / "kernels"
    for folder in (Path(wanted), Path(tempfile.gettempdir()) / f"dynedge-kernels-{os.getuid()}"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            return folder
        except OSError:
            continue
    raise DataError(f"{wanted} cannot be written; set DYNEDGE_CACHE_DIR to a folder for compiled code.")


def source_key(dispatcher: Any) -> str:
    """Names all that the compiled code follows from, but for the types of the arguments."""
    digest = hashlib.sha256()
    _add_function(dispatcher, digest, set())
    return digest.hexdigest()[:24]


def _add_function(dispatcher: Any, digest: Any, seen: set[int]) -> None:
    if id(dispatcher) in seen:
        return
    seen.add(id(dispatcher))
    function = dispatcher.py_func
    # The module: argument types are stored by reference to it.
    digest.update(f"{function.__module__}.{function.__qualname__}{_written(dispatcher.targetoptions)}".encode())
    for value in (function.__defaults__, *(cell.cell_contents for cell in function.__closure__ or ())):
        _add_value(value, digest, seen)
    _add_code(function.__code__, function.__globals__, digest, seen)


def _add_code(code: CodeType, names: dict[str, Any], digest: Any, seen: set[int]) -> None:
    digest.update(code.co_code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(constant, names, digest, seen)
        elif not isinstance(constant, str):  # docstrings, and messages that nobody sees
            digest.update(_written(constant).encode())
    for name in code.co_names:
        digest.update(name.encode())
        if name in names:
            _add_value(names[name], digest, seen)


def _add_value(value: Any, digest: Any, seen: set[int]) -> None:
    """A global that a function reads."""
    definition = getattr(value, "_defn", None)  # of a numba intrinsic
    if isinstance(value, Dispatcher):
        _add_function(value, digest, seen)
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif isinstance(value, ModuleType):
        digest.update(_module_text(value.__name__))
    elif isinstance(definition, FunctionType):
        digest.update(_module_text(definition.__module__))
    elif isinstance(value, type):
        digest.update(f"{value.__module__}.{value.__qualname__}{getattr(value, '_fields', '')}".encode())
    elif callable(value):  # of this package: a stand-in that numba's `overload` gives a body elsewhere in its module
        digest.update(_module_text(str(getattr(value, "__module__", value))))
    else:
        digest.update(_written(value).encode())


def _written(value: Any) -> str:
    """As repr, but for sets and dicts, whose order may differ from process to process."""
    if isinstance(value, dict):
        value = sorted((key, _written(one)) for key, one in value.items())
    return repr(sorted(value) if isinstance(value, set | frozenset) else value)


def _module_text(name: str) -> bytes:
    """The source of a module of this package; of another the name will do, since numba's key has its own version."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file).read_bytes() if file and name.split(".", maxsplit=1)[0] == "dynedge" else name.encode()


class _Locator:
    """Where numba keeps the entries of one function."""

    def __init__(self, dispatcher: Any) -> None:
        self._key = source_key(dispatcher)

    def ensure_cache_path(self) -> None:
        cache_folder().mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        return str(cache_folder())

    def get_source_stamp(self) -> str:
        return self._key

    def get_disambiguator(self) -> str:
        return self._key


class _Entries(CompileResultCacheImpl):  # type: ignore[misc]
    def __init__(self, dispatcher: Any) -> None:
        function = dispatcher.py_func
        self._locator, self._lineno = _Locator(dispatcher), function.__code__.co_firstlineno
        name = f"{function.__module__.removeprefix('dynedge.')}.{function.__qualname__}"
        self._filename_base = self.get_filename_base(name, sys.abiflags)

    def remove_old(self) -> None:
        """Entries of this function under another key that were written long ago."""
        oldest = time.time() - 86400 * KEPT_DAYS
        for path in cache_folder().glob(f"{self.filename_base.rpartition('-')[0]}-*"):
            if not path.name.startswith(self.filename_base) and path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)


class _Cache(FunctionCache):  # type: ignore[misc]
    def __init__(self, dispatcher: Any) -> None:
        self._impl_class = lambda _: _Entries(dispatcher)
        super().__init__(dispatcher.py_func)

    def save_overload(self, signature: Any, data: Any) -> None:
        super().save_overload(signature, data)
        self._impl.remove_old()


class _LazyCache:
    """The cache of a function, opened when first used: only then is everything that the function names defined."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher

    @cached_property
    def _opened(self) -> Any:
        return _Cache(self._dispatcher)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)
