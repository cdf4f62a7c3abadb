"""The check for leaks finds those that are planted, and lets honest models pass."""

import pytest
import torch
from evaluation.scorers import Constant, LastItem, Popular, Speechless
from models.every_model import assert_no_leak, make_log


class SeesTheAnswer(Popular):
    """Scores after taking the event in: the most common way to leak."""

    def score(self, prepared, candidates, state):
        found = []
        for user, item, time in zip(prepared.user, prepared.item, prepared.time, strict=True):
            state["seen"][int(item)] += 1
            found.append(self.row(int(user), float(time), state).clone())
        return torch.stack(found)


class SeesItsWindow(Popular):
    """Scores all events of a window from the state at its end."""

    def score(self, prepared, candidates, state):
        for item in prepared.item:
            state["seen"][int(item)] += 1
        return state["seen"].expand(len(prepared), -1)


class SeesTheNextUser(Popular):
    """A hair of the future: whether the next event is of the same user."""

    def score(self, prepared, candidates, state):
        found = super().score(prepared, candidates, state)
        user = torch.from_numpy(prepared.user)
        same = torch.cat([user[1:] == user[:-1], torch.zeros(1, dtype=torch.bool)])
        return found + 1e-6 * same[:, None] * (torch.arange(self.items) == 2)


class SeesHowMuchIsLeft(Popular):
    """Looks past its window at the log itself."""

    def score(self, prepared, candidates, state):
        found = super().score(prepared, candidates, state)
        end = prepared.events.stop
        return found + 1e-6 * float(prepared.log.item[end:].sum())


class SeesItsFeatures(Popular):
    """The features of an event are known only with it."""

    def score(self, prepared, candidates, state):
        found = super().score(prepared, candidates, state)
        return found + torch.from_numpy(prepared.features.sum(1, keepdims=True))


@pytest.mark.parametrize("kind", [SeesTheAnswer, SeesItsWindow, SeesTheNextUser, SeesHowMuchIsLeft, SeesItsFeatures])
def test_a_planted_leak_is_caught(kind):
    log = make_log(features=2)
    with pytest.raises(AssertionError, match="scores up to event"):
        assert_no_leak(kind.of(log), log)


@pytest.mark.parametrize("kind", [Constant, Popular, Speechless, LastItem])
def test_honest_models_pass(kind):
    log = make_log(features=2)
    assert_no_leak(kind.of(log), log)
