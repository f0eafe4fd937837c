"""Frameworks over two processes: they keep the rows of one process with the whole batch, and end with its weights.

Each framework distributes the rows in its own way and, where it can, also in ours, which is uneven.
Twelve rows of the first batch are wrong, and the first rank always gets all of them.
"""

import importlib.util
import logging
import os
import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradsieve import RobustLoss

WORLD, ROWS, BATCH, EPOCHS, CUT = 2, 120, 60, 3, 23
WRONG = torch.arange(0, 24, 2)
RAMP = {"epoch": 3, "step": 6}
DEALS = {"theirs": "epoch", "uneven": "step"}  # how rows are distributed, and what the schedule counts in that case


def table():
    """Numbers, inputs and targets of the rows; the lowest rate drops as many rows as are wrong."""
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, 6, generator=draw)
    targets = inputs[:, :2].sin() + 0.1 * torch.randn(ROWS, 2, generator=draw)
    targets[WRONG] += 50.0
    return TensorDataset(torch.arange(ROWS), inputs, targets)


class Loss(RobustLoss):
    """A RobustLoss that records rates, rows and kept rows."""

    def __init__(self, unit):
        super().__init__(F.mse_loss, lambda T: 0.2 + 0.2 * min(1.0, (T - 1) / RAMP[unit]), rows=ROWS)
        self.noted = []

    def forward(self, outputs, targets, rows):
        loss = super().forward(outputs, targets, rows)
        self.noted.append([self.rate, rows.tolist(), rows[self.kept].tolist()])
        return loss


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def found(unit, robust, module, logged=None):
    """What a run did, with the share of kept rows that it logged."""
    columns = robust.ledger.tensors()
    return {"unit": unit, "noted": robust.noted, "weights": module.state_dict(), "ledger": columns, "logged": logged}


def optimizer_of(module):
    return torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)


def loader(deal, rank):
    """Batches of a rank's size for the framework to distribute, or a rank's own uneven batches."""
    if deal == "theirs":
        return DataLoader(table(), BATCH // WORLD)
    own = slice(0, CUT) if rank == 0 else slice(CUT, BATCH)
    batches = [list(range(start, start + BATCH))[own] for start in range(0, ROWS, BATCH)]
    return DataLoader(table(), batch_sampler=batches)


def by_hand(unit, batches):
    """One process, with all rows of each step."""
    robust, module = Loss(unit), network()
    optimizer = optimizer_of(module)
    for step, batch in enumerate(batches, start=1):
        rows, inputs, targets = table()[batch]
        optimizer.zero_grad()
        robust(module(inputs), targets, rows).backward()
        optimizer.step()
        if unit == "step" or step % (ROWS // BATCH) == 0:
            robust.step()
    return found(unit, robust, module)


def with_lightning(deal, rank, folder):
    from lightning.pytorch import LightningModule, Trainer

    from gradsieve.adapters.lightning import RobustCallback

    class Module(LightningModule):
        def __init__(self, unit):
            super().__init__()
            self.network, self.criterion = network(), Loss(unit)

        def training_step(self, batch, batch_idx):
            rows, inputs, targets = batch
            assert not self.trainer.model.modules_buffers  # else DDP would send the ledger in every step
            return self.criterion(self.network(inputs), targets, rows)

        def configure_optimizers(self):
            return optimizer_of(self.network)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    module = Module(DEALS[deal])
    trainer = Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=WORLD,
        strategy="ddp",
        callbacks=[RobustCallback(DEALS[deal])],
        use_distributed_sampler=deal == "theirs",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader(deal, rank))
    return found(DEALS[deal], module.criterion, module.network, [float(trainer.callback_metrics["kept_share"])])


def with_accelerate(deal, rank, folder):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    robust, module = Loss(DEALS[deal]), network()
    model, optimizer = accelerator.prepare(module, optimizer_of(module))
    batches = loader(deal, rank)
    batches = accelerator.prepare(batches) if deal == "theirs" else batches
    for _ in range(EPOCHS):
        for rows, inputs, targets in batches:
            optimizer.zero_grad()
            accelerator.backward(robust(model(inputs), targets, rows))
            optimizer.step()
            if DEALS[deal] == "step":
                robust.step()
        if DEALS[deal] == "epoch":
            robust.step()
    return found(DEALS[deal], robust, accelerator.unwrap_model(model))


def with_huggingface(rank, folder):
    import transformers

    from gradsieve.adapters.huggingface import RobustCallback, trainer_loss

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network()

        def forward(self, inputs, labels=None):
            return {"logits": self.network(inputs)}

    model, robust = Model(), Loss("epoch")
    optimizer = optimizer_of(model)
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(
            output_dir=folder,
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=BATCH // WORLD,
            train_sampling_strategy="sequential",
            max_grad_norm=0.0,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            ddp_backend="gloo",
            remove_unused_columns=False,
        ),
        train_dataset=[{"row": row, "inputs": inputs, "labels": targets} for row, inputs, targets in table()],
        optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)),
        compute_loss_func=trainer_loss(robust),
        callbacks=[RobustCallback(robust, row_column="row")],
    )
    trainer.train()
    logged = [each["kept_share"] for each in trainer.state.log_history if "loss" in each]
    return found("epoch", robust, model.network, logged)


