"""Schedule: a window's rows in level order, with every index a kernel needs. Integers only, built in O(n).

Legend: n events of a window, W states written, K d-nodes, L levels, R rows of the arena.

The arena of a window is one table of vectors: [entry states | ψ | φ | written states]. Entry rows come first,
users then items, each by dense id; then the ψ rows of the active entities met, likewise; then one φ row a d-node,
by code; then the written states by level, then side, then event. So one level writes one contiguous block.
Every row number here is a row of the arena; arrays over the W written states start at row `first_written`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dynedge.plan.levels import levels
from dynedge.plan.links import ACTIVE, ENTRY
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

NO_ROW = -1
OWN, OTHER = 0, 1  # columns of parents and children: through the entity's own state, or through its partner's


@dataclass(frozen=True, eq=False)
class Schedule:
    """What to read and write, level by level, and how gradients come back by gathers alone.

    A state is read by one later event of its entity, which writes at most two states: so a row has at most two
    children, and the backward pass gathers from them. Only ψ rows have many readers; theirs are listed.
    """

    entry_users: Array  # int32, sorted: the users whose states at the window's start fill the first rows
    entry_items: Array  # int32, sorted: the items whose states fill the next
    psi_users: Array  # int32, sorted: the active users met, a ψ row each
    psi_items: Array  # int32, sorted: the active items met, a ψ row each
    codes: Array  # int32[K], sorted: 2·event + side of the d-node each φ row stands for
    targets: Array  # int32[K]: the written row each φ row should equal
    parents: Array  # int32[W, 2]: the rows a written state is computed from, own and other
    event: Array  # int32[W]: the event that writes it
    blocks: Array  # int32[2L + 1]: level l (from 0), side s writes rows blocks[2l + s] to blocks[2l + s + 1]
    children: Array  # int32[R, 2]: the rows that have this one as own and as other parent, or NO_ROW; ψ: NO_ROW
    psi_starts: Array  # int32[ψ rows + 1]: where each ψ row's readers start in psi_readers
    psi_readers: Array  # int32: the written rows that read each ψ row (always as other: ψ itself is never written)
    reads: Array  # int32[n, 2]: the rows of the event's user and item as it reads them (φ where cut)
    exits: Array  # int32[entry rows]: the written row of each entry entity's last state (the state, even where cut)
    item_starts: Array  # int32[entry items + 1]: where each entry item's states start in the next two
    item_events: Array  # int32: the events that wrote the item's states, in order
    item_rows: Array  # int32: where a later event reads those states (φ where cut)

    @property
    def first_psi(self) -> int:
        return len(self.entry_users) + len(self.entry_items)

    @property
    def first_phi(self) -> int:
        return self.first_psi + len(self.psi_users) + len(self.psi_items)

    @property
    def first_written(self) -> int:
        return self.first_phi + len(self.codes)

    @property
    def rows(self) -> int:
        return len(self.children)

    @property
    def depth(self) -> int:
        """How many levels: the longest path."""
        return len(self.blocks) // 2

    def rows_before(self, items: Array, events: Array) -> Array:
        """int32: the row of each candidate item as event k would read it; NO_ROW if the window never meets it.

        NO_ROW means that the item's state is the one at the window's start. For an event's own item this is
        `reads[:, 1]`: positives and negatives are read alike.
        """
        items, events = np.broadcast_arrays(np.asarray(items, np.int32), np.asarray(events, np.int32))
        found: Array = _rows_before(
            items.flatten(),
            events.flatten(),
            self.entry_items,
            len(self.entry_users),
            self.psi_items,
            self.first_psi + len(self.psi_users),
            self.item_starts,
            self.item_events,
            self.item_rows,
        )
        return found.reshape(items.shape)


def build(user: Array, item: Array, prev: Array, cut: Array, level: Array | None = None) -> Schedule:
    """The schedule of one window: `user`, `item` int32[n], its links, its d-nodes, its levels if at hand."""
    level = levels(prev, cut) if level is None else level
    bits = [_bits(ids, prev, side) for side, ids in enumerate((user, item))]
    before, members = zip(*(_members(bits[side][kind]) for kind in (0, 1) for side in (0, 1)), strict=True)
    starts = np.concatenate(([0], np.cumsum([len(ids) for ids in members])))
    first_written = int(starts[4]) + len(cut)

    slots = np.empty((len(user), 2), np.int32)
    for side, ids in enumerate((user, item)):
        _slots(ids, prev, side, bits[side], before[side], before[2 + side], starts[side], starts[2 + side], slots)
    blocks = _blocks(prev, level, first_written)
    written = int(blocks[-1]) - first_written

    codes = cut.astype(np.int32)
    targets = np.empty(len(cut), np.int32)
    parents = np.empty((written, 2), np.int32)
    event = np.empty(written, np.int32)
    children = np.full((first_written + written, 2), NO_ROW, np.int32)
    reads = np.empty((len(user), 2), np.int32)
    exits = np.empty(starts[2], np.int32)
    as_read = np.empty((len(user), 2), np.int32)
    placed = _place(
        prev, level, codes, slots, blocks, starts[4], targets, parents, event, children, reads, exits, as_read
    )
    if placed != len(codes):
        raise ValueError(
            f"{len(codes) - placed} of {len(codes)} d-nodes are not states of this window, or not sorted"
        )
    item_starts, item_events, item_rows = _item_lists(prev[:, 1], slots[:, 1], starts[1], starts[2], as_read[:, 1])
    psi_starts, psi_readers = _psi_lists(parents, starts[2], starts[4], first_written)
    return Schedule(
        entry_users=members[0],
        entry_items=members[1],
        psi_users=members[2],
        psi_items=members[3],
        codes=codes,
        targets=targets,
        parents=parents,
        event=event,
        blocks=blocks,
        children=children,
        psi_starts=psi_starts,
        psi_readers=psi_readers,
        reads=reads,
        exits=exits,
        item_starts=item_starts,
        item_events=item_events,
        item_rows=item_rows,
    )


# A set of entities as bits, with the number of members before each word: members in order of id, and the rank
# of each, in O(n + ids / 64), without sorting and without a table as long as the catalogue.


@compiled
def _bits(ids: Array, prev: Array, side: int) -> Array:
    """uint64[2, words]: the inactive and the active entities met. No branch: half of them would be mispredicted."""
    highest = 0
    for k in range(len(ids)):
        highest = max(highest, ids[k])
    bits = np.zeros((2, highest // 64 + 1), np.uint64)
    for k in range(len(ids)):
        bits[int(prev[k, side] == ACTIVE), ids[k] >> 6] |= np.uint64(1) << np.uint64(ids[k] & 63)
    return bits


@compiled
def _members(bits: Array) -> tuple[Array, Array]:
    """(how many members come before each word, the members in order)."""
    before = np.empty(len(bits), np.int32)
    total = 0
    for word in range(len(bits)):
        before[word] = total
        total += _ones(bits[word])
    members = np.empty(total, np.int32)
    at = 0
    for word in range(len(bits)):
        left = bits[word]
        while left:
            lowest = left & (~left + np.uint64(1))
            members[at] = 64 * word + _ones(lowest - np.uint64(1))
            at += 1
            left ^= lowest
    return before, members


@compiled(inline="always")
def _ones(word: Any) -> Any:
    """The number of one bits of a uint64."""
    pairs = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    nibbles = (pairs & np.uint64(0x3333333333333333)) + ((pairs >> np.uint64(2)) & np.uint64(0x3333333333333333))
    octets = (nibbles + (nibbles >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((octets * np.uint64(0x0101010101010101)) >> np.uint64(56))


@compiled(inline="always")
def _rank(entity: int, bits: Array, before: Array) -> Any:
    below = (np.uint64(1) << np.uint64(entity & 63)) - np.uint64(1)
    return before[entity >> 6] + _ones(bits[entity >> 6] & below)


@compiled
def _slots(
    ids: Array,
    prev: Array,
    side: int,
    bits: Array,
    entry_before: Array,
    psi_before: Array,
    first_entry: int,
    first_psi: int,
    slots: Array,
) -> None:
    """slots[k, side]: the entry or ψ row of the event's entity."""
    for k in range(len(ids)):
        p = prev[k, side]
        if p >= 0:
            slots[k, side] = slots[p, side]
        elif p == ENTRY:
            slots[k, side] = first_entry + _rank(ids[k], bits[0], entry_before)
        else:
            slots[k, side] = first_psi + _rank(ids[k], bits[1], psi_before)


