"""Probabilities and features of a query of the count memory, as plain sums over lists of earlier events.

Written from the definitions in contexts.py. Also small logs that reach the corner cases, and a small model.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import log1p

import numpy as np
import torch
from models.every_model import make_log

from dynedge.data.log import EventLog
from dynedge.models.base import LogShape
from dynedge.models.count_memory import contexts as c
from dynedge.models.count_memory.candidate_buffer import QUERY_FEATURES
from dynedge.models.count_memory.config import MemoryConfig, StandaloneMemoryConfig
from dynedge.models.count_memory.event_index import GAP_STEPS, RECENT_EVENTS
from dynedge.models.count_memory.features import ITEM_FEATURES
from dynedge.models.count_memory.model import CountMemory

HALF_LIVES = (1e12, 30.0, 4.0)
NEAR_WEIGHTS = tuple(c.NEAR_DECAY**distance for distance in range(c.NEAR_DISTANCE))


@dataclass(frozen=True)
class Rules:
    """What is counted, how much of it is read, and how fast it decays."""

    config: MemoryConfig = field(default_factory=MemoryConfig)
    fast_half_life: float = c.FAST_HALF_LIFE
    log_half_life: float = c.LOG_HALF_LIFE
    near_items: int = c.RECENT_ITEMS
    near_before: tuple[float, ...] = NEAR_WEIGHTS
    near_after: tuple[float, ...] = NEAR_WEIGHTS

    def share(self, divisor):
        """The limit on occurrences, divided; at least one is read."""
        return max(self.config.occurrences // divisor, 1)

    def occurrences(self, r):
        """How many occurrences of the user's item number r, newest first, are read."""
        return self.share(1 if r == 0 else 4)

    def near_occurrences(self, r):
        """The same by `near`, `similar` and `peers`: a quarter, half of that for items 3 to 5, and so on."""
        return self.share(4 * 2 ** (r // 3))


def decayed(age, half_life):
    """A weight of one after `age` events; below a millionth (2^-20) it is nothing."""
    return 2.0 ** (-age / half_life) if age <= 20 * half_life else 0.0


def likeness(gap, other):
    """How alike two gaps are, by their codes."""
    return float(gap is other) if gap is None or other is None else decayed(abs(gap - other), GAP_STEPS)


def history(log, user, end):
    """The user's items before event `end`, oldest first."""
    return [int(log.item[k]) for k in range(end) if log.user[k] == user]


class Expected:
    """What the query of event k of a log must find: sums of all sources, query features and item features."""

    def __init__(self, log, k, rules):
        self.k, self.rules = k, rules
        self.user = [int(user) for user in log.user[: k + 1]]
        self.item = [int(item) for item in log.item[:k]]
        self.time = [float(time) for time in log.time[: k + 1]]
        self.events_of = defaultdict(list)  # numbers of a user's earlier events, oldest first
        for j in range(k):
            self.events_of[self.user[j]].append(j)
        self.own = self.events_of[self.user[k]][::-1]  # newest first
        self.recent = [self.item[j] for j in self.own[: c.RECENT_ITEMS]]
        self.sums = np.zeros((log.num_items, c.CONTEXT_SOURCES))
        in_use = set(rules.config.contexts)
        for context in c.SOURCES:
            if context in in_use:
                getattr(self, f"add_{context}")()
        self.totals = {source: self.sums[:, number].sum() for source, number in c.SOURCE.items()}
        self.query_features = self.make_query_features(in_use)
        self.item_features = np.array([self.make_item_features(i, in_use) for i in range(log.num_items)])

    def probabilities(self):
        """float[items, sources]."""
        totals = self.sums.sum(0)
        return self.sums / np.where(totals > 0, totals, 1)

    # ---- reading earlier events

    def add(self, context, kind, event, weight):
        self.sums[self.item[event], c.SOURCE[context, kind]] += weight

    def gap(self, j):
        """The code of the time between event j and the one before of its user; None for the first one."""
        before = self.before(j)[:1]
        return int(GAP_STEPS * np.log2(1 + self.time[j] - self.time[before[0]])) if before else None

    def log_factor(self, event):
        return decayed(self.k - event, self.rules.log_half_life)

    def before(self, j):
        """The events of event j's user before it, nearest first."""
        return [x for x in self.events_of[self.user[j]] if x < j][::-1]

    def after(self, j):
        """The events of event j's user after it and before the query, nearest first."""
        return [x for x in self.events_of[self.user[j]] if x > j]

    def occurrences(self, item):
        """All earlier events of an item, newest first."""
        return [j for j in reversed(range(self.k)) if self.item[j] == item]

    def read(self, r):
        """The occurrences that are read of the user's item number r: none where a newer one is the same item."""
        if r >= len(self.recent) or self.recent[r] in self.recent[:r]:
            return []
        return self.occurrences(self.recent[r])[: self.rules.occurrences(r)]

    def followers(self, r):
        """(occurrence, the event that followed it) of item number r, newest occurrence first."""
        return [(j, self.after(j)[0]) for j in self.read(r) if self.after(j)]

    # ---- contexts

    def add_user(self):
        found = set()
        for age, j in enumerate(self.own[: self.rules.config.history_events]):
            self.add("user", "plain", j, 1)
            self.add("user", "context-decayed", j, decayed(age, c.CONTEXT_HALF_LIFE))
            self.add("user", "log-decayed", j, self.log_factor(j))
            if self.item[j] not in found:
                self.add("user", "recency", j, 1 / (1 + age))
            found.add(self.item[j])

    def add_user_last(self):
        matches = 0
        for j in self.own[1 : self.rules.config.history_events]:
            preceding = [self.item[x] for x in (j, *self.before(j))]
            if preceding[0] != self.recent[0]:
                continue
            matches += 1
            follower = self.after(j)[0]
            self.add("user_last", "plain", follower, 1)
            self.add("user_last", "recency", follower, 1 / matches)
            for kind, length in (("last two", 2), ("last three", 3)):
                if len(preceding) >= length and preceding[:length] == self.recent[:length]:
                    self.add("user_last", kind, follower, 1)

    def add_elapsed(self):
        for j in self.own[: self.rules.config.history_events]:
            self.add("elapsed", "plain", j, (1 + self.time[self.k] - self.time[j]) ** -c.ELAPSED_POWER)

    def add_after_gap(self):
        for _, follower in self.followers(0):
            self.add("after_gap", "plain", follower, likeness(self.gap(self.k), self.gap(follower)))

    def add_last(self):
        for age, (_, follower) in enumerate(self.followers(0)):
            self.add("last", "plain", follower, 1)
            self.add("last", "context-decayed", follower, decayed(age, c.CONTEXT_HALF_LIFE))
            self.add("last", "fast", follower, decayed(self.k - follower, self.rules.fast_half_life))
            self.add("last", "log-decayed", follower, self.log_factor(follower))
            self.add("last", "recency", follower, 1 / (1 + age))

    def add_last_two(self):
        pairs = [
            follower
            for j, follower in self.followers(0)
            if len(self.recent) > 1 and [self.item[x] for x in self.before(j)[:1]] == self.recent[1:2]
        ]
        for age, follower in enumerate(pairs):
            self.add("last_two", "plain", follower, 1)
            self.add("last_two", "recency", follower, 1 / (1 + age))
            self.add("last_two", "log-decayed", follower, self.log_factor(follower))

    def add_similar(self):
        places = list(enumerate(self.recent[1:]))
        weight_of = {item: c.NEAR_DECAY**r for r, item in reversed(places)}
        for j, follower in self.followers(0):
            if j not in self.read(0)[: self.rules.near_occurrences(0)]:
                continue
            common = [self.item[x] for x in self.before(j)[: c.SIMILAR_DISTANCE]]
            weight = sum(weight_of.get(item, 0) for item in common)
            self.add("similar", "plain", follower, weight)
            self.add("similar", "log-decayed", follower, weight * self.log_factor(follower))

    def add_earlier(self):
        for r in range(1, c.EARLIER_ITEMS):
            for _, follower in self.followers(r):
                weight = c.EARLIER_DECAY ** (r - 1)
                self.add("earlier", "plain", follower, weight)
                self.add("earlier", "log-decayed", follower, weight * self.log_factor(follower))

    def add_near(self):
        for _, j, x, weight, _ in self.near_events():
            self.add("near", "plain", x, weight)
            self.add("near", "log-decayed", x, weight * self.log_factor(j))

    def near_events(self):
        """(item number r of the user, occurrence, event near it, its weight, weight without distance and r)."""
        for r in range(self.rules.near_items):
            occurrences = self.read(r)[: self.rules.near_occurrences(r)]
            for j in occurrences:
                scale = len(occurrences) ** -c.NEAR_POWER
                sides = ((self.before(j), self.rules.near_before), (self.after(j), self.rules.near_after))
                for events, weights in sides:
                    for x, weight in zip(events, weights, strict=False):
                        yield r, j, x, c.NEAR_DECAY**r * scale * weight, scale

    def add_session(self):
        for r, j, x, _, scale in self.near_events():
            since = self.time[self.k] - self.time[self.own[r]]
            if since <= c.SESSION and abs(self.time[x] - self.time[j]) <= c.SESSION:
                self.add("session", "plain", x, scale)
                if since == 0 and self.time[x] == self.time[j]:
                    self.add("session", "same time", x, scale)

    def add_alike(self):
        for r, j, x, weight, _ in self.near_events():
            around = self.before(j)[: c.NEAR_DISTANCE] + self.after(j)[: c.NEAR_DISTANCE]
            common = [y for y in around if self.item[y] in self.recent and self.item[y] != self.recent[r]]
            self.add("alike", "plain", x, weight * len(common) ** 2)

    def add_now(self):
        for item in {self.item[j] for j in list(range(self.k))[::-1][:RECENT_EVENTS]}:
            for j in self.occurrences(item)[: c.PROFILE]:
                self.add("now", "log-decayed", j, likeness(self.gap(self.k), self.gap(j)) * self.log_factor(j))

    def add_peers(self):
        for r in range(c.PEER_ITEMS):
            for j in self.read(r)[: min(self.rules.share(8), self.rules.near_occurrences(r))]:
                if self.user[j] != self.user[self.k] and self.after(j):
                    now, weight = self.after(j)[-1], c.EARLIER_DECAY ** (r - 1)
                    self.add("peers", "plain", now, weight)
                    self.add("peers", "log-decayed", now, weight * self.log_factor(j))

    def add_recent(self):
        for age, j in enumerate(list(range(self.k))[::-1][:RECENT_EVENTS]):
            self.add("recent", "plain", j, 1)
            self.add("recent", "context-decayed", j, decayed(age, c.RECENT_HALF_LIFE))

    # ---- features

    def make_query_features(self, in_use):
        features = np.zeros(QUERY_FEATURES)
        if not self.own:
            return features
        total, gap, last = self.totals, self.time[self.k] - self.time[self.own[0]], self.recent[0]
        if {"user", "user_last", "elapsed"} & in_use:
            read = self.own[: self.rules.config.history_events]
            features[0] = 0.2 * log1p(len(self.own))
            features[1] = 0.2 * log1p(len({self.item[j] for j in read}))
        features[2] = 0.2 * log1p(total["user_last", "plain"])
        features[3] = 1
        features[4] = 0.1 * log1p(max(gap, 0))
        features[5] = gap <= 0
        features[6] = self.recent[1:2] == [last]
        features[7] = self.recent[2:3] == [last]
        if {"last", "last_two", "after_gap", "similar", "near", "session", "alike", "peers"} & in_use:
            features[8] = 0.2 * log1p(len(self.occurrences(last)))
        features[9] = 0.2 * log1p(total["last", "plain"])
        features[10] = 0.2 * log1p(total["last_two", "plain"])
        features[11] = 0.2 * log1p(total["similar", "plain"])
        features[12] = 0.2 * log1p(total["earlier", "plain"])
        features[13] = 0.2 * log1p(total["last", "fast"])
        features[14] = 0.2 * log1p(total["last", "log-decayed"])
        features[15] = 0.1 * log1p(self.k - self.own[0])
        features[16] = 0.2 * log1p(total["peers", "log-decayed"])
        features[17] = 0.2 * log1p(total["user_last", "last two"])
        features[18:22] = self.habits(in_use)
        features[22:] = self.kind()
        return features

    def habits(self, in_use):
        latest = list(enumerate(self.own[: c.HABIT_EVENTS]))
        weight = [c.HABIT_DECAY**age for age, _ in latest]
        alike = [likeness(self.gap(self.k), self.gap(j)) if self.before(j) else 0 for _, j in latest]
        alike = np.multiply(alike, weight)
        repeats = [[self.item[x] for x in self.before(j)[:1]] == [self.item[j]] for _, j in latest]
        read = [self.item[j] for j in self.own[: self.rules.config.history_events]]
        if not {"user", "user_last", "elapsed"} & in_use:
            read = []
        once = [age < len(read) and read.count(self.item[j]) == 1 for age, j in latest]
        session = sum(self.time[self.k] - self.time[j] <= c.SESSION for _, j in latest)
        return (
            np.dot(weight, repeats) / sum(weight),
            (np.dot(alike, repeats) + 0.1) / (sum(alike) + 0.2),
            np.dot(weight, once) / sum(weight),
            0.2 * log1p(session),
        )

    def kind(self):
        """Mean logarithms of the number of events and of the age of the user's last items."""
        events = [self.occurrences(item) for item in self.recent]
        return (
            np.mean([0.2 * log1p(len(of_item)) for of_item in events]),
            np.mean([0.1 * log1p(self.k - of_item[-1]) for of_item in events]),
        )

    def make_item_features(self, item, in_use):
        features = np.zeros(ITEM_FEATURES)
        read = self.own[: self.rules.config.history_events] if {"user", "user_last", "elapsed"} & in_use else []
        met = [(age, j) for age, j in enumerate(read) if self.item[j] == item]
        if met:
            age, elapsed = met[0][0], self.time[self.k] - self.time[met[0][1]]
            features[:6] = 1, 0.3 * log1p(age), 0.1 * log1p(max(elapsed, 0)), elapsed <= 0, age == 0, len(met) == 1
        events = self.occurrences(item)
        if not events:
            return features
        elapsed = self.time[self.k] - self.time[events[0]]
        features[6] = 0.2 * log1p(self.k - events[0])
        features[7] = 0.1 * log1p(max(elapsed, 0))
        features[8] = 0.2 * log1p(len(events))
        features[9] = 0.1 * log1p(self.k - events[-1])
        features[10] = 0.2 * log1p(self.k - events[:8][-1])
        features[11] = elapsed <= 0
        features[12] = self.user[events[0]] == self.user[self.k]
        gaps = [self.gap(j) for j in events[: c.PROFILE]]
        features[13] = np.mean([likeness(self.gap(self.k), gap) for gap in gaps])
        features[14] = np.mean([gap is None for gap in gaps])
        if self.own:
            frequency, age = self.kind()
            of_last = self.occurrences(self.recent[0])
            features[15] = 0.2 * log1p(len(events)) - frequency
            features[16] = abs(features[15])
            features[17] = abs(0.2 * log1p(len(events)) - 0.2 * log1p(len(of_last)))
            features[18] = abs(0.1 * log1p(self.k - events[-1]) - age)
            features[19] = 0.1 * log1p(abs(events[-1] - of_last[-1]))
        return features


# ---- small logs and a small model


def random_log(events, users, items, seed=0, repeats=0.0, steps=3):
    """A log in which an event repeats its user's last item with this probability; times advance by up to `steps`."""
    rng = np.random.default_rng(seed)
    user, item, last = rng.integers(0, users, events), rng.integers(0, items, events), {}
    for k in range(events):
        if rng.random() < repeats:
            item[k] = last.get(user[k], item[k])
        last[user[k]] = item[k]
    time = np.cumsum(rng.integers(0, steps + 1, events)).astype(np.float64)
    return EventLog.from_arrays(user, item, time, num_users=users + 1, num_items=items + 1)


LOGS = {
    "returning users": lambda: make_log(events=150, users=5, items=9),
    "the same time": lambda: random_log(60, 4, 6, seed=1, steps=0),
    "one user": lambda: random_log(70, 1, 7, seed=2),
    "two items": lambda: random_log(60, 3, 2, seed=3),
    "repeated items": lambda: random_log(90, 4, 8, seed=4, repeats=0.6),
    "many users": lambda: random_log(90, 40, 5, seed=5),
    "many items": lambda: random_log(90, 3, 60, seed=6),
}


def make_memory(log, **config):
    """A count memory with random parameters, so that nothing is right because it is zero."""
    torch.manual_seed(0)
    model = CountMemory(
        StandaloneMemoryConfig(**{"half_lives": HALF_LIVES, "windows": 3, **config}), LogShape.of(log)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.4)
    return model
