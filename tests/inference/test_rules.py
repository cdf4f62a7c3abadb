"""Business rules: exact under all filters, against a plain reference that scores everything and then filters."""

import numpy as np
import pytest
import torch
from serving.small_run import make_events, make_run

from dynedge.errors import UsageError
from dynedge.inference import rules as rules_module
from dynedge.inference.recommend import recommend
from dynedge.inference.rules import Rules
from dynedge.inference.session import Session


def reference(session, user, k, given, scores=None):
    """The k best items of a user as (item id, score), by plain loops over all items."""
    known = session.users.find(user) >= 0
    if known:
        rows, times = (
            torch.tensor([session.users.find(user)]),
            torch.tensor([session.coverage.last_time], dtype=torch.float64),
        )
        with torch.no_grad():
            scores = session.model.score_query(rows, times, None, session.state)[0].tolist()
            seen = session.model.seen_items(rows, session.state)[0].tolist()
    else:
        counts = session.coverage.item_counts.tolist()
        scores, seen = [count / session.coverage.events if count else None for count in counts], [False] * len(counts)
    genre_of = [one.get("genre") for one in session.item_metadata.records(np.arange(len(session.items)))]

    def has(row, column, values):
        value = str(session.items[row]) if column == "item_id" else genre_of[row]
        return value in [str(one) for one in values]

    eligible = []
    for row, score in enumerate(scores):
        lists = [given.get("allow", {}), given.get("deny", {})]
        allow, deny = ({"item_id": one} if isinstance(one, list) else one for one in lists)
        if score is None or (given.get("filter_seen") and seen[row]):
            continue
        if any(not has(row, *rule) for rule in allow.items()) or any(has(row, *rule) for rule in deny.items()):
            continue
        if known:
            for column, amounts in given.get("boost", {}).items():
                score += sum(amount for value, amount in amounts.items() if has(row, column, [value]))  # noqa: PLW2901
            if score < given.get("min_score", -np.inf):
                continue
        eligible.append((score, row))
    eligible.sort(key=lambda pair: -pair[0])
    diversity, cap = given.get("diversity", 0), given.get("max_per", {}).get("genre", len(scores))
    vectors = session._unit_item_vectors().numpy() if diversity else None
    pool, chosen = eligible[: rules_module.MIN_POOL] if diversity else [], []
    rest = eligible[len(pool) :]

    def has_room(row):
        return genre_of[row] is None or [genre_of[one] for _, one in chosen].count(genre_of[row]) < cap

    low, high = (pool[-1][0], pool[0][0]) if pool else (0, 1)
    while pool and len(chosen) < k:
        pool = [pair for pair in pool if pair not in chosen and has_room(pair[1])]
        values = []
        for score, row in pool:
            nearest = max((float(vectors[row] @ vectors[other]) for _, other in chosen), default=0.0)
            values.append((1 - diversity) * (score - low) / (high - low) - diversity * nearest)
        chosen += [pool[int(np.argmax(values))]] if pool else []
    for pair in rest:
        if len(chosen) < k and has_room(pair[1]):
            chosen.append(pair)
    return [(session.items[row], score) for score, row in chosen]


def cases(some):
    """Rules by name; `some` are ids of items."""
    return {
        "no rule": {},
        "seen": {"filter_seen": True},
        "allow a genre": {"allow": {"genre": ["blues"]}},
        "allow items": {"allow": [*some, "no such item"], "min_score": -6.0},
        "allow nothing": {"allow": []},
        "deny items and a genre": {"deny": {"item_id": [*some, "no such item"], "genre": ["blues"]}},
        "boost": {"boost": {"genre": {"blues": 2.5, "ambient": -1.0}, "item_id": dict.fromkeys(some[:5], 3.0)}},
        "huge boost": {"boost": {"genre": {"blues": 1000.0}}},
        "minimum": {"min_score": -3.0},
        "cap": {"max_per": {"genre": 1}},
        "cap and allow": {"max_per": {"genre": 2}, "allow": {"genre": ["blues", "ambient"]}},
        "diversity": {"diversity": 0.4},
        "everything": {
            "filter_seen": True,
            "deny": some,
            "boost": {"genre": {"blues": 1.5}},
            "max_per": {"genre": 2},
            "min_score": -12.0,
            "diversity": 0.6,
        },
    }


@pytest.fixture(scope="module", params=["plain", "quantized"])
def session(request, runs_folder):
    session = Session.open(make_run(runs_folder, "edge"))
    session.observe(make_events(runs_folder, 100))  # items newer than the run, which have no genre
    if request.param == "quantized":
        session.enable_quantized_search(1)
        assert session._search is not None
    return session


@pytest.mark.parametrize("case", cases(()))
def test_rules_give_what_a_plain_reference_gives(session, case, monkeypatch):
    monkeypatch.setattr(rules_module, "MIN_POOL", 12)
    monkeypatch.setattr(rules_module, "POOL", 1)
    some = [str(one) for one in session.items.take(np.random.default_rng(1).permutation(len(session.items))[:10])]
    given = cases(some)[case]
    users = [session.users[0], session.users[7], "new user 1", "a stranger"]
    answers = recommend(session, users, 8, rules=Rules.of(**given)).to_records()
    for user, answer in zip(users, answers, strict=True):
        expected = reference(session, user, 8, given)
        assert [one["item_id"] for one in answer["items"]] == [item for item, _ in expected]
        found = [one["score"] for one in answer["items"]]
        np.testing.assert_allclose(found, [score for _, score in expected], rtol=1e-6, atol=2e-5)
        assert answer["items"] or case in ("allow nothing", "minimum")


def test_caps_fetch_more_candidates_until_k_are_found():
    """The best 900 of 1,000 items have one category: the second of the list is the 901st."""
    codes = np.where(np.arange(1000) < 900, 0, np.arange(1000)).astype(np.int32)
    bound, scores = rules_module.BoundRules(caps=((codes, 1),)), -torch.arange(1000.0)
    asked = []
    items, values = bound.best_of_one(lambda n: (asked.append(n), scores.topk(n))[1], 3, 1000)
    assert items.tolist() == [0, 900, 901]
    assert values.tolist() == [0.0, -900.0, -901.0]
    assert asked == [3, 24, 192, 1000]


def test_equal_rules_are_equal_keys_and_order_of_ids_is_text():
    one = Rules.of(deny=[7, "a"], max_per={"genre": 2})
    assert one == Rules.of(deny=["7", "a", 7], max_per={"genre": 2})
    assert hash(one) == hash(Rules.of(deny=("7", "a"), max_per={"genre": 2}))
    assert one != Rules.of(deny=[7], max_per={"genre": 2})
    assert Rules.of() == Rules()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"min_score": float("nan")}, "finite"),
        ({"diversity": -0.1}, "between 0"),
        ({"diversity": "much"}, "should be a number"),
        ({"boost": {"genre": 2}}, "a number by value"),
        ({"boost": {"genre": {"blues": float("inf")}}}, "between -1000 and 1000"),
        ({"max_per": {"genre": 1.5}}, "at least 1"),
        ({"allow": [["a"]]}, "a list of values"),
    ],
)
def test_wrong_rules_are_refused(given, words):
    with pytest.raises(UsageError, match=words):
        Rules.of(**given)
