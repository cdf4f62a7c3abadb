"""Reading of JSON-lines files."""

import pytest

from dynedge.errors import DataError
from dynedge.utils.jsonl import read_jsonl


def test_objects_are_read_in_order(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"a": null}\n')
    assert read_jsonl(tmp_path / "x.jsonl") == [{"a": 1}, {"a": None}]


def test_a_damaged_file_is_a_data_error_and_a_missing_one_is_not_found(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"a"')
    with pytest.raises(DataError, match=r"x\.jsonl is damaged"):
        read_jsonl(tmp_path / "x.jsonl")
    with pytest.raises(FileNotFoundError):
        read_jsonl(tmp_path / "y.jsonl")
