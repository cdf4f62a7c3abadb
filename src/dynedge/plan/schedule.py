"""Schedule: the rows of a window in level order, with every index the kernels need. Integers only, built in O(n).

Legend: n events in the window, W written states, K d-nodes, L levels, R rows of the arena.

The arena of a window is one table of vectors: [entry states | ψ | φ | written states]. The entry states come first,
users before items, each by dense id; then the ψ rows of the window's active entities in the same order; then one φ
row per d-node, by code; then the written states by level, side and event. Each level thus writes one contiguous
block. All row numbers here are rows of the arena; arrays over the W written states start at row `first_written`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dynedge.plan.levels import levels
from dynedge.plan.links import ACTIVE, ENTRY
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

NO_ROW = -1
OWN, OTHER = 0, 1  # columns of parents and children: the entity's own state, or the state of its partner


@dataclass(frozen=True, eq=False)
class Schedule:
    """The rows to read and write, level by level, and the indices with which gradients flow back by gathers alone.

    A state is read by one later event of its entity, which writes at most two states. A row therefore has at most two
    children, and the backward pass gathers from them. Only ψ rows can have many readers; those are listed separately.
    """

    entry_users: Array  # int32, sorted: users whose states at the window's start fill the first rows
    entry_items: Array  # int32, sorted: items whose states at the window's start fill the next rows
    psi_users: Array  # int32, sorted: active users of the window, one ψ row each
    psi_items: Array  # int32, sorted: active items of the window, one ψ row each
    dnodes: Array  # int32[K], sorted: code 2·event + side of the d-node of each φ row
    dnode_rows: Array  # int32[K]: the written row of each d-node, which its φ row should equal
    parents: Array  # int32[W, 2]: the rows a written state is computed from, OWN and OTHER
    event: Array  # int32[W]: the event that writes the row
    blocks: Array  # int32[2L + 1]: level l (from 0), side s writes the rows blocks[2l + s] to blocks[2l + s + 1]
    children: Array  # int32[R, 2]: the rows with this row as OWN and as OTHER parent, or NO_ROW; NO_ROW for ψ rows
    psi_starts: Array  # int32[ψ rows + 1]: where the readers of each ψ row start in psi_readers
    psi_readers: (
        Array  # int32: the written rows that read each ψ row (always as OTHER: active entities write nothing)
    )
    read_rows: Array  # int32[n, 2]: the rows that the event reads for its user and item (φ for d-nodes)
    exit_rows: Array  # int32[entry rows]: the written row of each entry entity's last state (never φ)
    item_starts: Array  # int32[entry items + 1]: where each entry item's states start in item_events and item_rows
    item_events: Array  # int32: the events that write the item's states, in order
    item_rows: Array  # int32: the rows from which later events read those states (φ for d-nodes)

    @property
    def first_psi(self) -> int:
        return len(self.entry_users) + len(self.entry_items)

    @property
    def first_phi(self) -> int:
        return self.first_psi + len(self.psi_users) + len(self.psi_items)

    @property
    def first_written(self) -> int:
        return self.first_phi + len(self.dnodes)

    @property
    def rows(self) -> int:
        return len(self.children)

    @property
    def depth(self) -> int:
        """The number of levels, which is the longest path."""
        return len(self.blocks) // 2

    def rows_before(self, items: Array, events: Array) -> Array:
        """int32: the row of each candidate item as event k reads it; NO_ROW if the item has no event in the window.

        NO_ROW means that the item still has its state of the window's start. For the item of the event itself the
        result is `read_rows[:, 1]`: positives and negatives are read alike.
        """
        items, events = np.broadcast_arrays(np.asarray(items, np.int32), np.asarray(events, np.int32))
        rows: Array = _rows_before(
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
        return rows.reshape(items.shape)


def build_schedule(user: Array, item: Array, prev: Array, dnodes: Array, level: Array | None = None) -> Schedule:
    """The schedule of one window with `user`, `item` int32[n]; `level` is computed from the links if not given."""
    level = levels(prev, dnodes) if level is None else level
    bits = [_bits(ids, prev, side) for side, ids in enumerate((user, item))]
    before, members = zip(*(_members(bits[side][kind]) for kind in (0, 1) for side in (0, 1)), strict=True)
    starts = np.concatenate(([0], np.cumsum([len(ids) for ids in members])))
    first_written = int(starts[4]) + len(dnodes)

    slots = np.empty((len(user), 2), np.int32)
    for side, ids in enumerate((user, item)):
        _slots(ids, prev, side, bits[side], before[side], before[2 + side], starts[side], starts[2 + side], slots)
    blocks = _blocks(prev, level, first_written)
    written = int(blocks[-1]) - first_written

    codes = dnodes.astype(np.int32)
    dnode_rows = np.empty(len(codes), np.int32)
    parents = np.empty((written, 2), np.int32)
    event = np.empty(written, np.int32)
    children = np.full((first_written + written, 2), NO_ROW, np.int32)
    read_rows = np.empty((len(user), 2), np.int32)
    exit_rows = np.empty(starts[2], np.int32)
    as_read = np.empty((len(user), 2), np.int32)
    matched = _fill(
        prev,
        level,
        codes,
        slots,
        blocks,
        starts[4],
        dnode_rows,
        parents,
        event,
        children,
        read_rows,
        exit_rows,
        as_read,
    )
    if matched != len(codes):
        raise ValueError(
            f"{len(codes) - matched} of {len(codes)} d-nodes are not states of this window, or are not sorted"
        )
    item_starts, item_events, item_rows = _item_lists(prev[:, 1], slots[:, 1], starts[1], starts[2], as_read[:, 1])
    psi_starts, psi_readers = _psi_lists(parents, starts[2], starts[4], first_written)
    return Schedule(
        entry_users=members[0],
        entry_items=members[1],
        psi_users=members[2],
        psi_items=members[3],
        dnodes=codes,
        dnode_rows=dnode_rows,
        parents=parents,
        event=event,
        blocks=blocks,
        children=children,
        psi_starts=psi_starts,
        psi_readers=psi_readers,
        read_rows=read_rows,
        exit_rows=exit_rows,
        item_starts=item_starts,
        item_events=item_events,
        item_rows=item_rows,
    )


# A set of entities is a bit set with the number of members before each word. This gives the members in order of id,
# and the rank of each, in O(n + ids / 64), without sorting and without a table over all entities.


@compiled
def _bits(ids: Array, prev: Array, side: int) -> Array:
    """uint64[2, words]: bit sets of the inactive and the active entities. Branch-free: half would be mispredicted."""
    highest = 0
    for k in range(len(ids)):
        highest = max(highest, ids[k])
    bits = np.zeros((2, highest // 64 + 1), np.uint64)
    for k in range(len(ids)):
        bits[int(prev[k, side] == ACTIVE), ids[k] >> 6] |= np.uint64(1) << np.uint64(ids[k] & 63)
    return bits


@compiled
def _members(bits: Array) -> tuple[Array, Array]:
    """(number of members before each word, the members in order)."""
    before = np.empty(len(bits), np.int32)
    total = 0
    for word in range(len(bits)):
        before[word] = total
        total += _ones(bits[word])
    members = np.empty(total, np.int32)
    at = 0
    for word in range(len(bits)):
        remaining = bits[word]
        while remaining:
            lowest = remaining & (~remaining + np.uint64(1))
            members[at] = 64 * word + _ones(lowest - np.uint64(1))
            at += 1
            remaining ^= lowest
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
    """The number of members with a smaller id."""
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
    """Fills slots[k, side]: the entry or ψ row of the event's entity."""
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
    """Where the written rows of each level and side start: the counting phase of a counting sort."""
    depth = 0
    for k in range(len(level)):
        depth = max(depth, level[k])
    counts = np.zeros(2 * depth + 2, np.int32)  # level 0 stays empty: its events write nothing
    for k in range(len(level)):
        for s in range(2):
            counts[2 * level[k] + s] += int(prev[k, s] != ACTIVE)
    blocks = np.empty(2 * depth + 1, np.int32)
    blocks[0] = first_written
    for b in range(2 * depth):
        blocks[b + 1] = blocks[b] + counts[b + 2]
    return blocks


