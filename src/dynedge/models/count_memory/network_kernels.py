"""The two networks of the count memory, evaluated with plain loops; gating.py has them as torch modules.

The gating network turns the query's features into a weight for every source (`compute_gates`). The rescaling network
turns the features of a candidate and its probability under every source into the logarithm of a factor.

Legend: n candidates, H half-lives, M = 1 + H + CONTEXT_SOURCES sources: uniform, popularity by half-life, contexts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.models.count_memory.candidate_buffer import CandidateBuffer, add_rows
from dynedge.models.count_memory.contexts import CONTEXT_SOURCES, CountSettings
from dynedge.models.count_memory.event_index import EventIndex
from dynedge.models.count_memory.features import ITEM_FEATURES, SEEN, item_features
from dynedge.models.count_memory.queries import Query
from dynedge.ops.gather_matmul import VECTOR_BYTES, add_matmul
from dynedge.ops.vector_math import log
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled, compiled_without_counting

FIXED_INPUTS = CONTEXT_SOURCES + ITEM_FEATURES  # of the rescaling network per item; then popularity by half-life
SEEN_INPUT = CONTEXT_SOURCES + SEEN  # the input that is 1 for the user's own items
NEGLIGIBLE = 1e-3  # a probability under a source far below this is close to an input of 0
LANES = VECTOR_BYTES // 4  # numbers of a vector
VECTORISED = {"reassoc", "contract", "nsz"}  # sums of floats in any order


class NetworkWeights(NamedTuple):
    """The weights of both networks as float32 arrays; hidden sizes may be 0."""

    gating_in: Array  # [hidden, QUERY_FEATURES]
    gating_bias: Array  # [hidden]
    gating_out: Array  # [M, hidden]
    gating_logits: Array  # [M]: without the hidden layer
    rescaling_in: Array  # [hidden, FIXED_INPUTS + H]
    rescaling_query: Array  # [hidden, QUERY_FEATURES]
    rescaling_bias: Array  # [hidden]
    rescaling_second: Array  # [second, hidden]; no rows: there is no second layer
    second_bias: Array  # [second]
    rescaling_out: Array  # [second, or else hidden]
    rescaling_seen: Array  # [1]: added to the log factor of the user's own items


@compiled
def compute_gates(networks: NetworkWeights, buffer: CandidateBuffer, half_lives: int, out: Array) -> None:
    """Evaluates the gating network into out[M]: a softmax over the sources that have seen something."""
    hidden = np.zeros(len(networks.gating_bias), np.float32)
    for a in range(len(hidden)):
        total = networks.gating_bias[a]
        for b in range(len(buffer.query_features)):
            total += networks.gating_in[a, b] * buffer.query_features[b]
        hidden[a] = max(total, np.float32(0))
    top = np.float32(-np.inf)
    for m in range(len(out)):
        total = networks.gating_logits[m]
        for a in range(len(hidden)):
            total += networks.gating_out[m, a] * hidden[a]
        if m > half_lives and buffer.totals[m - 1 - half_lives] <= 0:
            total = np.float32(-np.inf)
        out[m] = total
        top = max(top, total)
    total = np.float32(0)
    for m in range(len(out)):
        out[m] = np.exp(out[m] - top)
        total += out[m]
    for m in range(len(out)):
        out[m] /= total


@compiled
def rescaling_inputs(
    index: EventIndex,
    total: Array,
    settings: CountSettings,
    query: Query,
    buffer: CandidateBuffer,
    others: int,
    slots: Array,
) -> Array:
    """Returns float32[FIXED_INPUTS + H, n]: log probabilities by source, item features, popularity by half-life.

    There is a column for each of the candidates in `slots`, and more to fill whole vectors.
    """
    add_rows(buffer, others, slots)
    width = (len(slots) + LANES - 1) // LANES * LANES
    out, found = np.zeros((FIXED_INPUTS + len(total), width), np.float32), np.empty((3, len(slots)), np.int64)
    factor, of_half_life = np.zeros(CONTEXT_SOURCES, np.float32), np.zeros(len(total), np.float32)
    for s in range(CONTEXT_SOURCES):
        if buffer.totals[s] > 0:
            factor[s] = 1 / (NEGLIGIBLE * buffer.totals[s])
    for h in range(len(total)):
        if total[h] > 0:
            of_half_life[h] = index.num_items / total[h]
    _write_inputs(buffer, slots, factor, of_half_life, out)
    item_features(index, settings, query, buffer, slots, found, out[CONTEXT_SOURCES:FIXED_INPUTS])
    return out


@compiled_without_counting(error_model="numpy")
def _write_inputs(buffer: CandidateBuffer, slots: Array, factor: Array, of_half_life: Array, out: Array) -> None:
    """Writes the logarithms of the probabilities and of the popularity."""
    for j in range(len(slots)):
        slot = slots[j]
        for s in range(CONTEXT_SOURCES):
            out[s, j] = factor[s] * buffer.sums[slot, s]
        for h in range(len(of_half_life)):
            out[FIXED_INPUTS + h, j] = of_half_life[h] * buffer.popularity[slot, h]
    scale = np.float32(0.3)
    for rows in (out[:CONTEXT_SOURCES], out[FIXED_INPUTS:]):
        for s in range(len(rows)):
            for j in range(out.shape[1]):
                rows[s, j] = scale * log(np.float32(1) + rows[s, j])


@compiled
def _rescaling_base(networks: NetworkWeights, buffer: CandidateBuffer) -> Array:
    """Returns float32[hidden]: what all candidates of a query have in common."""
    base = networks.rescaling_bias.copy()
    for a in range(len(base)):
        for b in range(len(buffer.query_features)):
            base[a] += networks.rescaling_query[a, b] * buffer.query_features[b]
    return base


@compiled
def _second_layer(networks: NetworkWeights, units: Array) -> Array:
    """Returns float32[second, n] before its rectifier, given the first layer's [hidden, n] before its own."""
    for a in range(len(units)):
        for j in range(units.shape[1]):
            units[a, j] = max(units[a, j], np.float32(0))
    second = len(networks.second_bias)
    out, rows = np.empty((second, units.shape[1]), np.float32), np.arange(second)
    for a in range(second):
        out[a] = networks.second_bias[a]
    add_matmul(out, 0, rows, networks.rescaling_second, 0, rows, second, units)
    return out