RUNS = {  # each framework with its own distribution of the rows, and with ours if it can use it
    "lightning": partial(with_lightning, "theirs"),
    "lightning, uneven": partial(with_lightning, "uneven"),
    "accelerate": partial(with_accelerate, "theirs"),
    "accelerate, uneven": partial(with_accelerate, "uneven"),
    "huggingface": with_huggingface,
}


def needs(name):
    """The library that a run needs."""
    return {"huggingface": "transformers"}.get(name, name.split(",")[0])


def prepare():
    """Import the libraries, which takes seconds, before there are two processes."""
    for library in filter(importlib.util.find_spec, {needs(name) for name in RUNS}):
        importlib.import_module(library)


def main(rank, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))  # as torchrun has it
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=WORLD, timeout=timedelta(seconds=100))
    for name, run in RUNS.items():
        if importlib.util.find_spec(needs(name)):
            torch.save(run(rank, folder), Path(folder, f"{name}-{rank}.pt"))
    dist.destroy_process_group()


@pytest.fixture(scope="module", params=RUNS)
def run(request, run_ranks):
    """The name of a run, the results of its ranks, and those of one process with the same rows in every step."""
    pytest.importorskip(needs(request.param), reason=f"{needs(request.param)} is not installed: gradsieve[dev]")
    folder = run_ranks(__file__, WORLD)
    ranks = [torch.load(folder / f"{request.param}-{rank}.pt", weights_only=True) for rank in range(WORLD)]
    batches = [first[1] + second[1] for first, second in zip(*(rank["noted"] for rank in ranks), strict=True)]
    return request.param, ranks, by_hand(ranks[0]["unit"], batches)


def test_ranks_keep_the_rows_of_one_process_and_end_with_its_weights_and_ledger(run):
    _, ranks, alone = run
    assert len(alone["noted"]) == EPOCHS * ROWS // BATCH
    for *parts, (rate, rows, kept) in zip(*(rank["noted"] for rank in ranks), alone["noted"], strict=True):
        assert [part[0] for part in parts] == [rate] * WORLD  # the schedule moved on once
        assert [row for part in parts for row in part[2]] == kept
        assert len(rows) == BATCH
    for rank in ranks:
        torch.testing.assert_close(rank["weights"], alone["weights"], rtol=0, atol=1e-6)
        torch.testing.assert_close(rank["ledger"], alone["ledger"])


def test_no_wrong_row_is_kept_though_all_of_them_are_on_one_rank(run):
    name, ranks, _ = run
    wrong = set(WRONG.tolist())
    assert not any(wrong & set(kept) for rank in ranks for _, _, kept in rank["noted"])
    if name != "lightning":  # which shuffles
        assert wrong <= set(ranks[0]["noted"][0][1])


def test_the_logged_share_is_that_of_all_ranks(run):
    _, ranks, alone = run
    kept = [len(rows) / BATCH for _, _, rows in alone["noted"]]
    for rank in ranks:
        if rank["logged"] is not None:
            torch.testing.assert_close(rank["logged"], kept if len(rank["logged"]) > 1 else [sum(kept[-2:]) / 2])
