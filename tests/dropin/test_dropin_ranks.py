"""Two processes that average their gradients learn what one process learns, from the same rows.

Each of the processes takes its part of every batch and saves what it found.
"""

from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradsieve import RobustLoss, robust_step
from gradsieve.counts import KeptShare
from gradsieve.dropin.trimmed_loss import Ranking, keep_mask
from gradsieve.errors import InputError
from gradsieve.selection import keep_smallest

WORLD, ROWS, CLASSES, CUT = 2, 30, 4, 11  # the first rank has 11 of the rows, the other 19
WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 4.0])


def falling(outputs, targets):
    """A row with an infinite target has a loss of minus infinity."""
    return F.mse_loss(outputs, targets, reduction="none").mean(1).masked_fill(targets.isinf().any(1), -torch.inf)


CASES = {  # criterion, options, kind of batch
    "classes": (F.cross_entropy, {}, "classes"),
    "by loss": (F.cross_entropy, {"score": "loss"}, "classes"),
    "weighted": (nn.CrossEntropyLoss(WEIGHTS), {}, "classes"),
    "balanced": (F.cross_entropy, {"balanced": True}, "classes"),
    "ignored": (F.cross_entropy, {}, "ignored"),
    "ignored on one rank": (nn.CrossEntropyLoss(WEIGHTS), {}, "first ignored"),
    "weighted per row": (nn.CrossEntropyLoss(WEIGHTS, reduction="none"), {}, "ignored"),
    "elements": (F.cross_entropy, {"unit": "element"}, "sequences"),
    "per row": (partial(F.mse_loss, reduction="none"), {}, "numbers"),
    "numbers": (nn.MSELoss(), {}, "numbers"),
    "by a loss without end": (falling, {"score": "loss"}, "infinite"),
    "corrupt on one rank": (nn.MSELoss(), {}, "first corrupt"),
}


def batch_of(kind):
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, 6, generator=draw)
    labels = torch.randint(CLASSES, (ROWS,), generator=draw)
    if kind == "ignored":
        labels[::4] = -100
    if kind == "first ignored":
        labels[:CUT] = -100
    if kind == "sequences":
        labels = torch.randint(CLASSES, (ROWS, 1), generator=draw)
        labels[3] = -100
    if kind in ("numbers", "first corrupt", "infinite"):
        labels = torch.randn(ROWS, CLASSES, generator=draw)
        labels[: CUT if kind == "first corrupt" else 0] += 50.0  # then the first rank keeps nothing
        labels[[3, 20] if kind == "infinite" else []] = torch.inf
    return inputs, labels


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def gradients(module):
    return [parameter.grad.clone() for parameter in module.parameters()]


def drop_in(case, part):
    """Kept rows, loss, gradient and ledger of a plain loop, with DDP around the network if there are ranks."""
    criterion, options, kind = CASES[case]
    inputs, labels = batch_of(kind)
    module = network()
    model = DistributedDataParallel(module) if dist.is_initialized() else module
    robust = RobustLoss(criterion, 0.4, rows=ROWS, **options)
    outputs = model(inputs[part])
    loss = robust(outputs.unsqueeze(2) if kind == "sequences" else outputs, labels[part], rows=torch.arange(ROWS)[part])
    loss.backward()
    return {
        "kept": robust.kept + part.start,
        "loss": loss.detach(),
        "gradients": gradients(module),
        "ledger": robust.ledger.tensors(),
    }


def step(part):
    """The same for a step with a second pass."""
    inputs, labels = batch_of("classes")
    module = network()
    (selection,) = robust_step(module, inputs[part], labels[part], criterion=F.cross_entropy, drop_rate=0.4)
    return {"kept": selection.kept + part.start, "loss": selection.loss, "gradients": gradients(module)}


def all_cases(part):
    return {case: drop_in(case, part) for case in CASES} | {"step": step(part)}


def refusal(wrap):
    """The error for DDP, alone or with something around it, as torch.compile puts it."""
    try:
        model = wrap(DistributedDataParallel(network()))
        robust_step(model, *batch_of("classes"), criterion=F.cross_entropy, drop_rate=0.4)
    except InputError as error:
        return str(error)
    return None


def main(rank, folder):
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=WORLD, timeout=timedelta(seconds=100))
    part = slice(0, CUT) if rank == 0 else slice(CUT, ROWS)
    torch.save(
        all_cases(part) | {"refusals": [refusal(wrap) for wrap in (lambda model: model, nn.Sequential)]},
        Path(folder, f"{rank}.pt"),
    )
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def together(run_ranks):
    folder = run_ranks(__file__, WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("case", CASES)
def test_ranks_that_average_equal_one_process(case, together):
    expected, parts = drop_in(case, slice(0, ROWS)), [rank[case] for rank in together]
    assert torch.cat([part["kept"] for part in parts]).tolist() == expected["kept"].tolist()
    torch.testing.assert_close(sum(part["loss"] for part in parts) / WORLD, expected["loss"])
    for part in parts:
        torch.testing.assert_close(part["gradients"], expected["gradients"])
        torch.testing.assert_close(part["ledger"], expected["ledger"])  # every rank has all of it


def test_no_rank_keeps_a_row_whose_loss_falls_without_end(together):
    kept = torch.cat([rank["by a loss without end"]["kept"] for rank in together])
    assert not {3, 20} & set(kept.tolist())


def test_a_rank_may_keep_nothing(together):
    assert len(together[0]["corrupt on one rank"]["kept"]) == 0
    assert len(together[0]["ignored on one rank"]["kept"]) == 0


def test_a_step_adds_up_over_the_ranks(together):
    expected, parts = step(slice(0, ROWS)), [rank["step"] for rank in together]
    assert torch.cat([part["kept"] for part in parts]).tolist() == expected["kept"].tolist()
    for part in parts:
        torch.testing.assert_close(part["gradients"], expected["gradients"])


def test_a_step_refuses_a_wrapped_network(together):
    for rank in together:
        for message in rank["refusals"]:
            assert "Pass the network inside, model.module." in message


@pytest.mark.parametrize("seed", range(20))
def test_a_mask_over_rows_that_all_count_is_keep_smallest(seed):
    draw = torch.Generator().manual_seed(seed)
    rows = int(torch.randint(1, 40, (), generator=draw))
    values = torch.tensor([0.0, 1.0, 2.0, torch.nan])[torch.randint(4, (rows,), generator=draw)]
    ties, classes = (torch.randint(3, (rows,), generator=draw) for _ in range(2))
    rate = int(torch.randint(100, (), generator=draw)) / 100
    share = KeptShare(100 - round(100 * rate), 100)
    for second in (None, ties):
        for third in (None, classes):
            ranked = Ranking(values, None if second is None else lambda: ties)
            kept = keep_mask(ranked, third, torch.ones(rows, dtype=torch.bool), share).nonzero().squeeze(1)
            assert kept.tolist() == keep_smallest(values, rate, ties=second, classes=third).tolist()