@compiled
def _blocks(prev: Array, level: Array, first_written: int) -> Array:
    """Where the written rows of each level and side start: the counting half of a counting sort."""
    depth = 0
    for k in range(len(level)):
        depth = max(depth, level[k])
    counts = np.zeros(2 * depth + 2, np.int32)  # level 0 counts none: its events write nothing
    for k in range(len(level)):
        for s in range(2):
            counts[2 * level[k] + s] += int(prev[k, s] != ACTIVE)
    blocks = np.empty(2 * depth + 1, np.int32)
    blocks[0] = first_written
    for b in range(2 * depth):
        blocks[b + 1] = blocks[b] + counts[b + 2]
    return blocks


@compiled
def _place(
    prev: Array,
    level: Array,
    codes: Array,
    slots: Array,
    blocks: Array,
    first_phi: int,
    targets: Array,
    parents: Array,
    event: Array,
    children: Array,
    reads: Array,
    exits: Array,
    as_read: Array,
) -> int:
    """Give every state its row and fill what hangs on it; returns how many codes were met.

    One pass in time order: a parent's row is known before its reader asks, and codes come up sorted.
    """
    following = blocks.copy()
    first_written = blocks[0]
    met = 0
    for k in range(len(prev)):
        for s in range(2):
            p = prev[k, s]
            reads[k, s] = as_read[p, s] if p >= 0 else slots[k, s]
        for s in range(2):
            if prev[k, s] == ACTIVE:
                continue
            block = 2 * level[k] - 2 + s
            row = following[block]
            following[block] += 1
            own, other = reads[k, s], reads[k, 1 - s]
            event[row - first_written] = k
            parents[row - first_written, OWN] = own
            parents[row - first_written, OTHER] = other
            children[own, OWN] = row
            if prev[k, 1 - s] != ACTIVE:
                children[other, OTHER] = row
            exits[slots[k, s]] = row
            as_read[k, s] = row
            if met < len(codes) and codes[met] == 2 * k + s:
                targets[met] = row
                as_read[k, s] = first_phi + met
                met += 1
    return met


