"""`compiled`: numba's njit with a disk cache that is never stale.

Numba's own cache is keyed by a function's source file, so it misses a change of a kernel in another file, or of a
constant compiled into the code. Here the key covers everything the machine code depends on: the function's byte code,
its constants, the globals it reads, the fields of its arguments and their order, and the same for every compiled
function it calls. Editing comments or docstrings or moving code to other lines does not change the key.

The cache folder is $DYNEDGE_CACHE_DIR, else ~/.cache/dynedge/kernels; checkouts of the same code share its entries.
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
from numba import types
from numba.core import event
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.dispatcher import Dispatcher

from dynedge.errors import DataError
from dynedge.utils.compile_progress import CompileProgress

MAX_AGE_DAYS = 30  # older entries of a function under other keys are removed

_kernels: list[Any] = []  # of the imported modules


def compiled(function: Any = None, **options: Any) -> Any:
    """Decorator: compiles a function to machine code that runs without the GIL; takes the options of numba.njit."""

    def wrap(function: Any) -> Any:
        dispatcher = numba.njit(nogil=True, **{"_nrt": True, **options})(function)  # else as the first caller has it
        if isinstance(dispatcher, Dispatcher):  # with NUMBA_DISABLE_JIT it is a plain function
            dispatcher._cache = _LazyCache(dispatcher)  # type: ignore[attr-defined]
            if "inline" not in options:
                _drop_literals(dispatcher)
            _kernels.append(dispatcher)
        return dispatcher

    return wrap if function is None else wrap(function)


def compiled_without_counting(function: Any = None, **options: Any) -> Any:
    """`compiled` for kernels that neither make nor return arrays; slices of their arguments are no new arrays.

    They count no references. Elsewhere each function that is called with arrays counts references to all of them and
    to all arrays in its named tuples, each an atomic operation, which can take longer than the rest of a short one.
    """
    return compiled(function, _nrt=False, **options)


def _drop_literals(dispatcher: Any) -> None:
    """Calls from other kernels with different constants share one version: numba compiles one for each constant."""
    get_call_template = dispatcher.get_call_template

    def without_literals(args: Any, kws: Any) -> Any:
        return get_call_template(
            tuple(map(types.unliteral, args)), {name: types.unliteral(kind) for name, kind in kws.items()}
        )

    dispatcher.get_call_template = without_literals


def count_missing_kernels() -> int:
    """Returns how many kernels of the imported modules have no entry in the cache."""
    cached = {path.stem for path in cache_folder().glob("*.nbi")}
    return sum(_Entries(kernel).filename_base not in cached for kernel in _kernels)


@cache
def cache_folder() -> Path:
    """Returns $DYNEDGE_CACHE_DIR or the default in the home folder; a temporary folder if that is not writable.

    A folder of another user is not used.
    """
    preferred = os.environ.get("DYNEDGE_CACHE_DIR") or os.path.expanduser("~/.cache/dynedge/kernels")
    for folder in (Path(preferred), Path(tempfile.gettempdir()) / f"dynedge-kernels-{os.getuid()}"):
        try:
            if not folder.is_absolute() and folder.parts[:1] == ("~",):  # this user has no home folder
                continue
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_uid != os.getuid():  # its files are loaded as code
                continue
            tempfile.TemporaryFile(dir=folder).close()
            return folder
        except OSError:
            continue
    raise DataError(f"{preferred} is not writable; set DYNEDGE_CACHE_DIR to a folder for compiled code.")


def source_key(dispatcher: Any) -> str:
    """Returns a hash of everything the compiled code depends on, except for the argument types."""
    digest = hashlib.sha256()
    _add_function(dispatcher, digest, set())
    return digest.hexdigest()[:24]


def _add_function(dispatcher: Any, digest: Any, seen: set[int]) -> None:
    if id(dispatcher) in seen:
        return
    seen.add(id(dispatcher))
    function = dispatcher.py_func
    # The module's name: numba stores argument types by reference to it.
    name = f"{function.__module__}.{function.__qualname__}"
    digest.update(f"{name}{_stable_repr(dispatcher.targetoptions)}".encode())
    for value in (function.__defaults__, *(cell.cell_contents for cell in function.__closure__ or ())):
        _add_value(value, digest, seen)
    _add_code(function.__code__, function.__globals__, digest, seen, function.__doc__)


def _add_code(code: CodeType, names: dict[str, Any], digest: Any, seen: set[int], docstring: str | None) -> None:
    digest.update(code.co_code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(constant, names, digest, seen, None)
        elif docstring is None or constant != docstring:
            digest.update(_stable_repr(constant).encode())
    for name in code.co_names:
        digest.update(name.encode())
        if name in names:
            _add_value(names[name], digest, seen)


def _add_value(value: Any, digest: Any, seen: set[int]) -> None:
    """Adds a global, default or closure variable that a function reads."""
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
    elif isinstance(value, tuple):
        digest.update(f"{type(value).__qualname__}{len(value)}".encode())
        for element in value:
            _add_value(element, digest, seen)
    elif callable(value):  # of this package: a stub that numba's `overload` implements elsewhere in its module
        digest.update(_module_text(str(getattr(value, "__module__", value))))
    else:
        digest.update(_stable_repr(value).encode())


def _stable_repr(value: Any) -> str:
    """Returns repr(value), with the elements of sets and dicts sorted: their order may differ between processes."""
    if isinstance(value, dict):
        value = sorted((key, _stable_repr(element)) for key, element in value.items())
    return repr(sorted(value, key=repr) if isinstance(value, set | frozenset) else value)


def _module_text(name: str) -> bytes:
    """Returns the source of a module of this package, or the name of any other: numba's key has numba's version."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file).read_bytes() if file and name.split(".", maxsplit=1)[0] == "dynedge" else name.encode()


