"""A log whose files were tampered with is refused with a sentence that names the column."""

import json
import os

import numpy as np
import pytest
from fuzz_files import _make_log

from dynedge.data import log_checks
from dynedge.data.log import HEADER_BYTES, read_log
from dynedge.errors import DataError
from dynedge.utils import file_checks


@pytest.fixture
def log(tmp_path):
    return _make_log(tmp_path)


def set_number(log, name, at, value):
    column = np.memmap(
        log / f"{name}.npy",
        np.dtype(json.loads((log / "log.json").read_text())["columns"][name]["dtype"]),
        "r+",
        HEADER_BYTES,
    )
    column[at] = value
    column.flush()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("user", 30, "it has the number 30"),
        ("user", -1, "it has the number -1"),
        ("item", 2**31 - 1, "it has the number 2147483647"),
        ("time", np.nan, "not finite"),
        ("time", np.inf, "not finite"),
        ("time", 0.0, "do not ascend"),
        ("features", np.inf, "not finite"),
        ("label", np.nan, "not finite"),
        ("user_ids_offsets", 10**9, "do not ascend"),
        ("user_ids_offsets", -1, "do not ascend"),
        ("item_ids_offsets", 0, "do not ascend"),
        ("user_ids", 0xFF, "not valid UTF-8"),
        ("item_categories", 4, "it has the number 4"),
        ("item_categories", -2, "it has the number -2"),
        ("event_id", 400, "it has the number 400"),
        ("event_id", -1, "it has the number -1"),
        ("category_0_ids_offsets", 10**9, "do not ascend"),
    ],
)
def test_a_number_out_of_range_is_refused(log, name, value, message):
    set_number(log, name, 7 if name not in ("category_0_ids_offsets",) else 2, value)
    with pytest.raises(DataError, match=f"column '{name}' is damaged.*{message}"):
        read_log(log)


def test_an_offset_inside_a_character_is_refused(log):
    set_number(log, "user_ids_offsets", 1, np.int64(1))  # inside ü
    with pytest.raises(DataError, match="inside a character"):
        read_log(log)


@pytest.mark.parametrize("name", ["log.json", "user.npy"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_only_regular_files_are_read(log, name, kind):
    (log / name).unlink()
    if kind == "pipe":
        os.mkfifo(log / name)
    elif kind == "folder":
        (log / name).mkdir()
    else:
        (log / name).symlink_to("/dev/zero")
    with pytest.raises(DataError, match="is not a regular file"):
        read_log(log)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["columns"]["user"].update(dtype="|O"), "is of type '.O' instead of '<i4'"),
        (lambda m: m["columns"]["user"].update(shape=[-1]), "its shape is not a list of sizes"),
        (lambda m: m["columns"]["user"].update(shape=[400, 1]), "wrong number of dimensions"),
        (lambda m: m["columns"]["user"].pop("sha256"), "no checksum"),
        (lambda m: m["columns"].update({"../user": m["columns"]["user"]}), "does not belong to a log"),
        (lambda m: m["columns"].pop("item_categories"), "has no 'item_categories'"),
        (lambda m: m.update(users=10**12), "invalid number of users"),
        (lambda m: m.update(items=True), "invalid number of items"),
        (lambda m: m.update(time=3), "invalid entry 'time'"),
        (lambda m: m.update(trained_on={"path": [[]]}), "invalid entry 'trained_on'"),
        (lambda m: m.update(item_features=[3]), "whose name is not text"),
    ],
)
def test_damaged_metadata_is_refused(log, change, message):
    metadata = json.loads((log / "log.json").read_text())
    change(metadata)
    (log / "log.json").write_text(json.dumps(metadata))
    with pytest.raises(DataError, match=message):
        read_log(log)


def test_json_is_bounded_in_size_and_depth(log, monkeypatch):
    (log / "log.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="is not JSON"):
        read_log(log)
    monkeypatch.setattr(file_checks, "MAX_JSON_BYTES", 1000)
    with pytest.raises(DataError, match="more than 1,000"):
        read_log(log)


def test_large_columns_are_read_once_and_again_when_they_change(log, monkeypatch, tmp_path):
    monkeypatch.setattr(file_checks, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(file_checks, "REMEMBERED_BYTES", 0)
    read_log(log)
    passes = []
    for name in ("_range", "_ascend_facts", "_text_facts"):
        compute = getattr(log_checks, name)
        monkeypatch.setattr(
            log_checks, name, lambda column, compute=compute: passes.append(column) or compute(column)
        )
    read_log(log)
    assert not passes
    set_number(log, "user", 3, 30)
    with pytest.raises(DataError, match="column 'user' is damaged"):
        read_log(log)
    assert len(passes) == 1
