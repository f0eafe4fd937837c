"""The same in Hugging Face's Trainer, with a small model of one's own: nothing is fetched from the hub."""

from __future__ import annotations

import tempfile

import torch
import torch.nn.functional as F
from digits import BATCH, DROP_RATE, EPOCHS, LEARNING_RATE, RAMP, accuracy, corrupted_digits, small_network
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from gradsieve import RobustLoss
from gradsieve.adapters.huggingface import RobustCallback, trainer_loss


class Classifier(nn.Module):
    """What the trainer takes for a model: keyword arguments in, a dict with logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small_network()

    def forward(self, pixels: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": self.network(pixels)}


def train(robust: RobustLoss, epochs: int) -> nn.Module:
    inputs, labels, _, _ = corrupted_digits()
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    constant = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=BATCH,
            train_sampling_strategy="sequential",
            max_grad_norm=0.0,
            logging_strategy="epoch",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            log_level="error",
            use_cpu=True,
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=[{"pixels": row, "labels": label} for row, label in zip(inputs, labels, strict=True)],
            optimizers=(optimizer, constant),
            compute_loss_func=trainer_loss(robust),
            callbacks=[RobustCallback(robust)],
        )
        trainer.train()
    return model.network


def main() -> None:
    _, _, inputs, labels = corrupted_digits()
    network = train(RobustLoss(F.cross_entropy, DROP_RATE, ramp=RAMP), EPOCHS)
    print(f"clean test accuracy {accuracy(network, inputs, labels):.3f}")


if __name__ == "__main__":
    main()
