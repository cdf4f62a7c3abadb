"""Configs: frozen dataclasses that are also the TOML file, the command-line flags and the documentation.

    @dataclass(frozen=True)
    class Config:
        dim: int = option(64, "Width of a state.", least=1)

A field is an int, float, bool, str, Literal, `X | None`, a tuple of these, or another config. Defaults come from an
instance, so a TOML file or an override lists only what it changes. TOML has no null: None is written "none".
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
TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", NoneType: '"none"'}


MAX_WIDTH = 4096  # of a vector: a GRU of this width has a gigabyte of weights and gradients
MANY_KEYS = 30  # known keys that an error no longer lists if it has similar ones to name


def option(
    default: T,
    help: str,
    *,
    choices: Sequence[str] = (),
    least: float | None = None,
    most: float | None = None,
    free: bool = False,
    metavar: str = "",
) -> T:
    """Returns a dataclass field with a default and one line of help.

    `least` and `most` are the smallest and the largest value allowed, `metavar` the placeholder of the flag's value
    in --help (default: by type).
    `free` fields may change when a run is resumed.
    """
    metadata = {
        "help": help,
        "choices": tuple(choices),
        "least": least,
        "most": most,
        "free": free,
        "metavar": metavar,
    }
    field: T = dataclasses.field(default=default, metadata=metadata)
    return field


@dataclasses.dataclass(frozen=True)
class Setting:
    """One field of a config: dotted key, type, value and the metadata that `option` stored."""

    key: str
    type: Any
    value: Any
    metadata: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition(".")[2]


def settings(config: Any, prefix: str = "") -> Iterator[Setting]:
    """Yields every field of a config, those of nested configs included, in the order of declaration."""
    types = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from settings(value, f"{prefix}{field.name}.")
        else:
            yield Setting(prefix + field.name, types[field.name], value, field.metadata)


def flatten(config: Any) -> dict[str, Any]:
    """Returns every value by its dotted key: {"model.dim": 64, …}."""
    return {setting.key: setting.value for setting in settings(config)}


def free_keys(config: Any) -> set[str]:
    """Returns the keys that may change when a run is resumed."""
    return {setting.key for setting in settings(config) if setting.metadata.get("free")}


def to_toml(config: Any) -> str:
    """Returns a config as TOML, with each field's help as a comment; `from_toml` reads it back."""
    return "\n".join(_toml_lines(config, "")).strip() + "\n"


def from_toml(base: type[T] | T, text: str, source: str = "the config") -> T:
    """Reads a config from TOML; keys that are absent keep their value in `base`, an instance or a class.

    `source` names the text in error messages.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{source} is not TOML: {error}.") from None
    config: T = base() if isinstance(base, type) else base
    return _replace(config, values, config, source, "")


def override(config: T, assignments: Iterable[str]) -> T:
    """Returns the config with assignments such as "model.dim=32" applied in order."""
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(f"'{assignment}' should be KEY=VALUE, for example {next(iter(flatten(config)))}=…")
        config = set_key(config, key.strip(), text.strip())
    return config


def set_key(config: T, key: str, value: Any, source: str = "the config") -> T:
    """Returns the config with one field replaced. A string is parsed as the type of the field."""
    if key not in flatten(config):
        raise unknown_key(key, flatten(config), source)
    values: dict[str, Any] = {}
    *tables, name = key.split(".")
    innermost = values
    for table in tables:
        innermost = innermost.setdefault(table, {})
    innermost[name] = _Unparsed(value) if isinstance(value, str) else value
    return _replace(config, values, config, source, "")


def unknown_key(key: str, known: Iterable[str], source: str) -> UsageError:
    """Returns the error for an unknown key: it names similar ones, and all known ones unless those are many."""
    known = list(known)
    same_name = [one for one in known if one.rpartition(".")[2] == key.rpartition(".")[2]]
    similar = list(dict.fromkeys([*same_name, *difflib.get_close_matches(key, known, 1, 0.5)]))[:3]
    hints = [f"did you mean {' or '.join(similar)}?"] if similar else []
    hints += [f"Known: {', '.join(known)}."] if not similar or len(known) <= MANY_KEYS else []
    return UsageError(f"{source} has no '{key}'; {' '.join(hints)}")


class _Unparsed(str):
    """A value typed on a command line, where numbers and booleans are still text."""


def _replace(config: T, values: Mapping[str, Any], root: Any, source: str, prefix: str) -> T:
    assert dataclasses.is_dataclass(config) and not isinstance(config, type)
    fields = {field.name: field for field in dataclasses.fields(config)}
    types = get_type_hints(type(config))
    changes = {}
    for name, value in values.items():
        key = prefix + name
        if name not in fields:
            raise unknown_key(key, flatten(root), source)
        current = getattr(config, name)
        if not dataclasses.is_dataclass(current):
            changes[name] = _validate(value, types[name], fields[name].metadata, key, source)
        elif isinstance(value, dict):
            changes[name] = _replace(current, value, root, source, f"{key}.")
        else:
            raise UsageError(f"{source}: {key} should be a table of settings, not {value!r}.")
    return dataclasses.replace(config, **changes)


def _validate(value: Any, kind: Any, metadata: Mapping[str, Any], key: str, source: str) -> Any:
    """Converts a value to a field's type and checks its choices and bounds."""
    try:
        value = _convert(value, kind)
    except ValueError:
        raise UsageError(f"{source}: {key} should be {_type_name(kind)}, not {str(value)!r}.") from None
    choices, least, most = (metadata.get(name) for name in ("choices", "least", "most"))
    if choices and value is not None and value not in choices:
        raise UsageError(f"{source}: {key} should be one of {', '.join(choices)}, not {value!r}.")
    if least is not None and isinstance(value, int | float) and value < least:
        raise UsageError(f"{source}: {key} should be at least {least:g}, not {value:g}.")
    if most is not None and isinstance(value, int | float) and value > most:
        raise UsageError(f"{source}: {key} should be at most {most:g}, not {value:g}.")
    return value


