"""What a step must not do if it is to be captured. The captures themselves are tested in tests/engine, on a GPU."""

import pytest
import torch
from torch import nn

from gradsieve.training.engines import CaptureError, fixed_buffers


def test_a_buffer_that_is_written_into_stays_and_one_that_is_replaced_is_put_back():
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    norm, mean = network[1], network[1].running_mean
    with fixed_buffers([network]):
        network(torch.randn(4, 2))
    assert norm.running_mean is mean
    with pytest.raises(CaptureError, match="replaces its buffer 'running_mean' in a step"), fixed_buffers([network]):
        norm.running_mean = norm.running_mean + 1
    assert norm.running_mean is mean
    with pytest.raises(RuntimeError), fixed_buffers([network]):  # another error is not hidden
        norm.running_mean = torch.zeros(3) + torch.zeros(2)
    assert norm.running_mean is mean
