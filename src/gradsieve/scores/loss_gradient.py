"""The norm of each row's gradient at the loss layer, ||d loss_i / d output_i||: the score of PRL(L).

For the usual losses this is a closed form of outputs and targets, so ranking the rows costs no
pass through the network. Cross-entropy with two classes, BCE and squared error rank as the loss
itself does; with three classes or more cross-entropy does not (Liu et al. 2021, section 3.6).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradsieve.errors import InputError
from gradsieve.scores.loss import (
    Criterion,
    check_rows,
    labelled,
    labels_that_count,
    name_wrong_label,
    row_losses,
    unpack,
    widened,
    widened_options,
)
from gradsieve.tracing import is_traced

FEW_CLASSES = 32  # with fewer, torch's softmax on a CPU is slow over the last dimension: classes go to the first


def loss_gradient_norm(criterion: Criterion, outputs: Tensor, targets: Tensor) -> Tensor:
    """||d loss_i / d output_i|| for each row, (N,), over all of the row's outputs.

    For log-probabilities (``nn.NLLLoss``, ``nn.KLDivLoss``), it is the gradient at their logits. For a row with labels
    at many positions, of which some may be ignored, it is the root mean square of the positions' norms: the norm of a
    mean gradient would be larger, the fewer positions have a label.
    """
    criterion = of_logits(criterion)
    norms = norm_of_rows(loss_gradient(criterion, outputs, targets))
    counted = labels_that_count(criterion, targets) if targets.dim() > 1 else None
    return norms if counted is None else norms * counted.flatten(1).sum(1).to(norms.dtype).sqrt()


def of_logits(criterion: Criterion) -> Criterion:
    """A criterion of log-probabilities as one of logits; any other as it is.

    At log-probabilities, the gradient of NLL is -1 at the given class of every row, and cannot rank rows; that of the
    Kullback-Leibler divergence is minus the target. But log-probabilities are also logits, which log_softmax leaves as
    they are. Their cross-entropy is the same loss, up to a constant of the target, and has the gradient at the logits.
    """
    function, options = unpack(criterion)
    if function is F.nll_loss:
        return partial(F.cross_entropy, **options)
    if is_divergence(function):
        return partial(divergence, is_log=options.get("log_target", getattr(function, "log_target", False)))
    return criterion


def is_divergence(function: Criterion) -> bool:
    """Whether it is the Kullback-Leibler divergence: outputs are log-probabilities, targets probabilities or logs."""
    return function is F.kl_div or type(function) is nn.KLDivLoss


def divergence(outputs: Tensor, targets: Tensor, is_log: bool) -> Tensor:
    """The Kullback-Leibler divergence of probabilities (N, C, ...) from logits, up to a constant of each row."""
    return F.cross_entropy(outputs, targets.exp() if is_log else targets, reduction="none") / outputs.shape[1]


def norm_of_rows(gradient: Tensor) -> Tensor:
    gradient = torch.view_as_real(gradient) if gradient.is_complex() else gradient
    flat = gradient if gradient.dim() == 2 else gradient.unsqueeze(1).flatten(1)
    return flat.square().sum(1).sqrt()  # vector_norm is slow for some memory layouts


def loss_gradient(criterion: Criterion, outputs: Tensor, targets: Tensor) -> Tensor:
    """d loss_i / d output_i, of the shape of the outputs."""
    outputs, targets = widened(outputs.detach()), widened(targets)
    function, options = unpack(criterion)
    check_rows(function, outputs, targets)
    form = closed_form(function, options)
    if form is None:
        return by_autograd(criterion, outputs, targets)
    try:
        return form(outputs, targets, **widened_options(options))
    except (IndexError, RuntimeError) as error:
        name_wrong_label(error, function, outputs, targets, options)
        row_losses(criterion, outputs, targets)  # the criterion's own error says more: which weights do not fit
        raise


def losses_and_gradient(criterion: Criterion, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's loss, and its gradient at the outputs; both are 0 for a row whose label is ignored."""
    function, options = unpack(criterion)
    if function is not F.cross_entropy or not is_plain(options, outputs, targets):
        return row_losses(criterion, outputs.detach(), targets), loss_gradient(criterion, outputs, targets)
    outputs = widened(outputs.detach())
    check_rows(function, outputs, targets)
    try:
        return of_classes(outputs, targets, targets != options.get("ignore_index", -100))
    except (IndexError, RuntimeError) as error:
        name_wrong_label(error, function, outputs, targets, options)
        raise


def has_closed_mean(criterion: Criterion, outputs: Tensor, targets: Tensor) -> bool:
    """Whether losses and gradients have closed forms, and the criterion's mean is the plain mean over rows."""
    function, options = unpack(criterion)
    is_mean = function is not F.cross_entropy or is_plain(options, outputs, targets)
    return is_mean and closed_form(function, options) is not None


def is_plain(options: dict[str, Any], outputs: Tensor, targets: Tensor) -> bool:
    """Whether cross-entropy is the plain one: logits (N, C), a class for each row, no class weights, no smoothing."""
    weighs = options.get("weight") is not None or options.get("label_smoothing")
    return not weighs and outputs.dim() == 2 and not targets.is_floating_point()


def closed_form(function: Criterion, options: dict[str, Any]) -> Callable[..., Tensor] | None:
    """The closed form of a loss's gradient; None if the table has none, or none that takes these options."""
    form = next((form for known, form in CLOSED_FORMS.items() if known is function), None)
    return form if form is not None and options.keys() <= (form.__kwdefaults__ or {}).keys() else None


