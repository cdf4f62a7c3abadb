"""One training step per window: loss, gradients, clipping, optimizer.

On a GPU a step that launches the same kernels again is captured as a CUDA graph the second time and replayed from
then on: that of a window in every epoch (`GraphCapturable`), or of all windows of a size (`SharesGraph`). A step has
some 400 launches that take the CPU 8 µs or more each; a replay is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from traceback import clear_frames
from typing import Any

import torch
from torch import Tensor

from dynedge.models.base import Loss, Model, State, Step
from dynedge.models.capabilities import GraphCapturable, SharesGraph, capable
from dynedge.ops.dispatch import warn_once
from dynedge.training.config import TrainingConfig
from dynedge.training.optimizer import Adam
from dynedge.training.precision import autocast


@dataclass(frozen=True, eq=False)
class CapturedStep:
    """A CUDA graph of a step, with the tensors it reads and writes."""

    batch: Any  # whose tensors the graph reads beside its inputs; None: only its inputs
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    numbers: Tensor  # the loss, the norm of the gradients, and what the model logs under `names`
    names: tuple[str, ...]

    def replay(self, inputs: tuple[Tensor, ...]) -> tuple[Loss, Tensor]:
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.graph.replay()
        value, norm, *logged = self.numbers.clone().unbind()  # the next replay overwrites them
        return Loss(value, dict(zip(self.names, logged, strict=True))), norm


class TrainingStep:
    """Runs steps. Once a step is captured, the same `State` tensors are advanced in every epoch."""

    def __init__(self, model: Model, optimizer: Adam, config: TrainingConfig) -> None:
        self.model, self.optimizer, self.config = model, optimizer, config
        self._on_gpu = config.device.startswith("cuda")
        self._capturable = capable(model, GraphCapturable) if self._on_gpu else None
        self._sharing = capable(model, SharesGraph) if self._on_gpu else None
        self._state: State | None = None
        self._run_before: dict[Any, Any] = {}
        self._captured: dict[Any, CapturedStep] = {}
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def run(self, batch: Any, state: State, position: Step) -> tuple[Loss, Tensor]:
        """Returns the loss and the norm of the gradients; advances the state and updates the parameters."""
        if self._sharing is not None:
            inputs = self._sharing.step_inputs(batch, position)
            return self._run_or_replay(tuple(part.shape for part in inputs), None, self._sharing.loss_of, inputs)
        if self._capturable is None:
            return self._run(lambda: self.model.loss(batch, state, position))
        self._bind(state)
        if not self._capturable.is_graph_capturable(batch):
            return self._run(lambda: self.model.loss(batch, state, position))
        negatives = self._capturable.sample_negatives(batch, position)

        def compute_window(*inputs: Tensor) -> Loss:
            return self.model.loss(batch, state, replace(position, negatives=inputs[0] if inputs else None))

        return self._run_or_replay(position.window, batch, compute_window, () if negatives is None else (negatives,))

    def _run_or_replay(
        self, key: Any, batch: Any, compute: Callable[..., Loss], inputs: tuple[Tensor, ...]
    ) -> tuple[Loss, Tensor]:
        """Runs the first step of a key and a batch, captures the second, and replays all later ones."""
        if key not in self._run_before or self._run_before[key] is not batch:
            self._run_before[key] = batch
            return self._run(lambda: compute(*inputs))
        captured = self._captured.get(key)
        if captured is None or captured.batch is not batch:
            captured = self._capture(batch, compute, inputs)
            if captured is None:
                return self._run(lambda: compute(*inputs))
            self._captured[key] = captured
        return captured.replay(inputs)

    def _run(self, compute: Callable[[], Loss]) -> tuple[Loss, Tensor]:
        with autocast(self.config):
            loss = compute()
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

    def _capture(self, batch: Any, compute: Callable[..., Loss], inputs: tuple[Tensor, ...]) -> CapturedStep | None:
        graph, inputs = torch.cuda.CUDAGraph(), tuple(part.clone() for part in inputs)
        if self._pool is None:
            torch.cuda.empty_cache()  # memory reserved for launched steps is of no use to captured ones
            self._pool = torch.cuda.graph_pool_handle()
        # One stream for all captures: memory freed by one can be reused by the next, on the same stream only.
        stream = self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        numbers = torch.zeros(16, dtype=torch.float64, device=self.config.device)
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        random_state = generator.clone_state()
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    loss, norm = self._run(lambda: compute(*inputs))
                    values = [loss.total, norm, *loss.log.values()]
                    for slot, value in zip(numbers, values, strict=False):
                        slot.copy_(value) if isinstance(value, Tensor) else slot.fill_(value)
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            self._capturable = self._sharing = None
            self._captured.clear()  # the memory they hold is needed now
            # A failed capture leaves the generator's state unusable: dropout would fail.
            generator.graphsafe_set_state(random_state)
            first = error.__context__ or error  # the end of a failed capture fails too
            for failed in (first, error):  # their frames hold the step's graph, which belongs to the capture's stream
                clear_frames(failed.__traceback__)
            warn_once(f"CUDA graphs are not used, which is slower: {str(first).splitlines()[0]}")
            return None
        self.optimizer.zero_grad()  # the graph owns its gradients
        torch.cuda.current_stream().wait_stream(stream)
        return CapturedStep(batch, graph, inputs, numbers[: len(values)], tuple(loss.log))
