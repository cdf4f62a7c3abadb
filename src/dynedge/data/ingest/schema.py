"""Schema: the columns and the format of an input file. Block: some of its rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dynedge.data.ingest.block_columns import ColumnValues
from dynedge.data.ingest.row_checks import RowChecks
from dynedge.errors import DataError, UsageError
from dynedge.utils.array_type import Array


@dataclass(frozen=True)
class Schema:
    """The role of each column, by its name in the file, and the file's format.

    "#2" is the third column of a delimited file, whatever its name, unless one has that name.
    """

    user: str = "user_id"
    item: str = "item_id"
    time: str = "timestamp"
    label: str | None = None
    event_id: str | None = None
    features: tuple[str, ...] = ()  # columns of numbers, or one column of packed lists
    item_features: tuple[str, ...] = ()  # columns of categories
    names: tuple[str, ...] | None = None  # all column names, for a file without a header
    delimiter: str | None = None  # None: detected
    time_unit: str = "auto"  # s, ms, us, ns, iso
    rest_are_features: bool = False  # skips a header line; the last of `names` is for all remaining columns
    positive: str | None = None  # condition on the label, such as ">=4"; other rows are left out
    label_codes: tuple[str, ...] = ()  # words of a label column; a word's label is its index here
    label_is_feature: bool = False  # the label is the last event feature too
    one_population: bool = False  # users and items are the same kind of entity: one set of ids

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns to read."""
        optional = [name for name in (self.label, self.event_id) if name]
        return (self.user, self.item, self.time, *optional, *self.features, *self.item_features)

    def check_roles(self) -> None:
        """Raises UsageError if a column has two roles."""
        for name in self.columns:
            if self.columns.count(name) > 1:
                raise second_role(name)


def second_role(name: str) -> UsageError:
    return UsageError(f"column '{name}' is given twice; every column can have only one role.")


COMPARISONS: dict[str, Callable[[Array, float], Array]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}


def positive_rows(condition: str, label: Array) -> Array:
    """bool[rows]: the labels that fulfil a condition: a comparison and a number, such as ">=4"."""
    text = condition.strip()
    for sign, compare in COMPARISONS.items():
        if text.startswith(sign):
            try:
                return compare(label, float(text[len(sign) :]))
            except ValueError:
                break
    raise UsageError(f"--positive {condition!r} should be a comparison with a number, for example '>=4'.")


@dataclass
class Block:
    """Some rows of a file, with the columns in the order of Schema.columns."""

    file: str
    columns: list[ColumnValues]
    line: Array  # int64[rows]: line in the file, or row number in a file without lines; counted from 1
    checks: RowChecks
    record_text: Callable[[int], str]  # a row's text in the file
    field_count: Array | None  # int32[rows]: number of fields in a row of delimited text
    expected_fields: int
    bytes_read: int  # bytes of the file consumed so far, this block included

    def __len__(self) -> int:
        return len(self.line)


def column_index(
    path: object, names: Sequence[str], name: str, *, given: bool = False, by_position: bool = False
) -> int:
    """Returns the index of a column; DataError unless there is exactly one.

    `path` is the file as messages name it; `given`: the names are from --columns; `by_position`: "#2" is the third.
    """
    if names.count(name) == 1:
        return list(names).index(name)
    if by_position and name.startswith("#") and name[1:].isdecimal() and int(name[1:]) < len(names):
        return int(name[1:])
    if name in names:
        raise DataError(f"{path} has {names.count(name)} columns named '{name}'; rename all but one.")
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    source = "--columns names" if given else "its columns are"
    raise DataError(
        f"{path} has no column '{name}'; {source}: {shown}. Name the right one, for example with --user-col."
    )
