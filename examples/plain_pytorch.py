"""A plain PyTorch loop through wrong labels: two lines differ from any other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from digits import BATCH, DROP_RATE, EPOCHS, LEARNING_RATE, RAMP, accuracy, corrupted_digits, small_network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradsieve import RobustLoss


def train(robust: RobustLoss, epochs: int) -> nn.Module:
    inputs, labels, _, _ = corrupted_digits()
    network = small_network()
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    for _ in range(epochs):
        for batch, given in DataLoader(TensorDataset(inputs, labels), BATCH):
            loss = robust(network(batch), given)  # was: F.cross_entropy(network(batch), given)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        robust.step()  # the rate of the next epoch
    return network


def main() -> None:
    _, _, inputs, labels = corrupted_digits()
    for rate in (0.0, DROP_RATE):
        robust = RobustLoss(F.cross_entropy, rate, ramp=RAMP)
        network = train(robust, EPOCHS)
        print(f"drop rate {rate}: clean test accuracy {accuracy(network, inputs, labels):.3f}", end="; ")
        print(f"kept {robust.kept_share:.2f} of the last batch, {robust.agreement:.2f} of that as predicted")


if __name__ == "__main__":
    main()
