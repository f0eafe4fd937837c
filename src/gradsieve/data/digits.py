"""The 1,797 handwritten digits that come with scikit-learn: nothing to download."""

from __future__ import annotations

from pathlib import Path

import torch

from gradsieve.data.dataset import DataSet, Recipe, Rows, Source
from gradsieve.errors import MissingExtraError
from gradsieve.seeds import generator


def load_digits(folder: Path | None = None) -> DataSet:
    """8x8 digits as rows of 64 numbers in [0, 1]; every fifth row of each class is for testing."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "sklearn", "The digits data set") from error
    pixels, labels = datasets.load_digits(return_X_y=True)
    inputs = torch.as_tensor(pixels).float() / 16  # (N, 64)
    targets = torch.as_tensor(labels).long()
    order = torch.randperm(len(targets), generator=generator(0, "digits", "split"))
    by_class = order[targets[order].argsort(stable=True)]
    is_test = torch.zeros(len(targets), dtype=torch.bool)
    is_test[by_class[::5]] = True
    return DataSet(
        task="classification",
        train=Rows(inputs[~is_test], targets[~is_test]),
        test=Rows(inputs[is_test], targets[is_test]),
        output_names=tuple("0123456789"),
    )


DIGITS = Source(
    summary="8x8 handwritten digits from scikit-learn, 10 classes; nothing to download",
    tasks=("classification",),
    load=load_digits,
    recipe=Recipe(model="mlp", epochs=120, batch_size=128, learning_rate=2e-3, ramp=10),
)
