"""Memory is checked before it is allocated."""

import pytest
import torch
from torch import nn

from gradsieve.errors import InputError
from gradsieve.scores.memory import available_bytes, in_words, require_memory, row_gradient_bytes


def test_bytes_of_row_gradients_count_what_is_trainable():
    network = nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 3))
    assert row_gradient_bytes(network, rows=7) == 7 * 4 * 200
    network[0].requires_grad_(False)
    assert row_gradient_bytes(network, rows=7) == 7 * 4 * 60
    assert row_gradient_bytes(network.bfloat16(), rows=7) == 7 * 4 * 60
    assert row_gradient_bytes(network.double(), rows=7) == 7 * 8 * 60


def test_refusal_states_both_amounts_and_the_way_out():
    require_memory("sever", 1000, "cpu")
    with pytest.raises(InputError, match=r"sever needs 1000.0 TB on cpu, which has .* left.*smaller batch, or prl-l"):
        require_memory("sever", 10**15, torch.device("cpu"))


def test_available_memory_is_a_plausible_number():
    assert 10**6 < available_bytes(torch.device("cpu")) < 10**14


@pytest.mark.parametrize(
    ("amount", "words"), [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (32 * 10**8, "3.2 GB")]
)
def test_amounts_in_words(amount, words):
    assert in_words(amount) == words
