"""Two threads that run a sequence of steps in lockstep, synchronised by spinning on shared memory.

Each step has two halves and depends on both halves of the step before it. A level of the recurrence takes two or
three microseconds, less than waking a thread does. So the second thread is started once for all steps while the first
begins alone; as soon as the second has arrived it computes the second halves. Waiting by polling a number in memory
costs about 0.1 µs per step; a thread that has polled PATIENCE times without success yields its core.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

# Slots of the shared array, each on its own cache line: whether the second thread has arrived, the step from which it
# computes second halves, how many steps each thread has finished, and how often the first had to yield.
ARRIVED, HANDOVER, FIRST, SECOND, YIELDS = 0, 8, 16, 24, 32
NEVER = 2**62
PATIENCE = 4000  # polls before a thread yields: about ten microseconds


def new_shared() -> Array:
    """int64 array through which two threads synchronise."""
    shared = np.zeros(40, np.int64)
    shared[HANDOVER] = NEVER
    return shared


@compiled
def arrive(shared: Array) -> int:
    """For the second thread: announces itself and returns the step from which it computes second halves."""
    store_release(shared, ARRIVED, 1)
    polls = 0
    while load_acquire(shared, HANDOVER) == NEVER:
        polls = _poll_again(polls)
    return load_acquire(shared, HANDOVER)


@compiled
def begin_step(second: int, shared: Array, step: int, handover: int) -> tuple[bool, int]:
    """For both threads, before a step: (whether this one computes both halves, the step of the handover)."""
    if second:
        _wait(shared, FIRST, step)
        return False, handover
    if handover == NEVER and _hand_over(shared, step):
        handover = step
    if step > handover:
        _wait(shared, SECOND, step)
    return handover == NEVER, handover


@compiled
def end_step(second: int, shared: Array, step: int) -> None:
    """For both threads, after a step: publishes what it wrote."""
    store_release(shared, SECOND if second else FIRST, step + 1)


@compiled
def finish_steps(second: int, shared: Array, steps: int, handover: int) -> None:
    """For both threads, after the last step. A second thread that arrives later has nothing to do."""
    if not second:
        if handover == NEVER:
            store_release(shared, HANDOVER, steps)
        else:
            _wait(shared, SECOND, steps)


@compiled
def _hand_over(shared: Array, step: int) -> bool:
    """For the first thread, before a step while it is alone: hands second halves over if the other has arrived."""
    if load_acquire(shared, ARRIVED) == 0:
        return False
    store_release(shared, HANDOVER, step)
    return True


@compiled
def _wait(shared: Array, slot: int, steps: int) -> None:
    """Waits until the other thread has finished that many steps."""
    polls = 0
    while load_acquire(shared, slot) < steps:
        polls = _poll_again(polls)
        if polls == PATIENCE and slot == SECOND:
            shared[YIELDS] += 1


_sched_yield = types.ExternalFunction("sched_yield", types.int32())


@compiled
def _poll_again(polls: int) -> int:
    """Number of polls so far, this one included; yields the core once patience has run out."""
    if polls < PATIENCE:
        return polls + 1
    _sched_yield()
    return polls


@intrinsic
def load_acquire(_: Any, shared: Any, at: Any) -> Any:
    """Atomic load of shared[at]: sees all that was written before the matching `store_release`."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.load_atomic(_address(context, b, signature, args), "acquire", 8)

    return types.int64(shared, types.int64), generate


@intrinsic
def fetch_increment(_: Any, shared: Any, at: Any) -> Any:
    """Atomically increments shared[at] and returns its old value: of several threads, exactly one gets 0."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        one = ir.Constant(ir.IntType(64), 1)
        return b.atomic_rmw("add", _address(context, b, signature, args), one, "acq_rel")

    return types.int64(shared, types.int64), generate


@intrinsic
def store_release(_: Any, shared: Any, at: Any, value: Any) -> Any:
    """Atomic store shared[at] = value, after all earlier writes."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        b.store_atomic(args[2], _address(context, b, signature, args), "release", 8)
        return context.get_dummy_value()

    return types.void(shared, types.int64, types.int64), generate


def _address(context: Any, b: Any, signature: Any, args: Any) -> Any:
    array = context.make_array(signature.args[0])(context, b, args[0])
    return b.gep(b.bitcast(array.data, ir.IntType(64).as_pointer()), [args[1]])