@compiled
def _fill(
    prev: Array,
    level: Array,
    codes: Array,
    slots: Array,
    blocks: Array,
    first_phi: int,
    dnode_rows: Array,
    parents: Array,
    event: Array,
    children: Array,
    read_rows: Array,
    exit_rows: Array,
    as_read: Array,
) -> int:
    """Assigns a row to every state and fills the index arrays; returns the number of d-nodes that are states.

    One pass in time order: a parent has its row before it is read, and the codes are sorted.
    """
    following = blocks.copy()
    first_written = blocks[0]
    matched = 0
    for k in range(len(prev)):
        for s in range(2):
            p = prev[k, s]
            read_rows[k, s] = as_read[p, s] if p >= 0 else slots[k, s]
        for s in range(2):
            if prev[k, s] == ACTIVE:
                continue
            block = 2 * level[k] - 2 + s
            row = following[block]
            following[block] += 1
            own, other = read_rows[k, s], read_rows[k, 1 - s]
            event[row - first_written] = k
            parents[row - first_written, OWN] = own
            parents[row - first_written, OTHER] = other
            children[own, OWN] = row
            if prev[k, 1 - s] != ACTIVE:
                children[other, OTHER] = row
            exit_rows[slots[k, s]] = row
            as_read[k, s] = row
            if matched < len(codes) and codes[matched] == 2 * k + s:
                dnode_rows[matched] = row
                as_read[k, s] = first_phi + matched
                matched += 1
    return matched


@compiled
def _item_lists(
    link: Array, slot: Array, first_item: int, first_psi: int, as_read: Array
) -> tuple[Array, Array, Array]:
    """The states of each entry item: (where each list starts, the events that write them, the rows to read)."""
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
    """The readers of each ψ row, in row order: (where its list starts, the written rows)."""
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
