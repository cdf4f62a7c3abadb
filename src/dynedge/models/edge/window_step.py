"""Loss and gradients of a small training window of the paper's model on a CPU: three compiled calls, no autograd.

A window of a few hundred events is some forty operators, and autograd and Python around them take as long as they do.
Here their kernels are called from compiled code, in the same order: all numbers have the bits of `Recurrence.loss`
and autograd. States at a window's start have no gradient, unless they are learned vectors.

Legend: n events of a window, d width of a state, R rows of the arena, F those before the written ones, q items whose
features the window reads, f width of these features, h width of the head's hidden layer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from dynedge.models.base import State, Step
from dynedge.models.candidate_states import candidates_of_chunks
from dynedge.models.edge.compiled_step import array
from dynedge.models.ring_buffer import SIDES
from dynedge.models.window_index import WindowIndex
from dynedge.ops.gather_linear.cpu_kernels import (
    add_matmul_rows,
    add_product,
    fill_bias,
    part_gradients,
    relu_backward,
    relu_in_place,
    scatter_add,
    transposed,
)
from dynedge.ops.gather_matmul import VECTOR_BYTES
from dynedge.ops.level_gru.cpu import root_bounds
from dynedge.ops.level_gru.cpu_kernels import backward as backward_levels
from dynedge.ops.level_gru.cpu_kernels import forward as forward_levels
from dynedge.ops.level_gru.cpu_kernels import (
    group_by_reading,
    kernel_weights,
    project_roots,
    psi_gradients,
    root_gradients,
    weight_gradients,
)
from dynedge.ops.read_states.cpu import XI, fill_rows, psi_gradient, sum_xi
from dynedge.ops.sampled_softmax import CandidateColumns
from dynedge.ops.sampled_softmax.cpu_kernels import compute_chunks, scatter_gradients
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

if TYPE_CHECKING:
    from dynedge.models.edge.recurrence import Recurrence

LARGEST = 2048  # events: from there on the operators use several threads


class _Weights(NamedTuple):
    """Parameters as they are stored."""

    xi: Array
    psi_users: Array
    psi_items: Array
    own: Array
    other: Array
    own_bias: Array
    feature: Array  # [6d, f]
    bias: Array  # [6d]
    hidden: Array  # [h, d + f]
    hidden_bias: Array
    query: Array  # [d, h]
    query_bias: Array


class _Window(NamedTuple):
    """Of `WindowIndex` and its schedule."""

    entry_users: Array
    entry_items: Array
    psi_users: Array
    psi_items: Array
    bounds: Array  # of these four among the rows of the arena
    blocks: Array
    parents: Array
    children: Array
    psi_starts: Array
    psi_readers: Array
    place: Array
    user_rows: Array  # [n]
    item_rows: Array  # [n]
    last_place: Array
    item: Array


class _States(NamedTuple):
    """Of `State`, and which row of ψ an entity has."""

    users: Array
    users_moved: Array
    users_psi: Array
    items: Array
    items_moved: Array
    items_psi: Array


class _Columns(NamedTuple):
    """Of `CandidateColumns`."""

    item: Array
    row: Array
    since: Array
    until: Array
    outside: Array


class _Forward(NamedTuple):
    arena: Array  # [R, d]
    source: Array  # [F]: where the first rows are from, as in ops/read_states/cpu.py
    gates: Array
    hidden: Array  # [n, h]
    query: Array  # [n, d]


class _LossGradients(NamedTuple):
    """Of the sum of the events' losses."""

    query: Array
    arena: Array
    outside: Array
    outside_source: Array


def supports(model: Recurrence, index: WindowIndex) -> bool:
    """Whether there is no more to states, query vectors and loss of the window than what is computed here."""
    config, small = model.config, 0 < len(index.window) < LARGEST
    on_cpu = model.xi.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    more_inputs = config.time_gaps or config.copy_path or model.event is not None or model.users is not None
    more_scores = config.popularity or config.dropout or model.bonus is not None or model.candidate is not None
    more = more_inputs or more_scores or config.negatives_per_event or index.dnodes
    return on_cpu and small and not more and model.items.width > 0


