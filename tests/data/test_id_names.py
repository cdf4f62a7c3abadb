"""Own ids: those of the run and those that came later, numbers and texts."""

from dynedge.data.id_names import Names
from dynedge.data.log import Ids


def test_numbers_are_known_by_their_texts_and_texts_may_come_later():
    names = Names(Ids.of([7, 42, -3, 2**62]))
    assert [names.find(told) for told in (42, "42", "-3", str(2**62))] == [1, 1, 2, 3]
    assert [names.find(told) for told in ("042", "4_2", " 42", "4.2e1", "", str(2**64))] == [-1] * 6
    assert [names.add(told) for told in ("042", "ann", 8, "8", str(2**64), "42")] == [4, 5, 6, 6, 7, 1]
    assert (names[1], names[4], names[6], names[7]) == (42, "042", 8, str(2**64))
    assert names.find("8") == 6
    assert len(names) == 8


def test_texts_are_texts():
    names = Names(Ids.of(["ann", "42"]))
    assert (names.find(42), names.find("042")) == (1, -1)
    assert names.add(7) == names.find("7") == 2
    assert names[2] == "7"


def test_search_is_by_beginnings_whatever_the_case():
    names = Names(Ids.of(["Bob", "ann", "Ärger", "Anton", "an"]))
    names.add("ANNA")
    assert names.search("an", 10) == ["an", "ann", "Anton", "ANNA"]
    assert names.search("AN", 2) == ["an", "ann"]
    assert names.search("är", 10) == ["Ärger"]
    assert len(names.search("", 10)) == 6
    assert names.search("x", 10) == []
    assert Names(Ids.of([10, 1, 2])).search("1", 10) == [1, 10]
