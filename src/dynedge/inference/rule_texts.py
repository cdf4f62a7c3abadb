"""Rules of recommendations (rules.py) written as texts, in flags and in query parameters: genre=folk,pop."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from dynedge.errors import DataError, UsageError
from dynedge.inference.rules import ITEM, Rules

N = TypeVar("N", int, float)


def parse_rules(
    *,
    allow: Iterable[str] | None = None,
    deny: Iterable[str] | None = None,
    boost: Iterable[str] | None = None,
    max_per: Iterable[str] | None = None,
    files: bool = False,
    **rest: Any,
) -> Rules:
    """Returns rules given as texts: COLUMN=A,B for lists, COLUMN=VALUE:X for boosts, COLUMN=N for caps.

    With `files`, on the command line, a list may be COLUMN=@FILE, a file with one value per line.

    >>> parse_rules(allow=["genre=folk,pop"], boost=["genre=pop:-0.5"], max_per=["artist=2"])
    Rules(filter_seen=False, allow=(('genre', ('folk', 'pop')),), deny=(), \
boost=(('genre', 'pop', -0.5),), max_per=(('artist', 2),), min_score=None, diversity=0.0)
    """
    dashes, cap = ("--", "--max-per") if files else ("", "max_per")  # of the flags; else query parameters
    boosts = dict[str, dict[str, float]]()
    for text in boost or ():
        column, value = _column_and_value(f"{dashes}boost", text, "COLUMN=VALUE:NUMBER")
        value, colon, amount = value.rpartition(":")
        boosts.setdefault(column, {})[value] = _parsed(float, amount if colon else "", f"{dashes}boost", text)
    caps = [_column_and_value(cap, text, "COLUMN=NUMBER") for text in max_per or ()]
    return Rules.of(
        allow=_parse_lists(f"{dashes}allow", allow or (), files),
        deny=_parse_lists(f"{dashes}deny", deny or (), files),
        boost=boosts,
        max_per={column: _parsed(int, value, cap, f"{column}={value}") for column, value in caps},
        **rest,
    )


def _parse_lists(flag: str, texts: Iterable[str], files: bool) -> dict[str, list[str]]:
    lists = dict[str, list[str]]()
    for text in texts:
        column, value = _column_and_value(flag, text, "COLUMN=A,B")
        is_file = files and value.startswith("@")
        lists.setdefault(column, []).extend(_read_lines(Path(value[1:])) if is_file else parse_list(value))
    return lists


def _column_and_value(flag: str, text: str, form: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not (column.strip() and equals):
        raise UsageError(f"{flag} {text!r} should be {form}, for example {ITEM}=… or genre=….")
    return column.strip(), value


def _parsed(kind: Callable[[str], N], value: str, flag: str, text: str) -> N:
    try:
        return kind(value)
    except ValueError:
        raise UsageError(f"{flag} {text!r} should end in a number.") from None


def parse_list(text: str) -> list[str]:
    """Returns comma-separated values, as in CSV: spaces belong to a value only inside quotes.

    >>> parse_list('a, "b, c",d')
    ['a', 'b, c', 'd']
    """
    found = re.findall(r'\s*"((?:[^"]|"")*)"\s*(?:,|$)|([^,]+)', text)
    values = [quoted.replace('""', '"') or plain.strip() for quoted, plain in found]
    return [value for value in values if value]


def _read_lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # not splitlines: ids may have U+2028 and the like
        return [line.strip() for line in lines if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror if isinstance(error, OSError) else error}."
        ) from None
