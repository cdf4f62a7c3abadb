"""Layout of --help: options and commands in sections, named by their `rich_help_panel`, as plain text."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class SectionedCommand(TyperCommand):
    """A command whose options are listed by section."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            default = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if record is not None:
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or default, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class SectionedGroup(TyperGroup):
    """A group whose commands are listed by section."""

    SECTIONS = {  # noqa: RUF012
        "Getting started": ("demo", "doctor"),
        "Data": ("prepare", "append", "info", "datasets", "synth"),
        "Training": ("plan", "train", "update", "tune"),
        "Evaluation": ("evaluate", "compare", "backtest", "paper"),
        "Inference": ("recommend", "embed", "serve", "refresh", "export"),
    }

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = {name: found for name in self.list_commands(ctx) if (found := self.get_command(ctx, name))}
        listed = {name for names in self.SECTIONS.values() for name in names}
        sections = {**self.SECTIONS, "Other commands": tuple(name for name in commands if name not in listed)}
        limit = formatter.width - 6 - max(map(len, commands), default=0)
        for title, names in sections.items():
            members = [(name, commands[name]) for name in names if name in commands]
            if members:
                with formatter.section(title):
                    formatter.write_dl([(name, command.get_short_help_str(limit)) for name, command in members])
