"""The leak check detects models that use future information, and accepts those that do not."""

import pytest
import torch
from evaluation.scorers import Constant, LastItem, NanForUnseen, Popular
from models.every_model import assert_no_leak, make_log


class SeesTheAnswer(Popular):
    """Scores after updating with the event: the most common leak."""

    def score(self, prepared, candidates, state):
        rows = []
        for user, item, time in zip(prepared.user, prepared.item, prepared.time, strict=True):
            state["seen"][int(item)] += 1
            rows.append(self.row(int(user), float(time), state).clone())
        return torch.stack(rows)


class SeesItsWindow(Popular):
    """Scores all events of a window from the state at its end."""

    def score(self, prepared, candidates, state):
        for item in prepared.item:
            state["seen"][int(item)] += 1
        return state["seen"].expand(len(prepared), -1)


class SeesTheNextUser(Popular):
    """Uses whether the next event is of the same user."""

    def score(self, prepared, candidates, state):
        scores = super().score(prepared, candidates, state)
        user = torch.from_numpy(prepared.user)
        same = torch.cat([user[1:] == user[:-1], torch.zeros(1, dtype=torch.bool)])
        return scores + 1e-6 * same[:, None] * (torch.arange(self.items) == 2)


class SeesHowMuchIsLeft(Popular):
    """Reads the log past the end of its window."""

    def score(self, prepared, candidates, state):
        scores = super().score(prepared, candidates, state)
        end = prepared.events.stop
        return scores + 1e-6 * float(prepared.log.item[end:].sum())


class SeesItsFeatures(Popular):
    """Uses the features of the event to predict, which are known only when it happens."""

    def score(self, prepared, candidates, state):
        scores = super().score(prepared, candidates, state)
        return scores + torch.from_numpy(prepared.features.sum(1, keepdims=True))


@pytest.mark.parametrize("kind", [SeesTheAnswer, SeesItsWindow, SeesTheNextUser, SeesHowMuchIsLeft, SeesItsFeatures])
def test_a_leak_is_detected(kind):
    log = make_log(features=2)
    with pytest.raises(AssertionError, match="scores up to event"):
        assert_no_leak(kind.of(log), log)


@pytest.mark.parametrize("kind", [Constant, Popular, NanForUnseen, LastItem])
def test_models_without_leaks_pass(kind):
    log = make_log(features=2)
    assert_no_leak(kind.of(log), log)
