"""Configs: dataclass to TOML and back, overrides by dotted key, and one sentence for every mistake."""

from dataclasses import dataclass, replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynedge.config import flatten, free_keys, from_toml, option, override, set_key, to_toml
from dynedge.errors import DataError, UsageError


@dataclass(frozen=True)
class Inner:
    dim: int = option(64, "Width of a state.", least=1)
    rate: float = option(0.5, "A share.", free=True)
    deep: bool = option(False, "Whether to go deep.")
    depth: int | None = option(7, "Maximum number of levels.")
    widths: tuple[int, ...] = option((3, 4), "Width of each layer.")
    pair: tuple[str, float] = ("a", 1.0)
    kind: str = option("gru", "Recurrent cell.", choices=("gru", "rnn"))
    mood: Literal["good", "bad"] = "good"


@dataclass(frozen=True)
class Outer:
    name: str = option("x", "Name of the model.")
    note: str | None = None
    inner: Inner = Inner()


def test_toml_has_every_field_and_its_help():
    text = to_toml(Outer())
    assert 'name = "x"     # Name of the model.' in text
    assert "[inner]" in text
    assert "dim = 64           # Width of a state." in text
    assert 'note = "none"' in text
    assert from_toml(Outer, text) == Outer()


numbers = st.floats(allow_nan=False)


@given(
    st.builds(
        Outer,
        name=st.text(),
        note=st.none() | st.text().filter(lambda text: text.lower() != "none"),
        inner=st.builds(
            Inner,
            dim=st.integers(1, 2**40),
            rate=numbers,
            deep=st.booleans(),
            depth=st.none() | st.integers(),
            widths=st.lists(st.integers()).map(tuple),
            pair=st.tuples(st.text(), numbers),
            kind=st.sampled_from(["gru", "rnn"]),
            mood=st.sampled_from(["good", "bad"]),
        ),
    )
)
def test_configs_survive_a_round_trip_through_toml(config):
    assert from_toml(Outer(), to_toml(config)) == config


def test_keys_that_a_file_omits_keep_their_values():
    base = Outer(inner=Inner(dim=8))
    assert from_toml(base, "[inner]\nrate = 2") == replace(base, inner=replace(base.inner, rate=2.0))


def test_overrides_are_parsed_as_the_type_of_their_field():
    assignments = ["inner.dim=32", "inner.rate=1", "inner.deep=true", "inner.depth=none", "inner.widths=1,2,3"]
    changed = override(Outer(), [*assignments, "inner.pair=b,2", "name=5", "note=a=b", "inner.mood=bad"])
    assert changed.inner == Inner(32, 1.0, True, None, (1, 2, 3), ("b", 2.0), "gru", "bad")
    assert (changed.name, changed.note) == ("5", "a=b")
    assert type(changed.name) is str
    assert set_key(Outer(), "inner.widths", (1,)).inner.widths == (1,)
    assert override(Outer(), ["inner.deep=off"]).inner.deep is False


def test_keys_of_all_fields_and_of_those_that_may_change_on_resume():
    assert list(flatten(Outer()))[:3] == ["name", "note", "inner.dim"]
    assert free_keys(Outer()) == {"inner.rate"}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("inner.dimm=3", "the config has no 'inner.dimm'; did you mean inner.dim?"),
        ("dim=3", "has no 'dim'; did you mean inner.dim?"),
        ("nonsense=3", "Known: name, note, inner.dim"),
        ("inner=3", "has no 'inner'"),
        ("inner.dim", "KEY=VALUE"),
        ("inner.dim=1.5", "inner.dim should be a whole number, not '1.5'"),
        ("inner.dim=0", "inner.dim should be at least 1"),
        ("inner.rate=nan", "inner.rate should be a number"),
        ("inner.rate=fast", "inner.rate should be a number"),
        ("inner.deep=maybe", "inner.deep should be true or false"),
        ("inner.depth=x", 'inner.depth should be a whole number or "none"'),
        ("inner.widths=1,x", "inner.widths should be a list with a whole number per entry"),
        ("inner.pair=1", "inner.pair should be a list of 2 values"),
        ("inner.kind=lstm", "inner.kind should be one of gru, rnn"),
        ("inner.mood=so", "inner.mood should be one of good, bad"),
    ],
)
def test_a_wrong_override_names_the_key(setting, words):
    with pytest.raises(UsageError) as caught:
        override(Outer(), [setting])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[inner]\ndim = true", "c.toml: inner.dim should be a whole number"),
        ("[inner]\nrate = '1'", "inner.rate should be a number"),
        ("[inner]\nrate = nan", "inner.rate should be a number"),
        ("inner = 3", "inner should be a table"),
        ("[inner]\ndims = 1", "c.toml has no 'inner.dims'; did you mean inner.dim?"),
        ("[outer]\ndim = 1", "c.toml has no 'outer'"),
        ("[inner]\ndepth = 1.0", "inner.depth should be"),
    ],
)
def test_a_wrong_file_names_the_key(text, words):
    with pytest.raises(UsageError) as caught:
        from_toml(Outer, text, "c.toml")
    assert words in str(caught.value)


def test_invalid_toml_is_a_data_error():
    with pytest.raises(DataError, match=r"c.toml is not TOML"):
        from_toml(Outer, "][", "c.toml")


@dataclass(frozen=True)
class Bounded:
    share: float = option(0.5, "A share.", least=0, most=1)


def test_values_above_the_largest_are_refused():
    assert override(Bounded(), ["share=1"]).share == 1
    with pytest.raises(UsageError, match=r"share should be at most 1, not 1e\+300"):
        override(Bounded(), ["share=1e300"])
