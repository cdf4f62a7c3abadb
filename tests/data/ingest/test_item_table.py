"""A table that describes items: read by `prepare --item-table`, stored in the log and in runs, shown in answers."""

import json
import shutil

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dynedge
from dynedge.data.ingest.append import append
from dynedge.data.ingest.item_file import read_item_table
from dynedge.data.ingest.pipeline import prepare
from dynedge.data.item_metadata import FILE, ItemMetadata
from dynedge.data.log import read_log
from dynedge.errors import DataError

EVENTS = "user_id,item_id,timestamp\n" + "".join(f"u{k % 3},{('007', '7', 'x y')[k % 3]},{k}\n" for k in range(30))
TABLE = 'item_id,title,price,stock\n007,"Bond, James",1.5,3\nx y,,2,\nnot in the log,Other,0,1\n'


@pytest.fixture
def log(tmp_path):
    (tmp_path / "events.csv").write_text(EVENTS)
    (tmp_path / "items.csv").write_text(TABLE)
    return prepare(tmp_path / "events.csv", tmp_path / "log", item_table=tmp_path / "items.csv")


def records(log):
    rows = np.arange(log.num_items + 1)  # the last row is of an item that is newer than the log
    ids = [*log.item_ids.take(range(log.num_items)), "new"]
    return dict(zip(ids, ItemMetadata(log).records(rows), strict=True))


def test_values_belong_to_items_by_the_text_of_their_ids(log):
    expected = {"007": {"title": "Bond, James", "price": 1.5, "stock": 3}, "7": {}, "x y": {"price": 2.0}, "new": {}}
    assert records(log) == expected
    codes, names = ItemMetadata(log).codes("stock", 4)
    assert (codes.tolist(), list(names)) == ([0, -1, -1, -1], ["3"])
    with pytest.raises(dynedge.UsageError, match="'price' has numbers with fractions"):
        ItemMetadata(log).codes("price", 3)


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv.gz", "frame"])
def test_all_kinds_of_tables_give_the_same_values(log, tmp_path, kind):
    table = pandas.read_csv(tmp_path / "items.csv", dtype={"item_id": str})
    path = tmp_path / f"other.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pandas(table), path)
    elif kind == "jsonl":
        rows = [{k: v for k, v in row.items() if not pandas.isna(v)} for row in table.to_dict("records")]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "csv.gz":
        table.to_csv(path, index=False)
    given = table if kind == "frame" else path
    assert records(prepare(tmp_path / "events.csv", tmp_path / "other", item_table=given)) == records(log)


def test_a_grown_log_a_run_and_a_loaded_model_keep_the_table(log, tmp_path, cli_run):
    (tmp_path / "more.csv").write_text("user_id,item_id,timestamp\nu1,not in the log,100\n")
    append(tmp_path / "log", tmp_path / "more.csv")
    grown = read_log(tmp_path / "log")
    assert records(grown)["not in the log"] == {"title": "Other", "price": 0.0, "stock": 1}
    dynedge.Model("popular").fit(grown).save(tmp_path / "run")
    shutil.rmtree(tmp_path / "log")
    model = dynedge.Model.load(tmp_path / "run")
    (best,) = model.recommend("u1", k=1, allow={"title": ["Bond, James"]}).to_records()
    assert [(one["item_id"], one["metadata"]["stock"]) for one in best["items"]] == [("007", 3)]
    arguments = "--users", "u1", "--allow", 'title="Bond, James"'
    code, out, err = cli_run("recommend", tmp_path / "run", *arguments)
    assert code == 0, err
    assert "007  Bond, James, 1.5, 3  " in out
    (tmp_path / "run" / "manifest.json").unlink()
    (tmp_path / "run" / "ids" / FILE).write_bytes(b"PAR1")
    code, out, err = cli_run("recommend", tmp_path / "run", *arguments)
    assert (code, out) == (3, "")
    assert "item_table.parquet is damaged: it does not match its sha256" in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,title\na,b\n", "has no column 'item_id', the item ids; its columns are: id, title"),
        ("item_id,title\na,b\na,c\n", "item 'a' has two rows, 1 and 2"),
        ("item_id,title\n,b\n", "row 1 has no item id"),
        ("item_id,score\na,1\n", "the column name 'score' is reserved for recommendations; rename it"),
        ("item_id\na\n", "1 to 64 columns besides the item ids, not 0"),
        ("item_id,title\na,b,c\n", "cannot be read: CSV parse error: Expected 2 columns, got 3"),
        ("", "cannot be read: Empty CSV file"),
    ],
)
def test_a_wrong_table_gives_a_sentence_and_no_log(tmp_path, cli_run, text, words):
    (tmp_path / "events.csv").write_text(EVENTS)
    (tmp_path / "items.csv").write_text(text)
    files = tmp_path / "events.csv", "--item-table", tmp_path / "items.csv"
    code, out, err = cli_run("prepare", *files, "--out", tmp_path / "log")
    assert (code, out) == (3, "")
    assert words in " ".join(err.split())
    assert not (tmp_path / "log").exists()


def test_lists_and_missing_files_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"'tags' holds list"):
        read_item_table({"item_id": ["a"], "tags": [["x"]]}, "item_id")
    with pytest.raises(DataError, match="cannot be read"):
        read_item_table(tmp_path / "none.csv", "item_id")
