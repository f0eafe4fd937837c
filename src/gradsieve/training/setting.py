"""What a run needs before its first step, loaded and checked: data, corruption, method, networks, device."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradsieve import ranks, seeds
from gradsieve.arguments import argument
from gradsieve.corruptions import CORRUPTIONS
from gradsieve.data import DATASETS, DataSet, Rows, Task
from gradsieve.data.validate import validate
from gradsieve.errors import InputError
from gradsieve.method import Method, make_method
from gradsieve.methods import METHODS
from gradsieve.models.build import build, require_new
from gradsieve.schedule import linear_decay, plan
from gradsieve.scores.loss import Criterion
from gradsieve.training.feed import as_float
from gradsieve.training.repeatable import drawn_from, single_precision
from gradsieve.training.run import Precision, Run, check_batch, most_dropped

CRITERIA: dict[Task, Criterion] = {"classification": F.cross_entropy, "regression": F.mse_loss}


@dataclass(frozen=True)
class Setting:
    """A run with its data loaded, corrupted and checked, and its method and device made."""

    run: Run
    data: DataSet  # with corrupted training targets
    clean_targets: Tensor  # the training targets before corruption, for metrics only
    is_corrupted: Tensor  # (N,) bool, for metrics only
    method: Method
    device: torch.device
    rates: list[float]  # the drop rate in each epoch, or each step (schedule_unit)
    steps_an_epoch: int

    def drop_rate(self, epoch: int, step: int) -> float:
        """The drop rate of a step; epochs count from 1, steps within the epoch from 0."""
        if self.run.schedule_unit == "epoch":
            return self.rates[epoch - 1]
        return self.rates[(epoch - 1) * self.steps_an_epoch + step]

    def learning_rate(self, epoch: int) -> float:
        """Constant, or falling linearly to 0 over the last 60 % of the epochs."""
        if self.run.decay == "constant":
            return self.run.learning_rate
        return linear_decay(epoch, self.run.epochs, self.run.learning_rate)

    def make_networks(self) -> list[nn.Module]:
        """The initial networks, each drawn from its own random stream."""
        shape = as_float(self.data.train.inputs[:1]).shape[1:]
        networks = []
        for number in range(self.method.networks):
            with drawn_from(self.run.seed, number):
                network = build(self.run.model, shape, self.data.outputs, self.run.model_options)
            require_new(f"model {self.run.model!r}", network)
            networks.append(place(network, self.device, self.run.precision))
        return networks


def fingerprint(rows: Rows) -> str:
    """SHA-256 of rows, to refuse going on with other rows than those that a run began with."""
    digest = hashlib.sha256()
    for tensor in (rows.inputs, rows.targets):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def place(network: nn.Module, device: torch.device, precision: Precision) -> nn.Module:
    """A network on its device, in the memory layout and precision that suit it: bf16 for convolutions on a GPU."""
    network = network.to(device)
    if device.type == "cuda":
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if real_precision(network, device, precision) == "bf16":
        network.forward = torch.autocast(device.type, dtype=torch.bfloat16)(network.forward)
    return network


def real_precision(network: nn.Module, device: torch.device, precision: Precision) -> str:
    """The precision that ``auto`` stands for: bf16 for convolutions on a GPU, else fp32."""
    if precision != "auto":
        return precision
    convolves = any(isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) for module in network.modules())
    return "bf16" if device.type == "cuda" and convolves else "fp32"


def make_optimizer(network: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """The optimizer of the paper's tables. On a GPU the learning rate is a tensor, so that a step can be captured."""
    parameters = list(network.parameters())
    if not parameters[0].is_cuda:
        return torch.optim.Adam(parameters, lr=learning_rate, betas=(0.9, 0.999), fused=True)
    rate = torch.tensor(learning_rate, dtype=torch.float32, device=parameters[0].device)  # Adam reads no other type
    return torch.optim.Adam(parameters, lr=rate, betas=(0.9, 0.999), fused=True, capturable=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set it in place where it is a tensor: a captured step reads that memory."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].copy_(torch.tensor(learning_rate))  # fill_ refuses a number beyond the type's largest
        else:
            group["lr"] = learning_rate


@single_precision()
def prepare(run: Run) -> Setting:
    """Load, check and corrupt the data. Errors in the settings are raised here, before any weight changes."""
    device = choose_device(run.device)
    data = DATASETS[run.data](Path(run.data_dir) if run.data_dir else None, **run.data_options)
    validate(data)
    if run.augment != "none" and data.train.inputs.dim() != 4:
        raise InputError(
            f"{argument('augment')} is {run.augment!r}, which is for images, but a row of {run.data} has the shape "
            f"{tuple(data.train.inputs.shape[1:])}. Leave it out."
        )
    method = make_method(run.method, METHODS, CRITERIA[data.task], data.task, run.method_options)
    clean = data.train.targets
    corruption = CORRUPTIONS[run.corruption]
    # Wrong labels are drawn from all classes, including those that no training row has.
    knows_classes = "classes" in inspect.signature(corruption).parameters
    options = {"classes": data.outputs} if knows_classes and data.task == "classification" else {}
    targets, is_corrupted = corruption(
        data.train.inputs, clean, run.rate, seeds.generator(run.corruption_seed, "corruption"), **options
    )
    if data.task == "classification":
        check_classes(run, targets, data.outputs)
    check_batch(run, min(run.batch_size, len(clean)))
    steps = len(clean) // min(run.batch_size, len(clean))
    return Setting(
        run=run,
        data=replace(data, train=Rows(data.train.inputs, targets)),
        clean_targets=clean,
        is_corrupted=is_corrupted,
        method=method,
        device=device,
        rates=plan_rates(run, steps),
        steps_an_epoch=steps,
    )


def check_classes(run: Run, targets: Tensor, classes: int) -> None:
    """Refuse classes out of range, from a user's corruption: a GPU would only fail in the middle of a step."""
    outside = (targets < 0) | (targets >= classes)
    if outside.any():
        row = int(outside.nonzero()[0])
        raise InputError(
            f"corruption {run.corruption!r} gives row {row} the class {int(targets[row])}, but {run.data} has "
            f"{classes} (0 to {classes - 1})."
        )


def plan_rates(run: Run, steps_an_epoch: int) -> list[float]:
    """The drop rate in each epoch, or each step, of the run's schedule."""
    length = run.epochs * (steps_an_epoch if run.schedule_unit == "step" else 1)
    return plan(run.schedule, most_dropped(run), run.ramp, length)


def at_rate(setting: Setting, drop_rate: float) -> Setting:
    """The same run at another drop rate."""
    run = replace(setting.run, drop_rate=drop_rate)
    return replace(setting, run=run, rates=plan_rates(run, setting.steps_an_epoch))


def choose_device(name: str) -> torch.device:
    """The device asked for, or the best there is."""
    if name in ("auto", "cuda") and ranks.world_size() > 1 and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())  # each rank has its own GPU
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{argument('device', name)} cannot be used here ({reason}). Leave it out to take what is there."
        ) from error
    return device
