"""Reference implementation of the recurrence, one event at a time in plain Python; and a small log and model."""

import numpy as np
import torch

from dynedge.data.id_index import IdIndex
from dynedge.data.log import EventLog
from dynedge.models.base import Step
from dynedge.models.edge import recurrence
from dynedge.models.edge.config import RecurrenceConfig

STEP = Step(0, 0, 0)


def make_log(events=60, users=7, items=9, seed=0, features=2, categories=True, user_features=False):
    rng = np.random.default_rng(seed)
    log = EventLog.from_arrays(
        rng.zipf(1.5, events) % users,
        rng.integers(0, items, events),
        np.sort(rng.integers(0, 3 * events, events)),
        features=rng.standard_normal((events, features)),
        num_users=users,
        num_items=items + 2,  # two items without events
    )
    if categories:
        codes = rng.integers(-1, 3, (items + 2, 1)).astype(np.int32)
        object.__setattr__(log, "item_categories", codes)
        object.__setattr__(log, "category_ids", (IdIndex.from_ids(["a", "b", "c"]),))
    if user_features:
        codes = rng.integers(-1, 2, (users, 2)).astype(np.int32)
        object.__setattr__(log, "user_categories", codes)
        object.__setattr__(log, "user_category_ids", (IdIndex.from_ids(["x", "y"]), IdIndex.from_ids(["p", "q"])))
    return log


def make_model(log, train_end=None, **config):
    no_dropout = {"dropout": 0.0, "profile_dropout": 0.0}
    settings = {"dim": 5, "windows": 4, "candidate_id_up_to": 4096, **no_dropout, **config}
    model = recurrence.Recurrence.create(RecurrenceConfig(**settings), log, train_end or len(log), seed=1).double()
    with torch.no_grad():
        for parameter in model.parameters():  # not zero, so that nothing is right by accident
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.4)
    return model