class _Locator:
    """Tells numba where the cache entries of one function are and what they depend on."""

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
    """Cache entries of one function."""

    def __init__(self, dispatcher: Any) -> None:
        function = dispatcher.py_func
        self._locator, self._lineno = _Locator(dispatcher), function.__code__.co_firstlineno
        name = f"{function.__module__.removeprefix('dynedge.')}.{function.__qualname__}"
        self._filename_base = self.get_filename_base(name, sys.abiflags)

    def remove_old(self) -> None:
        """Removes the entries of this function under other keys that are older than MAX_AGE_DAYS."""
        oldest = time.time() - 86400 * MAX_AGE_DAYS
        for path in cache_folder().glob(f"{self.filename_base.rpartition('-')[0]}-*"):
            if not path.name.startswith(self.filename_base) and path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)


class _Cache(FunctionCache):  # type: ignore[misc]
    """Numba's function cache with our keys."""

    def __init__(self, dispatcher: Any) -> None:
        self._impl_class = lambda _: _Entries(dispatcher)
        super().__init__(dispatcher.py_func)

    def _index_key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
        """Numba's key, and the fields of named tuples: numba knows only their classes and the types of the fields."""
        return *super()._index_key(signature, codegen), *filter(None, map(_field_names, signature))

    def save_overload(self, signature: Any, data: Any) -> None:
        super().save_overload(signature, data)
        self._impl.remove_old()


def _field_names(kind: Any) -> tuple[Any, ...]:
    """Returns the names of the fields of a named tuple type and of those inside it."""
    inside = tuple(filter(None, map(_field_names, kind.types))) if isinstance(kind, types.BaseTuple) else ()
    return (*getattr(kind, "fields", ()), *inside)


class _LazyCache:
    """Opens a function's cache on first use: only then are all the globals that the function reads defined."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher

    @cached_property
    def _opened(self) -> Any:
        return _Cache(self._dispatcher)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)


event.register("numba:compile", CompileProgress(count_missing_kernels))
