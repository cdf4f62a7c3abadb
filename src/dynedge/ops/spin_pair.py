"""Two threads walk through steps together: each step has two halves, and needs both halves of the steps before it.

A level of the recurrence takes two or three microseconds, less than it takes to wake a thread. So the other thread is
called once for all steps, and the first one begins alone: whenever the other has arrived, it takes over the second
halves. They wait for each other by looking at a number in memory, about 0.1 µs a step. A thread that has looked often
enough in vain lets others run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

ARRIVED, TAKEN, FIRST, SECOND, IN_VAIN = 0, 8, 16, 24, 32  # of the shared numbers, each on a cache line of its own
NEVER = 2**62
PATIENCE = 4000  # looks before a thread lets others run: some ten microseconds


def shared() -> Array:
    """The numbers two threads share: has the other arrived, from which step on, and how far each has come.

    And how often the first one let others run: often, if the second one's core has other things to do.
    """
    numbers = np.zeros(40, np.int64)
    numbers[TAKEN] = NEVER
    return numbers


@compiled
def hand_over(numbers: Array, step: int) -> bool:
    """For the first thread, before a step that it began alone: does the other do its second half?"""
    if load_acquire(numbers, ARRIVED) == 0:
        return False
    store_release(numbers, TAKEN, step)
    return True


@compiled
def arrive(numbers: Array) -> int:
    """For the second thread: from which step on it is to do second halves."""
    store_release(numbers, ARRIVED, 1)
    looks = 0
    while load_acquire(numbers, TAKEN) == NEVER:
        looks = _again(looks)
    return load_acquire(numbers, TAKEN)


@compiled
def wait(numbers: Array, who: int, steps: int) -> None:
    """Until the other has done that many steps."""
    looks = 0
    while load_acquire(numbers, who) < steps:
        looks = _again(looks)
        if looks == PATIENCE and who == SECOND:
            numbers[IN_VAIN] += 1


_let_others_run = types.ExternalFunction("sched_yield", types.int32())


@compiled
def _again(looks: int) -> int:
    if looks < PATIENCE:
        return looks + 1
    _let_others_run()
    return looks


@intrinsic
def load_acquire(_: Any, numbers: Any, at: Any) -> Any:
    """numbers[at], and with it all that was written before it was told."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.load_atomic(_place(context, b, signature, args), "acquire", 8)

    return types.int64(numbers, types.int64), generate


@intrinsic
def fetch_increment(_: Any, numbers: Any, at: Any) -> Any:
    """numbers[at], which is one higher then: of several threads one alone is told 0."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        one = ir.Constant(ir.IntType(64), 1)
        return b.atomic_rmw("add", _place(context, b, signature, args), one, "acq_rel")

    return types.int64(numbers, types.int64), generate


@intrinsic
def store_release(_: Any, numbers: Any, at: Any, value: Any) -> Any:
    """numbers[at] = value, after all that was written before."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        b.store_atomic(args[2], _place(context, b, signature, args), "release", 8)
        return context.get_dummy_value()

    return types.void(numbers, types.int64, types.int64), generate


def _place(context: Any, b: Any, signature: Any, args: Any) -> Any:
    array = context.make_array(signature.args[0])(context, b, args[0])
    return b.gep(b.bitcast(array.data, ir.IntType(64).as_pointer()), [args[1]])
