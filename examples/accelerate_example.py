"""The same with Accelerate, which needs no adapter: over several processes there is one threshold for all of them.

torchrun --nproc-per-node 2 examples/accelerate_example.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from digits import BATCH, DROP_RATE, EPOCHS, LEARNING_RATE, RAMP, accuracy, corrupted_digits, small_network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradsieve import RobustLoss


def train(robust: RobustLoss, epochs: int) -> nn.Module:
    accelerator = Accelerator(cpu=True)
    inputs, labels, _, _ = corrupted_digits()
    network = small_network()
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    network, optimizer, batches = accelerator.prepare(
        network, optimizer, DataLoader(TensorDataset(inputs, labels), BATCH)
    )
    accelerator.register_for_checkpointing(robust)  # its epoch and ledger, for save_state and load_state
    for _ in range(epochs):
        for batch, given in batches:
            loss = robust(network(batch), given)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        robust.step()
    return accelerator.unwrap_model(network)


def main() -> None:
    _, _, inputs, labels = corrupted_digits()
    network = train(RobustLoss(F.cross_entropy, DROP_RATE, ramp=RAMP), EPOCHS)
    print(f"clean test accuracy {accuracy(network, inputs, labels):.3f}")


if __name__ == "__main__":
    main()
