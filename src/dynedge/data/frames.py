"""Data frames: pandas, polars and Arrow in, and results that convert to them, all by way of Arrow.

pandas and polars are imported only when a result is converted to them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from dynedge.data.id_index import IdIndex
from dynedge.errors import DataError, UsageError
from dynedge.utils.array_type import Array

if TYPE_CHECKING:
    from dynedge.data.log import EventLog

# Names by which a column of a frame is recognised, in lower case without spaces, dots, dashes and underscores.
USER_NAMES = {"userid", "user", "customerid", "customer", "visitorid", "visitor", "memberid", "householdid"}
ITEM_NAMES = {"itemid", "item", "productid", "product", "articleid", "article", "movieid", "songid", "trackid"}
TIME_NAMES = {"timestamp", "time", "datetime", "date", "ts", "when", "eventtime", "createdat"}
ACCEPTED = "a pandas or polars data frame, an Arrow table or a dictionary of columns"


class ToFrames:
    """Base of results with a method `to_arrow`: they convert to pandas and polars too."""

    def to_arrow(self) -> Any:
        """Returns a pyarrow.Table."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Returns a pandas.DataFrame."""
        library("pandas", "to_pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Returns a polars.DataFrame."""
        return library("polars", "to_polars").from_arrow(self.to_arrow())


class Frame(ToFrames):
    """A table with named columns; `frame["score"]` is a column as a NumPy array.

    >>> frame = Frame({"item_id": ["tea", "milk"], "score": [0.5, 0.25]})
    >>> len(frame), frame.columns, frame["score"].tolist()
    (2, ['item_id', 'score'], [0.5, 0.25])
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        import pyarrow as pa

        self.table = pa.table(dict(columns))

    @property
    def columns(self) -> list[str]:
        return list(self.table.column_names)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, name: str) -> Array:
        import pyarrow as pa

        if name not in self.columns:
            raise UsageError(f"there is no column '{name}'; the columns are: {', '.join(self.columns)}.")
        column = self.table[name]
        if pa.types.is_fixed_size_list(column.type):
            flat = column.combine_chunks().flatten()
            return np.asarray(flat).reshape(len(column), column.type.list_size)
        return np.asarray(column)

    def to_arrow(self) -> Any:
        return self.table

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} rows: {', '.join(self.columns)})"


def is_frame(data: Any) -> bool:
    """Returns whether `as_arrow` takes it."""
    return (
        isinstance(data, Mapping)
        or hasattr(data, "__arrow_c_stream__")
        or _is_pandas(data)
        or _is_polars(data)
        or is_lazy(data)
    )


def infer_column(frame: Any, argument: str, default: str, names: set[str]) -> str:
    """Returns the default name if a frame has such a column or none of these names; else the one that it has.

    >>> infer_column({"userId": [1], "item": [2]}, "user", "user_id", USER_NAMES)
    'userId'
    """
    columns = _column_names(frame)
    found = [name for name in columns if re.sub(r"[\W_]", "", name).lower() in names]
    if default in columns or not found:
        return default
    if len(found) > 1:
        raise UsageError(f"the frame has the columns {' and '.join(found)}; name one of them with {argument}=….")
    return found[0]


def as_arrow(frame: Any) -> Any:
    """Returns a data frame as a pyarrow.Table, without copying columns that Arrow can share."""
    import pyarrow as pa

    if not is_frame(frame):
        raise UsageError(f"the data should be {ACCEPTED}, not a {type(frame).__name__}.")
    try:
        if _is_pandas(frame):
            return pa.Table.from_pandas(frame, preserve_index=False)
        if is_lazy(frame):
            frame = frame.collect()
        if _is_polars(frame):
            table = frame.to_arrow()  # with text of a type that every pyarrow can read
        else:
            table = pa.table(dict(frame)) if isinstance(frame, Mapping) else pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        advice = "; convert integers over 64 bits and mixed columns to text" if "onver" in reason else ""
        raise DataError(f"the frame cannot be converted to Arrow: {reason.rstrip('.')}{advice}.") from None
    if not isinstance(table, pa.Table):  # of a polars series
        raise UsageError(f"the data should be {ACCEPTED}, not a {type(frame).__name__}.")
    return table


def log_to_arrow(log: EventLog) -> Any:
    """Returns the events of a log as a pyarrow.Table, with external ids and times in seconds."""
    import pyarrow as pa

    columns = {
        "user_id": ids_to_arrow(log.user_ids).take(pa.array(np.asarray(log.user))),
        "item_id": ids_to_arrow(log.item_ids).take(pa.array(np.asarray(log.item))),
        "timestamp": np.asarray(log.time),
    }
    if log.event_ids is not None and log.event_id is not None:
        columns["event_id"] = ids_to_arrow(log.event_ids).take(pa.array(np.asarray(log.event_id)))
    if log.label is not None:
        columns["label"] = np.asarray(log.label)
    names = log.metadata.get("features") or [f"feature_{k}" for k in range(log.features.shape[1])]
    columns |= {str(name): np.ascontiguousarray(log.features[:, k]) for k, name in enumerate(names)}
    for k, (name, ids) in enumerate(zip(log.metadata.get("item_features", ()), log.category_ids, strict=False)):
        code = np.asarray(log.item_categories)[log.item, k]
        columns[str(name)] = ids_to_arrow(ids).take(pa.array(code, mask=code < 0))
    return pa.table(columns)


def user_table(log: EventLog) -> Any:
    """Returns the users of a log with their categorical features as a pyarrow.Table; None if they have none."""
    import pyarrow as pa

    columns = {"user_id": ids_to_arrow(log.user_ids)}
    for k, (name, ids) in enumerate(zip(log.metadata.get("user_features", ()), log.user_category_ids, strict=True)):
        code = np.asarray(log.user_categories)[:, k]
        columns[str(name)] = ids_to_arrow(ids).take(pa.array(code, mask=code < 0))
    return pa.table(columns) if len(columns) > 1 else None


def ids_to_arrow(ids: IdIndex) -> Any:
    """Returns external ids as an Arrow array that shares their memory."""
    import pyarrow as pa

    if ids.offsets is None:
        return pa.array(np.asarray(ids.values))
    offsets, values = (pa.py_buffer(np.ascontiguousarray(part)) for part in (ids.offsets, ids.values))
    return pa.LargeStringArray.from_buffers(len(ids), offsets, values)


def library(name: str, needed_by: str, package: str = "") -> Any:
    """Returns an optional module; UsageError with the package to install if it is missing."""
    try:
        return import_module(name)
    except ImportError:
        package = package or name
        raise UsageError(f"{needed_by} needs {package}; install it with: pip install {package}") from None


def _column_names(frame: Any) -> list[str]:
    if isinstance(frame, Mapping):
        return [str(name) for name in frame]
    if hasattr(frame, "column_names"):  # of Arrow
        return list(frame.column_names)
    return [str(name) for name in frame.columns] if hasattr(frame, "columns") else as_arrow(frame).column_names


def _is_pandas(data: Any) -> bool:
    return type(data).__module__.startswith("pandas.") and hasattr(data, "columns")


def is_lazy(data: Any) -> bool:
    """Whether data is a lazy frame of polars, which has no rows before `collect`."""
    return type(data).__module__.startswith("polars.") and type(data).__name__ == "LazyFrame"


def _is_polars(data: Any) -> bool:
    return type(data).__module__.startswith("polars.") and hasattr(data, "to_arrow")
