"""bucket_values by Triton against the reference: values and gradients."""

from __future__ import annotations

import pytest
import torch
from ops.triton_interpreter import DEVICE

from dynedge.ops.bucket_values import bucket_values, reference, triton

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("entries", "buckets"), [(0, 3), (1, 1), (700, 5), (65, 129), (300, 260)])
def test_values_and_gradients(entries: int, buckets: int) -> None:
    torch.manual_seed(0)
    values, bucket = torch.randn(buckets), torch.randint(buckets + 1, (entries, 2))
    bucket[::3] = buckets  # not listed
    grad = torch.randn(entries, 2)
    expected_values = values.clone().requires_grad_()
    expected = reference.bucket_values(expected_values, bucket)
    expected.backward(grad)
    own = values.to(DEVICE).requires_grad_()
    out = triton.bucket_values(own, bucket.to(DEVICE))
    assert torch.equal(out.detach().cpu(), expected.detach())
    out.backward(grad.to(DEVICE))
    torch.testing.assert_close(own.grad.cpu(), expected_values.grad, rtol=1e-5, atol=1e-5)


def test_on_a_cpu_it_is_the_reference() -> None:
    values, bucket = torch.randn(4), torch.tensor([[4, 0], [3, 4]])
    assert torch.equal(
        bucket_values(values, bucket),
        torch.stack([values.new_tensor([0, values[0]]), values.new_tensor([values[3], 0])]),
    )