def reference_run(model, log, events):
    """(scores of all items before each event float64[events, items], final states), without windows or arrays."""
    gru, d = model.gru, model.config.dim
    start = [[model.psi[s][row] if (row := int(r)) >= 0 else model.xi[s] for r in model.psi_row(s)] for s in (0, 1)]
    state, time, last, scores = [list(side) for side in start], [{}, {}], {}, []
    past = {user: [] for user in range(log.num_users)}  # (item, time), oldest first
    before_now = [None, None]  # the user's last two items

    def bucket(user, item, now):
        """By the item's recency in events (2/3 octaves), count (up to 4), and time since (powers of ten)."""
        times = [time for other, time in past[user] if other == item]
        age = len(past[user]) - max(k for k, (other, _) in enumerate(past[user]) if other == item)  # 1: the last
        since = now - times[-1]
        recency, count = min(int(1.5 * np.log2(age)), 11), min(len(times), 4) - 1
        gap_bin = 0 if since <= 0 else min(1 + int(np.log10(1 + since)), 7)
        return (recency * 4 + count) * 8 + gap_bin

    def bonus(user, item, now):
        met = any(other == item for other, _ in past[user])
        return model.bonus[bucket(user, item, now)] if met else torch.zeros((), dtype=torch.float64)

    def profile(user, now):
        items = sorted({item for item, _ in past[user]})
        vectors = [model.profile.weight[bucket(user, item, now)] * model.profile.items[item] for item in items]
        return sum(vectors, torch.zeros(d, dtype=torch.float64))

    def successor(user, item, events):
        """By how lately and how often it followed the last item, in the last 128 such events, and by whom."""
        ring, before = [], {}
        for j in range(events):
            who, what = int(log.user[j]), int(log.item[j])
            one, two = before.get(who, (None, None))
            if one is not None and one == before_now[0]:
                ring.append((what, who == user, two is not None and two == before_now[1]))
            before[who] = what, one
        ring = ring[-128:]
        places = [place for place, (other, *_) in enumerate(reversed(ring)) if other == item]
        if not places:
            return torch.zeros((), dtype=torch.float64)
        kind = any(own for other, own, _ in ring if other == item)
        kind += 2 * any(same for other, _, same in ring if other == item)
        age, fullness = int(np.log2(places[0] + 1)), int(np.log2(len(ring)))
        often = min(int(np.ceil(np.log2(len(places)))), 5)
        return model.bonus[384 + ((kind * 8 + age) * 6 + often) * 8 + fullness]

    def popularity(item, k):
        """Logarithms of decayed counts as of the item's last event, then powers of the age; 0 without events."""
        numbers = torch.tensor([j for j in range(k) if log.item[j] == item], dtype=torch.float64)
        counts, ages = model.popularity
        if not len(numbers):
            return torch.zeros(model.popularity.width, dtype=torch.float64)
        decayed = torch.exp2(-(numbers[-1] - numbers)[:, None] * counts).sum(0)
        return torch.cat([1 + decayed.log(), torch.exp2(-(k - numbers[-1]) * ages)])

    def copied(item):
        """State and candidate id embedding of the last item, 0 without one."""
        if item is None:
            return torch.zeros(model.skip.in_features, dtype=torch.float64)
        return torch.cat([state[1][item], *([model.candidate[item, :-1]] if model.candidate_ids is not None else [])])

    def gap(now, before):
        return [float(np.log1p(now - before)), 1.0] if before is not None else [0.0, 0.0]

    def embedding(item):
        return model.items(torch.tensor([model.shape.items if item is None else item]))[0]

    for k in events:
        ids, now = (int(log.user[k]), int(log.item[k])), float(log.time[k])
        described = [] if model.users is None else [model.users(torch.tensor([ids[0]]))[0]]
        head = [state[0][ids[0]], embedding(last.get(ids[0])), *described]
        if model.config.time_gaps:
            head.append(torch.tensor(gap(now, time[0].get(ids[0])), dtype=torch.float64))
        if model.config.copy_path:
            head.append(copied(last.get(ids[0])))
        out, width = model.head(torch.cat(head)), d
        scored = 2 * d if model.candidate_ids is not None else d
        query, gates = out[:scored], 1 + out[scored:]
        if model.config.copy_path:
            query = query + model.skip.weight @ head[-1]
        if model.profile is not None:
            query = torch.cat([query[:d], query[d:] + profile(ids[0], now)])
        if model.config.popularity:
            width -= model.popularity.width
            weights = query[width:d] + model.popularity_weight
        score = torch.stack([query[:width] @ vector[:width] for vector in state[1]])
        if model.config.popularity:
            score = score + torch.stack([weights @ popularity(item, k) for item in range(log.num_items)])
        if model.candidate_ids is not None:
            score = score + model.candidate[:, :-1] @ query[d:] + model.candidate[:, -1]
        if model.bonus is not None:
            if model.config.history:
                score = score + gates[0] * torch.stack([bonus(ids[0], item, now) for item in range(log.num_items)])
            before_now = [*[item for item, _ in past[ids[0]]][::-1], None, None][:2]
            if model.config.successors:
                listed = [successor(ids[0], item, k) for item in range(log.num_items)]
                score = score + gates[1] * torch.stack(listed)
        past[ids[0]].append((ids[1], now))
        scores.append(score)
        old = [state[s][ids[s]] for s in (0, 1)]
        for s in (0, 1):
            feature = [embedding(ids[1]), *described]
            if model.event is not None:
                feature.append(model.event(torch.tensor(log.features[k]).double()))
            if model.config.time_gaps:
                feature.append(torch.tensor(gap(now, time[s].get(ids[s])), dtype=torch.float64))
            gi = gru.other[s] @ old[1 - s] + gru.feature[s] @ torch.cat(feature) + gru.bias[s]
            gh = gru.own[s] @ old[s] + gru.own_bias[s]
            reset, update = torch.sigmoid(gi[:d] + gh[:d]), torch.sigmoid(gi[d : 2 * d] + gh[d : 2 * d])
            new = torch.tanh(gi[2 * d :] + reset * gh[2 * d :])
            state[s][ids[s]] = (1 - update) * new + update * old[s]
        for s in (0, 1):
            time[s][ids[s]] = now
        last[ids[0]] = ids[1]
    return torch.stack(scores), state


def reference_loss(model, log):
    """The mean loss over all items, one event at a time."""
    scores, _ = reference_run(model, log, range(len(log)))
    return torch.stack(
        [loss_of_event(model, score, item) for score, item in zip(scores, log.item, strict=True)]
    ).mean()


def loss_of_event(model, scores, true):
    """The generalized cross-entropy (1 - p^q) / q of candidate number `true`; the cross-entropy for q = 0."""
    q, loss = model.config.generalized_cross_entropy, torch.logsumexp(scores, 0) - scores[true]
    return (1 - torch.exp(-q * loss)) / q if q else loss
