"""Command-line flags generated from the config dataclasses: name, help text, type and default of every field.

The dataclasses come from modules that import no torch, so that --help is quick.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, get_args, get_origin

import typer

from dynedge.config import Setting, settings
from dynedge.models.edge.config import EdgeConfig
from dynedge.training.config import TrainingConfig

SECTIONS: Mapping[str, Any] = {
    "Training options": TrainingConfig(),
    "Model options, with the defaults of the model edge": EdgeConfig(),
}
METAVARS = {int: "N", float: "X", str: "NAME"}


@cache
def config_fields() -> dict[str, tuple[str, Setting]]:
    """Returns (section, setting) by field name; where two configs share a name, the first one counts."""
    fields: dict[str, tuple[str, Setting]] = {}
    for section, config in SECTIONS.items():
        for setting in settings(config):
            fields.setdefault(setting.name, (section, setting))
    return fields


def config_flag(name: str, *, default: bool = True, **changes: Any) -> Any:
    """Returns the typer option of one config field; keyword arguments replace parts of it.

    `default`: whether its help shows the field's default.
    """
    section, setting = config_fields()[name]
    flag = "--" + name.replace("_", "-")
    names = (f"{flag}/--no-{flag[2:]}",) if _type(setting) is bool else (flag,)
    shown = f" [default: {_text(setting.value)}]" if default and setting.value not in (None, "") else ""
    details = {"help": setting.metadata["help"] + shown, "rich_help_panel": section}
    if _type(setting) is not bool:
        details["metavar"] = _metavar(setting)
    return typer.Option(*names, show_default=False, **details | changes)


def config_default(name: str) -> Any:
    """Returns the default of a config field."""
    return config_fields()[name][1].value


def with_config_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Adds a flag for every config field to a command.

    The flags that are given arrive in the command's parameter `flags`, a dict by field name. Their values are text,
    or a bool for a switch: `dynedge.config.set_key` parses and checks them for the chosen model.
    """
    signature = inspect.signature(command, eval_str=True)
    generated = {
        name: inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[(bool if _type(setting) is bool else str) | None, config_flag(name)],
        )
        for name, (_, setting) in config_fields().items()
    }

    def with_flags(**arguments: Any) -> None:
        flags = {name: arguments.pop(name) for name in generated}
        command(**arguments, flags={name: value for name, value in flags.items() if value is not None})

    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        if name != "flags"
    ]
    parameters = [*own, *generated.values()]
    with_flags.__name__, with_flags.__doc__ = command.__name__, command.__doc__
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_flags


def _type(setting: Setting) -> Any:
    """The type of a field, without `| None`; tuple for any tuple."""
    kinds = [kind for kind in get_args(setting.type) or (setting.type,) if kind is not type(None)]
    return tuple if get_origin(setting.type) is tuple else kinds[0]


def _metavar(setting: Setting) -> str:
    metadata = setting.metadata
    return metadata["metavar"] or "|".join(metadata["choices"]) or METAVARS.get(_type(setting), "A,B,…")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
