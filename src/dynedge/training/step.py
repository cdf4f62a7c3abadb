"""One training step per window: loss, gradients, clipping, optimizer.

On a GPU the step of a window that launches the same kernels in every epoch is captured as a CUDA graph the second
time and replayed from then on. A step has some 400 launches that take the CPU 8 µs or more each; a replay is one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dynedge.models.base import Loss, Model, State, Step
from dynedge.models.capabilities import GraphCapturable, capable
from dynedge.ops.dispatch import warn_once
from dynedge.training.config import TrainingConfig
from dynedge.training.optimizer import Adam
from dynedge.training.precision import autocast


@dataclass(frozen=True, eq=False)
class CapturedStep:
    """A CUDA graph of a step, with the tensors it reads and writes."""

    batch: Any
    graph: torch.cuda.CUDAGraph
    negatives: Tensor | None
    numbers: Tensor  # the loss, the norm of the gradients, and what the model logs under `names`
    names: tuple[str, ...]


class TrainingStep:
    """Runs steps. Once a step is captured, the same `State` tensors are advanced in every epoch."""

    def __init__(self, model: Model, optimizer: Adam, config: TrainingConfig) -> None:
        self.model, self.optimizer, self.config = model, optimizer, config
        self._on_gpu = config.device.startswith("cuda")
        self._capturable = capable(model, GraphCapturable) if self._on_gpu else None
        self._state: State | None = None
        self._run_before: dict[int, Any] = {}
        self._captured: dict[int, CapturedStep] = {}
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def run(self, batch: Any, state: State, position: Step) -> tuple[Loss, Tensor]:
        """Returns the loss and the norm of the gradients; advances the state and updates the parameters."""
        if self._capturable is None:
            return self._run(batch, state, position)
        self._bind(state)
        if not self._capturable.is_graph_capturable(batch):
            return self._run(batch, state, position)
        if self._run_before.get(position.window) is not batch:
            self._run_before[position.window] = batch
            return self._run(batch, state, position)
        position = replace(position, negatives=self._capturable.sample_negatives(batch, position))
        captured = self._captured.get(position.window)
        if captured is None or captured.batch is not batch:
            captured = self._capture(batch, state, position)
            if captured is None:
                return self._run(batch, state, position)
            self._captured[position.window] = captured
        elif captured.negatives is not None and position.negatives is not None:
            captured.negatives.copy_(position.negatives)
        captured.graph.replay()
        value, norm, *logged = captured.numbers.unbind()
        return Loss(value, dict(zip(captured.names, logged, strict=True))), norm

    def _run(self, batch: Any, state: State, position: Step) -> tuple[Loss, Tensor]:
        with autocast(self.config):
            loss = self.model.loss(batch, state, position)
        self.optimizer.zero_grad()
        if loss.total.requires_grad:  # not for a model without parameters, or a window without examples
            loss.total.backward()  # type: ignore[no-untyped-call]
        norm = self.optimizer.clip(self.config.max_grad_norm)
        if self._on_gpu or bool(torch.isfinite(norm) & torch.isfinite(loss.total)):  # a GPU's numbers are read later
            self.optimizer.step()
        return Loss(loss.total.detach(), loss.log), norm

    def _bind(self, state: State) -> None:
        """Captured steps read and write the tensors of the first state: a new state is copied into them."""
        if self._state is None:
            self._state = State(state)
        for name, tensor in self._state.items():
            if tensor.is_cuda and state[name] is not tensor:
                tensor.copy_(state[name])
                state[name] = tensor

    def _capture(self, batch: Any, state: State, position: Step) -> CapturedStep | None:
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            torch.cuda.empty_cache()  # memory reserved for launched steps is of no use to captured ones
            self._pool = torch.cuda.graph_pool_handle()
        # One stream for all captures: memory freed by one can be reused by the next, on the same stream only.
        stream = self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        numbers = torch.zeros(16, dtype=torch.float64, device=self.config.device)
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    loss, norm = self._run(batch, state, position)
                    values = [loss.total, norm, *loss.log.values()]
                    for slot, value in zip(numbers, values, strict=False):
                        slot.copy_(value) if isinstance(value, Tensor) else slot.fill_(value)
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            self._capturable = None
            self._captured.clear()  # the memory they hold is needed now
            warn_once(f"CUDA graphs are not used, which is slower: {str(error).splitlines()[0]}")
            return None
        self.optimizer.zero_grad()  # the graph owns its gradients
        torch.cuda.current_stream().wait_stream(stream)
        return CapturedStep(batch, graph, position.negatives, numbers[: len(values)], tuple(loss.log))