def loss_with_gradients(model: Recurrence, index: WindowIndex, state: State, step: Step) -> tuple[Tensor, Tensor]:
    """(sum of the events' losses, arena); sets the gradients of the mean loss. The state does not change."""
    weights, window, states = _weights(model), _window(index), _states(model, state)
    item_rows, features = _item_features(model, index, state)
    forward = _compute_queries(window, weights, states, features, len(index.items))
    columns, count = _candidate_columns(model, index, step)
    losses, grads = _compute_loss(window, weights, states, forward, columns, count, math.log(model.negative_weight))
    scale = array(model.xi).dtype.type(1 / len(losses))
    *dense, items, roots = _compute_gradients(window, weights, forward, grads, features, len(index.items), scale)
    for parameter, grad in zip(_parameters(model), dense, strict=True):
        parameter.grad = torch.from_numpy(grad).view_as(parameter)
    _set_sparse_gradients(model, window, forward, grads, roots)
    for k, (table, rows) in enumerate(zip(model.items.tables, item_rows, strict=True)):
        values = torch.from_numpy(np.ascontiguousarray(items[:, k * table.shape[1] : (k + 1) * table.shape[1]]))
        table.grad = torch.sparse_coo_tensor(rows[None], values, table.shape, check_invariants=False)
    return torch.tensor(float(losses.sum()), dtype=model.xi.dtype), torch.from_numpy(forward.arena)


def _parameters(model: Recurrence) -> tuple[Tensor, ...]:
    """Those with gradients in whole, in the order of `_Weights`."""
    gru, first, last = model.gru, cast(nn.Linear, model.head[0]), cast(nn.Linear, model.head[2])
    of_gru = gru.own, gru.other, gru.own_bias, gru.feature, gru.bias
    return model.xi, *of_gru, first.weight, first.bias, last.weight, last.bias


def _weights(model: Recurrence) -> _Weights:
    xi, own, other, own_bias, feature, bias, *head = map(array, _parameters(model))
    features = feature.reshape(-1, feature.shape[2]), bias.reshape(-1)
    return _Weights._make((xi, *map(array, model.psi), own, other, own_bias, *features, *head))


def _window(index: WindowIndex) -> _Window:
    schedule = index.schedule
    roots, bounds = (ids.numpy() for ids in index.roots), root_bounds(schedule)
    lists = schedule.blocks, schedule.parents, schedule.children, schedule.psi_starts, schedule.psi_readers
    rows = index.place, *index.reads, index.last_place, index.item
    return _Window._make((*roots, bounds, *lists, *(tensor.numpy() for tensor in rows)))


def _states(model: Recurrence, state: State) -> _States:
    parts = ((state[name], state[f"{name}_moved"], model.psi_row(side)) for side, name in enumerate(SIDES))
    return _States(*(tensor.numpy() for part in parts for tensor in part))


def _item_features(model: Recurrence, index: WindowIndex, state: State) -> tuple[list[Tensor], Array]:
    """(the rows of each table, the features [q, f])."""
    rows = model.items.rows(torch.cat([index.items, state["last_item"].index_select(0, index.begin)]))
    parts = [array(table).take(at.numpy(), 0) for table, at in zip(model.items.tables, rows, strict=True)]
    return rows, parts[0] if len(parts) == 1 else np.concatenate(parts, 1)


def _candidate_columns(model: Recurrence, index: WindowIndex, step: Step) -> tuple[_Columns, int]:
    """(columns of all chunks, number of candidates of a chunk)."""
    negatives, share = model.sample_negatives(index, step), model.chunks_per_sample(len(index.window))
    columns = cast(CandidateColumns, candidates_of_chunks(index, negatives, model.shape.items, share))
    tensors = columns.item, columns.row, columns.since, columns.until, columns.outside
    return _Columns(*(tensor.numpy() for tensor in tensors)), columns.count