def _convert(value: Any, kind: Any) -> Any:
    """Converts a value to a type, or raises ValueError. Strict: 1.5 is not an int, and true is not a number."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _convert_union(value, arguments)
    if origin is Literal:
        return _require(value in arguments, str(value) if isinstance(value, str) else value)
    if origin is tuple:
        return _convert_tuple(value, arguments)
    if kind is NoneType:
        return _require(isinstance(value, str) and value.lower() == NONE, None)
    if isinstance(value, _Unparsed):
        return _parse(str(value), kind)
    if kind is float and type(value) is int:
        value = float(value)
    return _require(type(value) is kind and not (kind is float and math.isnan(value)), value)


def _convert_union(value: Any, kinds: Iterable[Any]) -> Any:
    """Converts to the first type that accepts the value; None is tried first, since "none" is also a string."""
    for kind in sorted(kinds, key=lambda kind: kind is not NoneType):
        try:
            return _convert(value, kind)
        except ValueError:
            continue
    raise ValueError


def _convert_tuple(value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    if isinstance(value, _Unparsed):
        value = [_Unparsed(part.strip()) for part in value.strip("[]").split(",") if part.strip()]
    parts = _require(isinstance(value, list | tuple), value)
    kinds = (kinds[0],) * len(parts) if kinds[-1] is ... else kinds
    _require(len(kinds) == len(parts), None)
    return tuple(_convert(part, kind) for part, kind in zip(parts, kinds, strict=True))


def _parse(text: str, kind: Any) -> Any:
    if kind is bool:
        return _require(text.lower() in TRUE + FALSE, text.lower() in TRUE)
    return _require(not (kind is float and math.isnan(float(text))), kind(text))


def _require(condition: bool, value: T) -> T:
    """Returns the value if the condition holds, else raises ValueError."""
    if not condition:
        raise ValueError
    return value


def _type_name(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(map(_type_name, arguments))
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin is tuple:
        if arguments[-1] is ...:
            return f"a list with {_type_name(arguments[0])} per entry"
        return f"a list of {len(arguments)} values"
    return TYPE_NAMES.get(kind, str(kind))


def _toml_lines(config: Any, table: str) -> Iterator[str]:
    fields = dataclasses.fields(config)
    nested = [field for field in fields if dataclasses.is_dataclass(getattr(config, field.name))]
    plain = [field for field in fields if field not in nested]
    if plain and table:
        yield f"\n[{table}]"
    lines = {field.name: f"{field.name} = {_toml_value(getattr(config, field.name))}" for field in plain}
    width = max(map(len, lines.values()), default=0)
    for field in plain:
        help = " ".join(str(field.metadata.get("help", "")).split())
        yield f"{lines[field.name]:{width}}  # {help}" if help else lines[field.name]
    for field in nested:
        yield from _toml_lines(getattr(config, field.name), f"{table}.{field.name}".lstrip("."))


def _toml_value(value: Any) -> str:
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return repr(value)