@compiled(fastmath=VECTORISED)
def rescale(
    index: EventIndex,
    of_all: Array,
    settings: CountSettings,
    networks: NetworkWeights,
    query: Query,
    buffer: CandidateBuffer,
    others: int,
    slots: Array,
) -> np.float32:
    """Multiplies the probabilities of the candidates in `slots` by their factors; returns the mean log factor."""
    log_factor = np.zeros(len(slots), np.float32)
    for j in range(len(slots)):
        log_factor[j] = networks.rescaling_seen[0] if buffer.seen[slots[j]] else 0.0
    hidden = len(networks.rescaling_bias)
    if hidden:
        inputs = rescaling_inputs(index, of_all, settings, query, buffer, others, slots)
        units, rows = np.empty((hidden, inputs.shape[1]), np.float32), np.arange(hidden)
        base = _rescaling_base(networks, buffer)
        for a in range(hidden):
            units[a] = base[a]
        add_matmul(units, 0, rows, networks.rescaling_in, 0, rows, hidden, inputs)
        if len(networks.second_bias):
            units, hidden = _second_layer(networks, units), len(networks.second_bias)
        for a in range(hidden):
            weight, of_unit = networks.rescaling_out[a], units[a]
            for j in range(len(slots)):
                log_factor[j] += weight * max(of_unit[j], np.float32(0))
    total = np.float32(0)
    for j in range(len(slots)):
        if log_factor[j] != 0:
            buffer.probability[slots[j]] *= np.exp(log_factor[j])
        total += log_factor[j]
    return total / max(len(slots), 1)
