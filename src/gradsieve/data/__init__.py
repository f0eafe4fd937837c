"""Data sets: inputs and targets, and the table of them."""

from gradsieve.data.dataset import DataSet, Recipe, Rows, Source, Task
from gradsieve.registry import Registry

DATASETS: Registry[Source] = Registry(
    "data set",
    {
        "digits": "gradsieve.data.digits:DIGITS",
        "landmarks": "gradsieve.data.landmarks:LANDMARKS",
        "cifar10": "gradsieve.data.cifar:CIFAR10",
        "cifar100": "gradsieve.data.cifar:CIFAR100",
        "celeba": "gradsieve.data.celeba:CELEBA",
        "celeba-features": "gradsieve.data.features:CELEBA_FEATURES",
        "mnist": "gradsieve.data.mnist:MNIST",
        "table": "gradsieve.data.table:TABLE",
    },
    needs=("load", "recipe", "tasks"),
    way="A data set is a gradsieve.data.Source.",
)

__all__ = ["DATASETS", "DataSet", "Recipe", "Rows", "Source", "Task"]
