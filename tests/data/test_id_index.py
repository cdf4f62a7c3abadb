"""External ids: those of a run and those added later, integers and strings, under one lookup rule."""

import numpy as np
import pytest

from dynedge.data.id_index import GrowableIdIndex, IdIndex


@pytest.mark.parametrize("make", [IdIndex.from_ids, lambda ids: GrowableIdIndex(IdIndex.from_ids(ids))])
def test_integer_ids_are_found_by_their_plain_decimal_form_only(make):
    index = make([7, 42, -3, 2**62])
    assert [index.find(value) for value in (42, "42", np.int64(42), "-3", str(2**62))] == [1, 1, 1, 2, 3]
    for other in ("042", "+42", "4_2", " 42", "42 ", "4.2e1", "-0", "٤٢", "", str(2**64), 2**64, 42.0, None):
        assert index.find(other) == -1, other


def test_texts_can_be_added_to_integer_ids():
    index = GrowableIdIndex(IdIndex.from_ids([7, 42, -3, 2**62]))
    assert [index.add(value) for value in ("042", "ann", 8, "8", str(2**64), 2**64, "42")] == [4, 5, 6, 6, 7, 7, 1]
    assert (index[1], index[4], index[6], index[7]) == (42, "042", 8, str(2**64))
    assert index.find("8") == 6
    assert len(index) == 8


def test_string_ids_are_found_by_their_exact_text():
    index = GrowableIdIndex(IdIndex.from_ids(["ann", "42"]))
    assert (index.find(42), index.find("042")) == (1, -1)
    assert index.add(7) == index.find("7") == 2
    assert index[2] == "7"


def test_search_matches_prefixes_and_ignores_case():
    index = GrowableIdIndex(IdIndex.from_ids(["Bob", "ann", "Ärger", "Anton", "an"]))
    index.add("ANNA")
    assert index.search("an", 10) == ["an", "ann", "Anton", "ANNA"]
    assert index.search("AN", 2) == ["an", "ann"]
    assert index.search("är", 10) == ["Ärger"]
    assert len(index.search("", 10)) == 6
    assert index.search("x", 10) == []
    assert GrowableIdIndex(IdIndex.from_ids([10, 1, 2])).search("1", 10) == [1, 10]


def test_ids_start_with_those_of_a_shorter_index():
    """Also where integers became strings because a later id is one."""
    ints, texts = IdIndex.from_ids([5, 6, 7]), IdIndex.from_ids([5, 6, "x"])
    assert ints.starts_with(IdIndex.from_ids([5, 6])) and texts.starts_with(IdIndex.from_ids([5, 6]))
    assert texts.starts_with(texts) and texts.starts_with(IdIndex.from_ids(["5", "6"]))
    for other in ([6, 5], [5, 6, 7, 8], [5, 6, 8], ["5", "x"]):
        assert not ints.starts_with(IdIndex.from_ids(other))
        assert not texts.starts_with(IdIndex.from_ids(other))
