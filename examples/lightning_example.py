"""The same in Lightning: the criterion is a RobustLoss, and a callback tells it the epoch."""

from __future__ import annotations

import logging
import warnings

import torch
import torch.nn.functional as F
from digits import BATCH, DROP_RATE, EPOCHS, LEARNING_RATE, RAMP, accuracy, corrupted_digits, small_network
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gradsieve import RobustLoss
from gradsieve.adapters.lightning import RobustCallback


class Classifier(LightningModule):
    def __init__(self, criterion: nn.Module) -> None:
        super().__init__()
        self.network = small_network()
        self.criterion = criterion

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, labels = batch
        return self.criterion(self.network(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.network.parameters(), LEARNING_RATE)


def train(robust: RobustLoss, epochs: int) -> nn.Module:
    inputs, labels, _, _ = corrupted_digits()
    module = Classifier(robust)
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[RobustCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(TensorDataset(inputs, labels), BATCH))
    print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})
    return module.network


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    _, _, inputs, labels = corrupted_digits()
    network = train(RobustLoss(F.cross_entropy, DROP_RATE, ramp=RAMP), EPOCHS)
    print(f"clean test accuracy {accuracy(network, inputs, labels):.3f}")


if __name__ == "__main__":
    main()
