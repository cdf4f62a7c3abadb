"""One training step a window: loss, gradients, clipping, optimiser.

On a GPU a window whose work is the same each epoch is recorded the second time it comes (a CUDA graph) and only
replayed from then on. A step is some 400 launches that take the CPU 8 µs or more each; a replay is one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dynedge.models.base import Loss, Model, State, Step
from dynedge.ops.dispatch import warn_once
from dynedge.training.config import TrainingConfig
from dynedge.training.optimizer import Adam
from dynedge.training.precision import autocast


@dataclass(frozen=True, eq=False)
class Recorded:
    """A step to be replayed. `numbers`: the loss, the norm of the gradients, and what the model logs, by `names`."""

    prepared: Any
    graph: torch.cuda.CUDAGraph
    drawn: Tensor | None
    numbers: Tensor
    names: tuple[str, ...]


class Steps:
    """Takes steps; the same `State` tensors are moved forward in every epoch, once anything is recorded."""

    def __init__(self, model: Model, optimiser: Adam, config: TrainingConfig) -> None:
        self.model, self.optimiser, self.config = model, optimiser, config
        self._recording = self._on_gpu = config.device.startswith("cuda")
        self._state: State | None = None
        self._met: dict[int, Any] = {}
        self._recorded: dict[int, Recorded] = {}
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def take(self, prepared: Any, state: State, step: Step) -> tuple[Loss, Tensor]:
        """(what the window cost, the norm of its gradients); the state moves past it, and parameters move."""
        if not self._recording:
            return self._take(prepared, state, step)
        self._bind(state)
        if not self.model.repeats(prepared):
            return self._take(prepared, state, step)
        if self._met.get(step.window) is not prepared:
            self._met[step.window] = prepared
            return self._take(prepared, state, step)
        step = replace(step, drawn=self.model.draw(prepared, step))
        recorded = self._recorded.get(step.window)
        if recorded is None or recorded.prepared is not prepared:
            recorded = self._record(prepared, state, step)
            if recorded is None:
                return self._take(prepared, state, step)
            self._recorded[step.window] = recorded
        elif recorded.drawn is not None and step.drawn is not None:
            recorded.drawn.copy_(step.drawn)
        recorded.graph.replay()
        value, norm, *told = recorded.numbers.unbind()
        return Loss(value, dict(zip(recorded.names, told, strict=True))), norm

    def _take(self, prepared: Any, state: State, step: Step) -> tuple[Loss, Tensor]:
        with autocast(self.config):
            loss = self.model.loss(prepared, state, step)
        self.optimiser.zero_grad()
        if loss.total.requires_grad:  # not where a model has nothing to learn, or the window nothing to learn from
            loss.total.backward()  # type: ignore[no-untyped-call]
        norm = self.optimiser.clip(self.config.max_grad_norm)
        if self._on_gpu or bool(torch.isfinite(norm) & torch.isfinite(loss.total)):  # a GPU's numbers are read later
            self.optimiser.step()
        return Loss(loss.total.detach(), loss.log), norm

    def _bind(self, state: State) -> None:
        """What is recorded reads and writes the tensors of the first state: a new one moves in there."""
        if self._state is None:
            self._state = State(state)
        for name, tensor in self._state.items():
            if tensor.is_cuda and state[name] is not tensor:
                tensor.copy_(state[name])
                state[name] = tensor

    def _record(self, prepared: Any, state: State, step: Step) -> Recorded | None:
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            torch.cuda.empty_cache()  # what was kept for launched steps is of no use to recorded ones
            self._pool = torch.cuda.graph_pool_handle()
        # One stream for all: what one recording has freed, the next can use, but on the same stream only.
        stream = self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        numbers = torch.zeros(16, dtype=torch.float64, device=self.config.device)
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    loss, norm = self._take(prepared, state, step)
                    parts = [loss.total, norm, *loss.log.values()]
                    for place, part in zip(numbers, parts, strict=False):
                        place.copy_(part) if isinstance(part, Tensor) else place.fill_(part)
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            self._recording = False
            self._recorded.clear()  # the memory they hold is needed now
            warn_once(f"steps are launched one by one, which is slower: {str(error).splitlines()[0]}")
            return None
        self.optimiser.zero_grad()  # what was recorded owns its gradients
        torch.cuda.current_stream().wait_stream(stream)
        return Recorded(prepared, graph, step.drawn, numbers[: len(parts)], tuple(loss.log))
