"""list_values: the score offsets of listed items, looked up by bucket and scaled by gates of their event.

Legend: n events, L listed items of all events together, B buckets, S sources that list items, each with a gate.

    out[e] = Σ_s values[bucket[e, s]] · (1 + gates[k, s])  for entry e of event k; bucket B has the value 0

Differentiable once in the values and the gates. On a CPU sums run over the entries in order, and an event's sum over
the sources likewise: the same bits for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dynedge.ops.list_values import cpu, reference

__all__ = ["list_values"]

BY_DEVICE: dict[str, Callable[..., Tensor]] = {"cpu": cpu.list_values}


def list_values(values: Tensor, gates: Tensor, start: Tensor, event: Tensor, bucket: Tensor) -> Tensor:
    """[L] for values [B], gates [n, S], start int64[n + 1], event int64[L] (ascending) and bucket int64[L, S].

    The entries of event k are start[k] to start[k + 1] − 1.
    """
    compute = BY_DEVICE.get(values.device.type, reference.list_values)
    return compute(values, gates.to(values.dtype), start, event, bucket)
