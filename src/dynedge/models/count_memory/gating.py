"""The two learned networks of the count memory: the gating network over the sources, and the rescaling network.

Legend: m examples, K candidates of each (the true item first), M sources (see collect_examples.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.models.count_memory.candidate_buffer import QUERY_FEATURES
from dynedge.models.count_memory.collect_examples import Examples
from dynedge.models.count_memory.contexts import CONTEXT_SOURCES
from dynedge.models.count_memory.network_kernels import FIXED_INPUTS, SEEN_INPUT, NetworkWeights
from dynedge.utils.array_type import Array

LR_SCALE = 5.0  # factor of the learning rate: a few hundred weights that decide everything, against the recurrence's
MIN_DEVIATION = 0.1  # of an input: one that varies less in the sample may vary more later
_QUERY = slice(-QUERY_FEATURES, None)  # the last inputs


class Mixture(nn.Module):
    """Gating network (softmax over sources) and rescaling network (a factor for the probability of each candidate).

    With a hidden size of 0 the gating network is constant weights, and the rescaling network is one factor for the
    user's own items. Both learn from standardized inputs (`standardize`): from inputs as they are they learn more
    slowly and end less accurate. The compiled kernels read the inputs as they are, see `weights`.
    """

    mean: Tensor  # float[item inputs + QUERY_FEATURES]: subtracted from the inputs
    scale: Tensor  # and the factor that they are then multiplied by

    def __init__(self, logits: Tensor, gating_hidden: int, rescaling_hidden: int, rescaling_second: int = 0) -> None:
        super().__init__()
        sources = len(logits)
        self.logits = nn.Parameter(logits)
        self.gating_in = nn.Linear(QUERY_FEATURES, gating_hidden) if gating_hidden else None
        self.gating_out = nn.Parameter(torch.zeros(sources, gating_hidden))
        self._item_inputs = FIXED_INPUTS + sources - 1 - CONTEXT_SOURCES
        inputs = self._item_inputs + QUERY_FEATURES
        self.rescaling_in = nn.Linear(inputs, rescaling_hidden) if rescaling_hidden else None
        has_second = rescaling_hidden and rescaling_second
        self.rescaling_second = nn.Linear(rescaling_hidden, rescaling_second) if has_second else None
        self.rescaling_out = nn.Parameter(torch.zeros(rescaling_second if has_second else rescaling_hidden))
        self.rescaling_seen = nn.Parameter(torch.zeros(1))
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(inputs))
        for parameter in self.parameters():
            parameter.lr_scale = LR_SCALE  # type: ignore[attr-defined]

    @torch.no_grad()
    def standardize(self, examples: Examples) -> None:
        """Sets the mean and the scale of the inputs to those of the candidates and queries of these examples."""
        of_items = examples.inputs.float().flatten(0, 1)
        of_items = of_items[(of_items != 0).any(1)]
        for part, inputs in ((slice(self._item_inputs), of_items), (_QUERY, examples.query_features.float())):
            if len(inputs):
                self.mean[part] = inputs.mean(0)
                self.scale[part] = 1 / inputs.std(0, correction=0).clamp_min(MIN_DEVIATION)

    def weights(self) -> NetworkWeights:
        """Returns the weights as arrays, for the compiled kernels."""

        def array(tensor: Tensor) -> Array:  # a query takes little longer than a copy of everything
            tensor = tensor.detach()
            return tensor.numpy() if tensor.dtype == torch.float32 and tensor.is_cpu else tensor.float().cpu().numpy()

        mean, scale = array(self.mean), array(self.scale)
        gating = np.zeros((0, QUERY_FEATURES), np.float32), np.zeros(0, np.float32)
        if self.gating_in is not None:
            layer = array(self.gating_in.weight), array(self.gating_in.bias)
            gating = for_raw_inputs(*layer, mean[_QUERY], scale[_QUERY])
        rows, bias = np.zeros((0, self._item_inputs + QUERY_FEATURES), np.float32), np.zeros(0, np.float32)
        if self.rescaling_in is not None:
            rows, bias = for_raw_inputs(array(self.rescaling_in.weight), array(self.rescaling_in.bias), mean, scale)
        second = np.zeros((0, len(bias)), np.float32), np.zeros(0, np.float32)
        if self.rescaling_second is not None:
            second = array(self.rescaling_second.weight), array(self.rescaling_second.bias)
        of_item, of_query = (np.ascontiguousarray(part) for part in np.split(rows, [self._item_inputs], 1))
        last = (array(part) for part in (self.rescaling_out, self.rescaling_seen))
        gates = array(self.gating_out), array(self.logits)
        return NetworkWeights(*gating, *gates, of_item, of_query, bias, *second, *last)

    def loss(self, examples: Examples) -> tuple[Tensor, Tensor]:
        """Returns ([m], [m]): the negative log probability of the true item, before and after rescaling."""
        with torch.autocast(self.logits.device.type, enabled=False):  # probabilities are too small for half precision
            return self._loss(examples)

    def _loss(self, examples: Examples) -> tuple[Tensor, Tensor]:
        dtype = self.logits.dtype
        query, mask = examples.query_features.to(dtype), examples.source_mask
        probability, inputs = examples.probability.to(dtype), examples.inputs.to(dtype)
        logits = self.logits.expand(len(query), -1)
        if self.gating_in is not None:
            layer = self.gating_in.weight, self.gating_in.bias, self.mean[_QUERY], self.scale[_QUERY]
            logits = logits + F.linear(query, *for_raw_inputs(*layer)).relu() @ self.gating_out.T
        weight = logits.masked_fill(~mask, -torch.inf).softmax(1)
        mixed = torch.log(torch.bmm(probability, weight[:, :, None]).squeeze(2).clamp_min(1e-30))
        rescaled = self.rescale(query, inputs, mixed.detach() + examples.log_weight.to(dtype))
        return -mixed[:, 0], -F.log_softmax(rescaled, 1)[:, 0]

    def rescale(self, query: Tensor, inputs: Tensor, logits: Tensor) -> Tensor:
        """Returns [m, K]: the log probabilities plus the logarithms of the candidates' factors."""
        log_factor = self.rescaling_seen * inputs[:, :, SEEN_INPUT]
        if self.rescaling_in is not None:
            layer = self.rescaling_in
            weight, bias = for_raw_inputs(layer.weight, layer.bias, self.mean, self.scale)
            of_item, of_query = torch.split(weight, [self._item_inputs, QUERY_FEATURES], 1)
            hidden = inputs @ of_item.T + (query @ of_query.T + bias)[:, None]
            is_candidate = (inputs != 0).any(2)  # what no context has seen is left as it is
            if self.rescaling_second is not None:
                hidden = self.rescaling_second(hidden.relu())
            log_factor = log_factor + (hidden.relu() @ self.rescaling_out) * is_candidate
        return logits + log_factor


def for_raw_inputs(weight: Any, bias: Any, mean: Any, scale: Any) -> tuple[Any, Any]:
    """Returns the weight and the bias by which a layer of standardized inputs reads them as they are.

    All are arrays, or all are tensors: weight [hidden, n], bias [hidden], mean and scale [n].
    """
    scaled = weight * scale
    return scaled, bias - scaled @ mean
