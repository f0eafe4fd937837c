"""Ray Train with two workers keeps the rows of one process with the whole batch, and ends with its weights.

Ray runs in a process of its own, this file as a script. Its test needs ``gradsieve[ray-train]``.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from gradsieve import RobustLoss

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EPOCHS = 2


def loss():
    return RobustLoss(F.cross_entropy, 0.4, ramp=2, rows=1280)


def by_hand():
    """The example's loop in one process."""
    from digits import BATCH, LEARNING_RATE, TRAIN_ROWS, corrupted_digits, small_network

    inputs, labels, _, _ = corrupted_digits()
    network, robust = small_network(), loss()
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    for _ in range(EPOCHS):
        for rows in torch.arange(TRAIN_ROWS).split(BATCH):
            optimizer.zero_grad()
            robust(network(inputs[rows]), labels[rows], rows=rows).backward()
            optimizer.step()
        robust.step()
    return network.state_dict(), robust.state_dict()


def work(settings):
    """The plain loop of the other frameworks' test."""
    from ray.train import get_context
    from ray.train.torch import prepare_data_loader, prepare_model
    from test_adapter_ranks import ROWS, Loss, found, loader, network, optimizer_of

    robust, module = Loss("epoch"), network()
    model, rank = prepare_model(module), get_context().get_world_rank()
    optimizer = optimizer_of(module)
    batches = prepare_data_loader(loader("theirs", rank))
    for _ in range(settings["epochs"]):
        for rows, inputs, targets in batches:
            optimizer.zero_grad()
            robust(model(inputs), targets, rows).backward()
            optimizer.step()
        robust.step()
    assert len(robust.ledger.judged) == ROWS
    torch.save(found("epoch", robust, module), Path(settings["folder"], f"ray-{rank}.pt"))


def main(folder):
    import ray
    import ray_train_example as example

    def work_twice(settings, example_work=example.work):
        work({"epochs": 3, "folder": folder})
        example_work(settings)

    example.work = work_twice  # workers take half a minute to start, so the same ones do both
    ray.init(address="local", num_cpus=example.WORKERS, include_dashboard=False, log_to_driver=False)
    robust = loss()
    network = example.train(robust, EPOCHS)
    torch.save([network.state_dict(), robust.state_dict()], Path(folder, "example.pt"))


@pytest.fixture(scope="module")
def folder(once):
    """The folder where the workers saved their results."""
    pytest.importorskip("pandas", reason="Ray Train needs it: pip install gradsieve[ray-train]")
    pytest.importorskip("ray", reason="ray is not installed: pip install gradsieve[ray-train]")
    path = os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}

    def make(folder):
        subprocess.run([sys.executable, __file__, str(folder)], env=environment, check=True, timeout=200)

    return once("ray-train", make)


def test_workers_keep_the_rows_of_one_process_and_end_with_its_weights(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import test_adapter_ranks as others

    workers = [torch.load(folder / f"ray-{rank}.pt", weights_only=True) for rank in range(2)]
    batches = [first[1] + second[1] for first, second in zip(*(each["noted"] for each in workers), strict=True)]
    alone = others.by_hand("epoch", batches)
    wrong = set(others.WRONG.tolist())
    assert wrong <= set(workers[0]["noted"][0][1])  # all of them on one worker, and none is kept:
    for first, second, (rate, _, kept) in zip(*(each["noted"] for each in [*workers, alone]), strict=True):
        assert first[0] == second[0] == rate
        assert first[2] + second[2] == kept
        assert not wrong & set(kept)
    for worker in workers:
        torch.testing.assert_close(worker["weights"], alone["weights"], rtol=0, atol=1e-6)
        torch.testing.assert_close(worker["ledger"], alone["ledger"])


def test_the_example_keeps_the_rows_of_one_process(folder, monkeypatch):
    weights, ledger = torch.load(folder / "example.pt", weights_only=True)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    expected_weights, expected = by_hand()
    assert expected["dropped"].sum() == 10 * (26 + 52)  # 128 - floor(0.8 * 128), 128 - floor(0.6 * 128)
    torch.testing.assert_close(ledger, expected)  # what was dropped, row by row, and the time
    # Adam divides by the size of a gradient: if that is almost 0, rounding errors show.
    torch.testing.assert_close(weights, expected_weights, rtol=0, atol=1e-5)


if __name__ == "__main__":
    main(sys.argv[1])