@compiled
def _item_lists(
    link: Array, slot: Array, first_item: int, first_psi: int, as_read: Array
) -> tuple[Array, Array, Array]:
    """The states of each entry item: where they start, the events that wrote them, where they are read."""
    starts = np.zeros(first_psi - first_item + 1, np.int32)
    for k in range(len(link)):
        if link[k] != ACTIVE:
            starts[slot[k] - first_item + 1] += 1
    for j in range(len(starts) - 1):
        starts[j + 1] += starts[j]
    following = starts.copy()
    events = np.empty(starts[-1], np.int32)
    rows = np.empty(starts[-1], np.int32)
    for k in range(len(link)):
        if link[k] != ACTIVE:
            at = following[slot[k] - first_item]
            following[slot[k] - first_item] += 1
            events[at] = k
            rows[at] = as_read[k]
    return starts, events, rows


@compiled
def _psi_lists(parents: Array, first_psi: int, first_phi: int, first_written: int) -> tuple[Array, Array]:
    """The readers of each ψ row, in order of row."""
    starts = np.zeros(first_phi - first_psi + 1, np.int32)
    for w in range(len(parents)):
        if first_psi <= parents[w, OTHER] < first_phi:
            starts[parents[w, OTHER] - first_psi + 1] += 1
    for j in range(len(starts) - 1):
        starts[j + 1] += starts[j]
    following = starts.copy()
    readers = np.empty(starts[-1], np.int32)
    for w in range(len(parents)):
        if first_psi <= parents[w, OTHER] < first_phi:
            j = parents[w, OTHER] - first_psi
            readers[following[j]] = first_written + w
            following[j] += 1
    return starts, readers


@compiled
def _rows_before(
    items: Array,
    events: Array,
    entry_items: Array,
    first_entry_item: int,
    psi_items: Array,
    first_psi_item: int,
    item_starts: Array,
    item_events: Array,
    item_rows: Array,
) -> Array:
    rows = np.full(len(items), NO_ROW, np.int32)
    for c in range(len(items)):
        j = np.searchsorted(entry_items, items[c])
        if j < len(entry_items) and entry_items[j] == items[c]:
            start = item_starts[j]
            earlier = np.searchsorted(item_events[start : item_starts[j + 1]], events[c])
            rows[c] = item_rows[start + earlier - 1] if earlier else first_entry_item + j
        else:
            j = np.searchsorted(psi_items, items[c])
            if j < len(psi_items) and psi_items[j] == items[c]:
                rows[c] = first_psi_item + j
    return rows
