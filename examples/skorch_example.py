"""The same in skorch: the criterion of a net, with the rate as one of its parameters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from digits import BATCH, DROP_RATE, EPOCHS, LEARNING_RATE, RAMP, accuracy, corrupted_digits, small_network
from skorch import NeuralNetClassifier
from torch import nn

from gradsieve import RobustLoss
from gradsieve.adapters.skorch import RobustCallback


def train(robust: RobustLoss, epochs: int, verbose: int = 0) -> nn.Module:
    """With a loss that is built already; ``main`` lets skorch build it."""
    return fitted(robust, epochs=epochs, verbose=verbose).module_


def fitted(
    criterion: RobustLoss | type[RobustLoss], epochs: int, verbose: int, **options: object
) -> NeuralNetClassifier:
    inputs, labels, _, _ = corrupted_digits()
    net = NeuralNetClassifier(
        small_network(),
        criterion=criterion,
        optimizer=torch.optim.Adam,
        lr=LEARNING_RATE,
        batch_size=BATCH,
        max_epochs=epochs,
        train_split=None,
        predict_nonlinearity=nn.Softmax(dim=-1),
        callbacks=[RobustCallback()],
        verbose=verbose,
        **options,
    )
    return net.fit(inputs.numpy(), labels.numpy())


def main() -> None:
    _, _, inputs, labels = corrupted_digits()
    options = {"criterion__criterion": F.cross_entropy, "criterion__drop_rate": DROP_RATE, "criterion__ramp": RAMP}
    net = fitted(RobustLoss, EPOCHS, verbose=1, **options)
    print(f"clean test accuracy {accuracy(net.module_, inputs, labels):.3f}")


if __name__ == "__main__":
    main()