def _set_sparse_gradients(
    model: Recurrence, window: _Window, forward: _Forward, grads: _LossGradients, roots: Array
) -> None:
    """Those of ψ: of the window's active entities, and of candidates outside of it."""
    users, items = (slice(window.bounds[k], window.bounds[k + 1]) for k in (2, 3))
    reads = [(0, roots[users], forward.source[users]), (1, grads.outside, grads.outside_source)]
    for side, rows, source in [*reads, (1, roots[items], forward.source[items])]:
        table = model.psi[side]
        grad = psi_gradient(rows, source, table.shape) if len(table) else None
        if grad is not None:
            table.grad = grad if table.grad is None else table.grad + grad


@compiled
def _compute_queries(
    window: _Window, weights: _Weights, states: _States, features: Array, num_items: int
) -> _Forward:
    arena, source = _read_roots(window, weights, states)
    gates = _compute_states(window, weights, arena, features[:num_items])
    d, n = arena.shape[1], len(window.item)
    hidden = np.empty((n, len(weights.hidden)), arena.dtype)
    fill_bias(hidden, weights.hidden_bias)
    add_product(hidden, arena, window.user_rows, transposed(weights.hidden[:, :d]))
    add_product(hidden, features, window.last_place, transposed(weights.hidden[:, d:]))
    relu_in_place(hidden)
    query = np.empty((n, d), arena.dtype)
    fill_bias(query, weights.query_bias)
    add_matmul_rows(0, 1, query, hidden, np.arange(n), transposed(weights.query))
    return _Forward(arena, source, gates, hidden, query)


@compiled
def _read_roots(window: _Window, weights: _Weights, states: _States) -> tuple[Array, Array]:
    """The arena, of which the rows are filled that no event writes, and their sources."""
    first, second, third, fourth, end = window.bounds
    arena = np.empty((len(window.children), weights.xi.shape[1]), weights.xi.dtype)
    source = np.empty(end, np.int64)
    _read_users(window.entry_users, weights, states, arena[first:second], source[first:second])
    _read_items(window.entry_items, weights, states, arena[second:third], source[second:third])
    _read_users(window.psi_users, weights, states, arena[third:fourth], source[third:fourth])
    _read_items(window.psi_items, weights, states, arena[fourth:end], source[fourth:end])
    return arena, source


@compiled
def _read_users(users: Array, weights: _Weights, states: _States, rows: Array, source: Array) -> None:
    learned = weights.xi[0], weights.psi_users, states.users_psi
    fill_rows(rows, source, *learned, states.users, states.users_moved, users)


@compiled
def _read_items(items: Array, weights: _Weights, states: _States, rows: Array, source: Array) -> None:
    learned = weights.xi[1], weights.psi_items, states.items_psi
    fill_rows(rows, source, *learned, states.items, states.items_moved, items)


@compiled
def _compute_states(window: _Window, weights: _Weights, arena: Array, features: Array) -> Array:
    """Fills the written rows of the arena; returns the gates."""
    d, first_psi, first_written = arena.shape[1], window.bounds[2], window.bounds[4]
    products = np.empty((len(features), 6 * d), arena.dtype)
    fill_bias(products, weights.bias)
    add_matmul_rows(0, 1, products, features, np.arange(len(features)), transposed(weights.feature))
    pre = products.reshape((-1, 3 * d))[window.place]
    bias, own, other = kernel_weights(weights.own_bias, weights.own, weights.other)
    entry_own = np.empty((first_psi, 3 * d), arena.dtype)
    root_other = np.empty((first_written, 3 * d), arena.dtype)
    project_roots(0, 1, window.bounds, window.children, own, other, arena, entry_own, root_other)
    gates, levels = np.empty((len(pre), 4 * d), arena.dtype), len(window.blocks) // 2
    lists = window.blocks, window.parents
    forward_levels(0, 1, 0, levels, *lists, bias, own, other, arena, entry_own, root_other, pre, gates)
    return gates


