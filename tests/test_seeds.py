"""Streams of random numbers: the same for the same name, independent otherwise."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsieve.seeds import derive, generator


@given(seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 1000))
def test_a_seed_fits_torch_and_depends_on_every_part_of_its_name(seed, epoch):
    stream = derive(seed, "order", epoch)
    assert 0 <= stream < 2**63
    assert stream == derive(seed, "order", epoch)
    others = [derive(seed, "order", epoch + 1), derive(seed, "dropout", epoch), derive(seed + 1, "order", epoch)]
    assert len({stream, *others}) == 4


def test_seeds_stay_the_same_from_version_to_version():
    assert derive(0, "order", 1) == 4489457307835839548
    assert derive(0) == 3456079177858693020


def test_a_generator_starts_its_stream_and_leaves_the_global_one_alone():
    before = torch.get_rng_state()
    first, again = (torch.rand(5, generator=generator(0, "noise")) for _ in range(2))
    other = torch.rand(5, generator=generator(0, "weights"))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)
