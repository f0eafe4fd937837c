"""The same with Ray Train, which needs no adapter: two workers, and one threshold for both.

Ray wraps the network in DDP and deals out the rows. Needs ``gradsieve[ray-train]``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
import torch.nn.functional as F
from digits import BATCH, DROP_RATE, LEARNING_RATE, RAMP, TRAIN_ROWS, accuracy, corrupted_digits, small_network
from ray.train import Checkpoint, RunConfig, ScalingConfig, get_context, report
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradsieve import RobustLoss

WORKERS, EPOCHS = 2, 30


def work(settings: dict[str, Any]) -> None:
    """What each worker does: the plain loop. Network and loss are alike on all of them, and the first saves its own."""
    inputs, labels, _, _ = corrupted_digits()
    robust = settings["robust"]
    network = prepare_model(small_network())
    rows = TensorDataset(torch.arange(TRAIN_ROWS), inputs, labels)
    batches = prepare_data_loader(DataLoader(rows, BATCH // WORKERS))
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    for _ in range(settings["epochs"]):
        for numbers, batch, given in batches:
            loss = robust(network(batch), given, rows=numbers)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        robust.step()
    with tempfile.TemporaryDirectory() as folder:
        torch.save({"network": network.module.state_dict(), "robust": robust.state_dict()}, Path(folder, "end.pt"))
        is_first = get_context().get_world_rank() == 0
        report({"kept_share": float(robust.kept_share)}, Checkpoint.from_directory(folder) if is_first else None)


def train(robust: RobustLoss, epochs: int) -> nn.Module:
    """The network; ``robust`` then holds the ledger of all workers' rows."""
    network = small_network()
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            work,
            train_loop_config={"robust": robust, "epochs": epochs},
            scaling_config=ScalingConfig(num_workers=WORKERS),
            run_config=RunConfig(storage_path=folder),
        )
        with trainer.fit().checkpoint.as_directory() as checkpoint:
            end = torch.load(Path(checkpoint, "end.pt"), weights_only=True)
    network.load_state_dict(end["network"])
    robust.load_state_dict(end["robust"])
    return network


def main() -> None:
    _, _, inputs, labels = corrupted_digits()
    ray.init(address="local", include_dashboard=False, num_cpus=WORKERS, log_to_driver=False)
    robust = RobustLoss(F.cross_entropy, DROP_RATE, ramp=RAMP, rows=TRAIN_ROWS)
    network = train(robust, EPOCHS)
    suspects = robust.ledger.drop_share.topk(5).indices.tolist()
    print(f"clean test accuracy {accuracy(network, inputs, labels):.3f}; dropped most often: rows {suspects}")


if __name__ == "__main__":
    main()