@compiled
def _compute_loss(
    window: _Window,
    weights: _Weights,
    states: _States,
    forward: _Forward,
    columns: _Columns,
    candidates: int,
    log_weight: float,
) -> tuple[Array, _LossGradients]:
    """(the events' losses, the gradients of their sum), chunk by chunk."""
    query, arena, (n, d), kind = forward.query, forward.arena, forward.query.shape, forward.query.dtype
    outside, source = np.empty((len(columns.outside), d), kind), np.empty(len(columns.outside), np.int64)
    _read_items(columns.outside, weights, states, outside, source)
    chunks, width = columns.row.shape
    lanes = VECTOR_BYTES // query.itemsize
    padded = -(-width // lanes) * lanes
    no_ids, no_bonus, no_shift = np.empty((0, 1), kind), np.empty(0, kind), np.empty((chunks, 0), kind)
    listed = np.full(n, -log_weight, kind), np.full(n, -np.inf, kind)
    bonuses = np.zeros(n + 1, np.int64), np.empty(0, np.int64), no_bonus
    indices = columns.item, columns.row, columns.since, columns.until, columns.item
    true = window.item, window.item_rows, window.item
    losses, true_grad, others_grad = np.empty(n, np.float64), np.empty(n, kind), np.empty(n, kind)
    query_grad, arena_grad, outside_grad = np.empty_like(query), np.zeros_like(arena), np.zeros_like(outside)
    column_grads, bias_grads = np.empty((1, padded, d), kind), np.empty((1, padded), kind)
    for c in range(chunks):
        compute_chunks(
            *(0, 1, c, c + 1, True, *listed, query, arena, outside, no_ids, *indices, *true, candidates, *bonuses),
            *(no_shift, losses, true_grad, others_grad, query_grad, column_grads, bias_grads, no_bonus),
        )
        scatter_gradients(
            *(0, 1, c, c + 1, query, columns.row, columns.item, window.item_rows, window.item, true_grad),
            *(column_grads, bias_grads, arena_grad, outside_grad, no_ids),
        )
    return losses, _LossGradients(query_grad, arena_grad, outside_grad, source)


@compiled
def _compute_gradients(
    window: _Window,
    weights: _Weights,
    forward: _Forward,
    loss: _LossGradients,
    features: Array,
    num_items: int,
    scale: float,
) -> tuple[Array, ...]:
    """The gradients of `_parameters`, of the features, and of the rows before the written ones, for `scale` times
    the loss. Of the latter, those that are not learned are undefined. Scales `loss` too."""
    _scale(loss.query, scale)
    _scale(loss.arena, scale)
    _scale(loss.outside, scale)
    hidden, hidden_bias, query, query_bias, items = _head_gradients(window, weights, forward, loss, features)
    states = _state_gradients(window, weights, forward, loss.arena, features[:num_items])
    own, other, own_bias, feature, bias, of_features, roots = states
    items[:num_items] += of_features
    xi = _xi_gradient(window, forward, loss, roots)
    return xi, own, other, own_bias, feature, bias, hidden, hidden_bias, query, query_bias, items, roots


@compiled
def _scale(rows: Array, factor: float) -> None:
    rows *= factor


@compiled
def _head_gradients(
    window: _Window, weights: _Weights, forward: _Forward, loss: _LossGradients, features: Array
) -> tuple[Array, ...]:
    """Of the head's two layers and of the features; adds to that of the arena."""
    d, events = forward.arena.shape[1], np.arange(len(forward.query))
    query_bias, upstream = _bias_gradient(loss.query, loss.query, False)
    query, of_hidden = part_gradients(upstream, forward.hidden, events, weights.query)
    hidden_bias, upstream = _bias_gradient(of_hidden, forward.hidden, True)
    left, right = np.ascontiguousarray(weights.hidden[:, :d]), np.ascontiguousarray(weights.hidden[:, d:])
    of_states, of_arena = part_gradients(upstream, forward.arena, window.user_rows, left)
    of_items, items = part_gradients(upstream, features, window.last_place, right)
    arena = loss.arena
    arena += of_arena
    return np.concatenate((of_states, of_items), 1), hidden_bias, query, query_bias, items


@compiled
def _bias_gradient(grad: Array, out: Array, relu: bool) -> tuple[Array, Array]:
    """(the gradient of a layer's bias, the one before its ReLU)."""
    before, bias = np.empty_like(grad), np.zeros(grad.shape[1], grad.dtype)
    relu_backward(grad, out, relu, before, bias)
    return bias, before


@compiled
def _state_gradients(
    window: _Window, weights: _Weights, forward: _Forward, arena_grad: Array, features: Array
) -> tuple[Array, ...]:
    """Of the GRUs' parameters, of the features, and of the rows before the written ones."""
    arena, (first_psi, first_written) = forward.arena, (window.bounds[2], window.bounds[4])
    d, levels = arena.shape[1], len(window.blocks) // 2
    gate_grads, state_grads = np.empty_like(forward.gates), np.empty_like(arena)
    own_rows, grad = _rolled(weights.own, 2 * d), arena_grad[first_written:]
    lists = window.blocks, window.parents, window.children
    matrices, results = (own_rows, weights.other), (gate_grads, state_grads)
    backward_levels(0, 1, 0, levels, *lists, *matrices, arena, forward.gates, grad, *results)

    reader_sums = np.empty((first_written - first_psi, 3 * d), arena.dtype)
    readers = window.bounds, window.psi_starts, window.psi_readers, first_written
    psi_gradients(0, 1, *readers, weights.other, gate_grads, reader_sums, state_grads)
    own, other, own_bias = np.empty_like(weights.own), np.empty_like(weights.other), np.empty_like(weights.own_bias)
    order, groups = group_by_reading(window.blocks, window.parents, first_psi, first_written)
    tables = gate_grads, reader_sums, arena
    weight_gradients(0, 1, order, groups, window.bounds, window.parents, *tables, own, other, own_bias)

    products = np.zeros((2 * len(features), 3 * d), arena.dtype)
    scatter_add(0, 1, products, gate_grads[:, d:], window.place)
    bias, upstream = _bias_gradient(products.reshape((-1, 6 * d)), products.reshape((-1, 6 * d)), False)
    feature, of_features = part_gradients(upstream, features, np.arange(len(features)), weights.feature)

    for side in range(2):
        start, stop = window.bounds[side], window.bounds[side + 1]
        learned = start + np.flatnonzero(forward.source[start:stop] == XI)
        root_gradients(0, 1, learned, side, first_written, window.children, *matrices, *results)
    roots = state_grads[:first_written]
    for row in range(first_written):
        if forward.source[row] >= XI:
            roots[row] += arena_grad[row]
    return _rolled(own, d), other, _rolled(own_bias, d), feature, bias, of_features, roots


@compiled
def _rolled(rows: Array, first: int) -> Array:
    """Rows [2, 3d, ...] from `first` on, then those before: between torch's order of gates and the kernels'."""
    out, count = np.empty_like(rows), rows.shape[1] - first
    out[:, :count] = rows[:, first:]
    out[:, count:] = rows[:, :first]
    return out


@compiled
def _xi_gradient(window: _Window, forward: _Forward, loss: _LossGradients, roots: Array) -> Array:
    xi, part = np.zeros((2, roots.shape[1]), roots.dtype), np.zeros(roots.shape[1], roots.dtype)
    for side in range(2):
        start, stop = window.bounds[side], window.bounds[side + 1]
        sum_xi(roots[start:stop], forward.source[start:stop], xi[side])
    sum_xi(loss.outside, loss.outside_source, part)
    xi[1] += part
    return xi