def ranks_as_loss(criterion: Criterion) -> bool:
    """Whether rows of equal score have equal losses, so that the loss has no tie to break.

    True for plain squared error, whose score is 2 sqrt(loss / elements). With two classes and for BCE the score grows
    with the loss too, but in floats it reaches its bound while the loss still grows.
    """
    function, options = unpack(criterion)
    return function is F.mse_loss and not options


def by_autograd(criterion: Criterion, outputs: Tensor, targets: Tensor) -> Tensor:
    """d loss_i / d output_i for any criterion, by a backward pass that ends at the outputs."""
    if torch.is_inference_mode_enabled() or outputs.is_inference():
        raise InputError(
            "The rows of this criterion are ranked by a backward pass through it, which torch.inference_mode does not "
            "allow. Use torch.no_grad instead; or, to validate, the plain criterion, or RobustLoss in eval mode."
        )
    with torch.enable_grad():
        outputs = outputs.detach().requires_grad_()
        losses = row_losses(criterion, outputs, targets)
        (gradient,) = torch.autograd.grad(losses.sum(), outputs)
    # A row without a finite loss can have a gradient of 0 (abs at NaN, a clamped logarithm), and would be kept first.
    return gradient.masked_fill(~losses.isfinite().view(-1, *[1] * (gradient.dim() - 1)), torch.nan)


def cross_entropy(
    outputs: Tensor,  # (N, C, ...) logits
    targets: Tensor,  # (N, ...) classes, or (N, C, ...) probabilities
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """softmax - target, where the target is one-hot, soft, smoothed or weighted by class."""
    counted = labelled(F.cross_entropy, targets, {"ignore_index": ignore_index})
    if counted is None:
        wanted = targets.to(outputs.dtype)
    else:
        if is_plain({"weight": weight, "label_smoothing": label_smoothing}, outputs, targets):  # in fewer steps
            return of_classes(outputs, targets, counted)[1]
        classes = targets.where(counted, 0).unsqueeze(1)
        wanted = torch.zeros_like(outputs).scatter_(1, classes, 1.0)
    if label_smoothing:
        wanted = wanted * (1 - label_smoothing) + label_smoothing / outputs.shape[1]
    if weight is not None:
        wanted = wanted * weight.view(1, -1, *[1] * (outputs.dim() - 2))
    gradient = outputs.softmax(1) * wanted.sum(1, keepdim=True) - wanted
    if counted is None:
        return gradient / prod(outputs.shape[2:])
    positions = counted.unsqueeze(1).flatten(1).sum(1).clamp(min=1)  # (N,): a row's loss is their mean
    return gradient * counted.unsqueeze(1) / positions.view(-1, *[1] * (outputs.dim() - 1))


def of_classes(outputs: Tensor, classes: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of (N, C) logits and its gradient, softmax - one-hot, both 0 for rows that do not count."""
    dim = 0 if outputs.device.type == "cpu" and not is_traced(outputs) and outputs.shape[1] < FEW_CLASSES else 1
    logs = (outputs if dim else outputs.t().contiguous()).log_softmax(dim)
    number = torch.arange(outputs.shape[1], device=outputs.device)
    given, number = classes.where(counted, 0).unsqueeze(dim), number.unsqueeze(1 - dim)
    own = logs.gather(dim, given)
    # At the given class the gradient is p - 1, which expm1 computes without cancellation.
    gradient = torch.where(number == given, own.expm1(), logs.exp()) * counted.unsqueeze(dim)
    return -own.squeeze(dim).where(counted, 0.0), gradient if dim else gradient.t()


def binary_cross_entropy(
    outputs: Tensor, targets: Tensor, *, weight: Tensor | None = None, pos_weight: Tensor | None = None
) -> Tensor:
    """sigmoid - target, weighted as asked."""
    wanted = targets if pos_weight is None else targets * pos_weight
    gradient = outputs.sigmoid() * (wanted + 1 - targets) - wanted
    gradient = gradient.where(outputs.isfinite(), torch.nan)  # like the loss there: sigmoid(infinity) would be 1
    return (gradient if weight is None else gradient * weight) / elements(outputs)


def difference(outputs: Tensor, targets: Tensor) -> Tensor:
    """outputs - targets, where targets may be booleans."""
    return outputs - (targets.to(outputs.dtype) if targets.dtype == torch.bool else targets)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """2 (output - target)."""
    return difference(outputs, targets) * (2 / max(1, elements(outputs)))


def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    """sign(output - target): of the same size for all rows, so ties decide (``keep_smallest(..., ties=)``)."""
    off = difference(outputs, targets)
    return off.sgn().where(~off.isnan(), off) / elements(outputs)  # sgn(NaN) is 0; sign does not take complex numbers


def huber(outputs: Tensor, targets: Tensor, *, delta: float = 1.0) -> Tensor:
    """output - target, clipped to [-delta, delta]."""
    return difference(outputs, targets).clamp(-delta, delta) / elements(outputs)


def smooth_l1(outputs: Tensor, targets: Tensor, *, beta: float = 1.0) -> Tensor:
    """(output - target) / beta, clipped to [-1, 1]."""
    return absolute(outputs, targets) if beta == 0 else huber(outputs, targets, delta=beta) / beta


def elements(outputs: Tensor) -> int:
    """How many elements a row's loss is the mean of."""
    return prod(outputs.shape[1:])


CLOSED_FORMS = {
    F.cross_entropy: cross_entropy,
    F.binary_cross_entropy_with_logits: binary_cross_entropy,
    F.mse_loss: squared,
    F.l1_loss: absolute,
    F.huber_loss: huber,
    F.smooth_l1_loss: smooth_l1,
}
