"""A config is one frozen dataclass, nested as deep as it likes: also the TOML file, the flags and the documentation.

    @dataclass(frozen=True)
    class Config:
        dim: int = option(64, "width of a state", least=1)

Fields are int, float, bool, str, Literal, `X | None`, tuples of these, or a config again. Defaults come from an
instance, so that a TOML file or an override says only what it changes. TOML knows no null: None is written "none".
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dynedge.errors import DataError, UsageError

T = TypeVar("T")
NONE = "none"
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", NoneType: '"none"'}


def option(
    default: T, help: str, *, choices: Sequence[str] = (), least: float | None = None, free: bool = False
) -> T:
    """A field with its default and one line of help. `free`: a run may be resumed with another value of it."""
    metadata = {"help": help, "choices": tuple(choices), "least": least, "free": free}
    field: T = dataclasses.field(default=default, metadata=metadata)
    return field


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """{"model.dim": 64, …}: every field by its dotted name."""
    return {key: getattr(owner, field.name) for key, owner, field in _leaves(config, prefix)}


def free_keys(config: Any) -> set[str]:
    """The fields that a resumed run may change."""
    return {key for key, _, field in _leaves(config, "") if field.metadata.get("free")}


def to_toml(config: Any) -> str:
    """The whole config, each field with its help. `from_toml` reads it back to an equal one."""
    return "\n".join(_lines(config, "")).strip() + "\n"


def from_toml(base: type[T] | T, text: str, name: str = "the config") -> T:
    """A config from TOML. What the text leaves out is as in `base`: an instance, or a class with defaults."""
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{name} is not TOML: {error}.") from None
    config: T = base() if isinstance(base, type) else base
    return _replace(config, told, config, name, "")


def override(config: T, settings: Iterable[str]) -> T:
    """The config with "model.dim=32" and the like put in, in order."""
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise UsageError(f"'{setting}' should be KEY=VALUE, for example {next(iter(flatten(config)))}=…")
        config = set_key(config, key.strip(), text.strip())
    return config


def set_key(config: T, key: str, value: Any, name: str = "the config") -> T:
    """The config with one field, by its dotted name, set to a value: of its type, or text to be read as its type."""
    if key not in flatten(config):
        raise unknown_key(key, flatten(config), name)
    told: dict[str, Any] = {}
    *outer, last = key.split(".")
    inner = told
    for table in outer:
        inner = inner.setdefault(table, {})
    inner[last] = _Text(value) if isinstance(value, str) else value
    return _replace(config, told, config, name, "")


def unknown_key(key: str, known: Iterable[str], name: str) -> UsageError:
    known = list(known)
    close = difflib.get_close_matches(key, known, 1, 0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    return UsageError(f"{name} has no '{key}'; {hint}Known: {', '.join(known)}.")


class _Text(str):
    """A value as typed on a command line: 32 and true are still text there."""


def _leaves(config: Any, prefix: str) -> Iterator[tuple[str, Any, dataclasses.Field[Any]]]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, config, field


def _replace(config: T, told: Mapping[str, Any], whole: Any, name: str, prefix: str) -> T:
    assert dataclasses.is_dataclass(config) and not isinstance(config, type)
    fields = {field.name: field for field in dataclasses.fields(config)}
    types = get_type_hints(type(config))
    changes = {}
    for key, value in told.items():
        if key not in fields:
            raise unknown_key(prefix + key, flatten(whole), name)
        old = getattr(config, key)
        if not dataclasses.is_dataclass(old):
            changes[key] = _checked(value, types[key], fields[key].metadata, prefix + key, name)
        elif isinstance(value, dict):
            changes[key] = _replace(old, value, whole, name, f"{prefix}{key}.")
        else:
            raise UsageError(f"{name}: {prefix}{key} should be a table of settings, not {value!r}.")
    return dataclasses.replace(config, **changes)


def _checked(value: Any, kind: Any, metadata: Mapping[str, Any], key: str, name: str) -> Any:
    try:
        value = _convert(value, kind)
    except ValueError:
        raise UsageError(f"{name}: {key} should be {_describe(kind)}, not {str(value)!r}.") from None
    choices, least = metadata.get("choices"), metadata.get("least")
    if choices and value is not None and value not in choices:
        raise UsageError(f"{name}: {key} should be one of {', '.join(choices)}, not {value!r}.")
    if least is not None and isinstance(value, int | float) and value < least:
        raise UsageError(f"{name}: {key} should be at least {least:g}, not {value:g}.")
    return value


def _convert(value: Any, kind: Any) -> Any:
    """The value as `kind`, or ValueError. Nothing is guessed: 1.5 is no int, and true is no number."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _first_that_fits(value, sorted(inner, key=lambda one: one is not NoneType))
    if origin is Literal:
        return _only(value in inner, str(value) if isinstance(value, str) else value)
    if origin is tuple:
        return _convert_tuple(value, inner)
    if kind is NoneType:
        return _only(isinstance(value, str) and value.lower() == NONE, None)
    if isinstance(value, _Text):
        return _parse(str(value), kind)
    if kind is float and type(value) is int:
        value = float(value)
    return _only(type(value) is kind and not (kind is float and math.isnan(value)), value)


def _convert_tuple(value: Any, inner: tuple[Any, ...]) -> tuple[Any, ...]:
    if isinstance(value, _Text):
        value = [_Text(part.strip()) for part in value.strip("[]").split(",") if part.strip()]
    parts = _only(isinstance(value, list | tuple), value)
    kinds = [inner[0]] * len(parts) if inner[-1] is ... else inner
    _only(len(kinds) == len(parts), None)
    return tuple(_convert(part, kind) for part, kind in zip(parts, kinds, strict=True))


def _first_that_fits(value: Any, kinds: Iterable[Any]) -> Any:
    for kind in kinds:
        try:
            return _convert(value, kind)
        except ValueError:
            continue
    raise ValueError


def _parse(text: str, kind: Any) -> Any:
    if kind is bool:
        return _only(text.lower() in TRUE + FALSE, text.lower() in TRUE)
    return _only(not (kind is float and math.isnan(float(text))), kind(text))


def _only(fits: bool, value: T) -> T:
    if not fits:
        raise ValueError
    return value


def _describe(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(_describe(one) for one in inner)
    if origin is Literal:
        return "one of " + ", ".join(map(str, inner))
    if origin is tuple:
        return f"a list of {_describe(inner[0])} each" if inner[-1] is ... else f"a list of {len(inner)} values"
    return WORDS.get(kind, str(kind))


def _lines(config: Any, table: str) -> Iterator[str]:
    fields = dataclasses.fields(config)
    nested = [field for field in fields if dataclasses.is_dataclass(getattr(config, field.name))]
    plain = [field for field in fields if field not in nested]
    if plain and table:
        yield f"\n[{table}]"
    written = {field.name: f"{field.name} = {_value(getattr(config, field.name))}" for field in plain}
    width = max(map(len, written.values()), default=0)
    for field in plain:
        help = " ".join(str(field.metadata.get("help", "")).split())
        yield f"{written[field.name]:{width}}  # {help}" if help else written[field.name]
    for field in nested:
        yield from _lines(getattr(config, field.name), f"{table}.{field.name}".lstrip("."))


def _value(value: Any) -> str:
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value)
