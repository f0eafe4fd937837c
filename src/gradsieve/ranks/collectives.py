"""Tensors over ranks: gathered by rows, added up, or sent by the first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradsieve.ranks.group import rank, world_size

HEADER = 8  # bytes in front of the first message: the number of rows, as int64
SMALL = 4096  # content of at most so many bytes goes with the first message: larger content needs a second one
BUCKET = 2**24  # gradient values in a message: few enough to copy, many enough to be worth a message


class Gathered(NamedTuple):
    """Values of the global batch, and where this rank's rows stand in it."""

    values: list[Tensor]
    start: int
    rows: int
    sizes: list[int]  # of the shards

    @property
    def own(self) -> slice:
        """This rank's rows."""
        return slice(self.start, self.start + self.rows)

    def kept_here(self, kept: Tensor) -> Tensor:
        """Those of the ``kept`` rows that are this rank's, as positions in its own batch."""
        if world_size() == 1:  # a mask would wait for the device
            return kept
        return kept[(kept >= self.start) & (kept < self.start + self.rows)] - self.start


def parts(rows: int, world: int) -> list[int]:
    """The boundaries of ``world`` contiguous parts of ``rows``, whose sizes differ by at most one."""
    return [rows * number // world for number in range(world + 1)]


def own_part(rows: int) -> slice:
    """This rank's part of ``rows``."""
    return slice(*parts(rows, world_size())[rank() : rank() + 2])


def gather_rows(values: Sequence[Tensor], most_bytes: int | None = None) -> Gathered:
    """Each of ``values``, all (n, ...), from all ranks in rank order; none if they have more than ``most_bytes``."""
    rows = len(values[0])
    if world_size() == 1:
        return Gathered(list(values), 0, rows, [rows])
    packed = [as_bytes(value) for value in values]
    sizes, everyone = gather_packed(torch.cat(packed, dim=1), most_bytes)  # one message for all of them
    gathered: list[Tensor] = []
    if everyone:
        columns = torch.cat(everyone).split([each.shape[1] for each in packed], dim=1)
        gathered = [from_bytes(column, value) for column, value in zip(columns, values, strict=True)]
    return Gathered(gathered, sum(sizes[: rank()]), rows, sizes)


def gather_packed(packed: Tensor, most_bytes: int | None = None) -> tuple[list[int], list[Tensor]]:
    """How many rows each rank has, and their bytes (n, B); no bytes if they are more than ``most_bytes`` in all.

    Small content goes in one message with the number of its rows. Larger content follows in a second message, padded
    to the longest: collectives want equal shapes.
    """
    width, content = packed.shape[1], packed.flatten()
    message = packed.new_zeros(HEADER + SMALL)
    message[:HEADER] = torch.tensor([len(packed)]).view(torch.uint8).to(packed.device)
    if len(content) <= SMALL:
        message[HEADER : HEADER + len(content)] = content
    messages = [torch.empty_like(message) for _ in range(world_size())]
    dist.all_gather(messages, message)
    sizes = torch.stack([each[:HEADER] for each in messages]).view(torch.int64).flatten().tolist()
    longest = max(sizes) * width
    if most_bytes is not None and sum(sizes) * width > most_bytes:
        return sizes, []
    start = HEADER
    if longest > SMALL:
        message, start = packed.new_zeros(longest), 0
        message[: len(content)] = content
        messages = [torch.empty_like(message) for _ in sizes]
        dist.all_gather(messages, message)
    ends = [start + size * width for size in sizes]
    return sizes, [each[start:end].view(-1, width) for each, end in zip(messages, ends, strict=True)]


def as_bytes(values: Tensor) -> Tensor:  # (n, ...) -> (n, bytes of a row)
    flat = values.detach().flatten(1) if values.dim() > 1 else values.detach().unsqueeze(1)
    # Not contiguous(), which would leave an expanded tensor without rows as it is.
    return flat.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def from_bytes(packed: Tensor, like: Tensor) -> Tensor:
    # A copy: a column may begin at any byte.
    return packed.clone(memory_format=torch.contiguous_format).view(like.dtype).view(len(packed), *like.shape[1:])


def total(count: int, device: torch.device) -> int:
    """The sum of a count over the ranks, read back to the host."""
    return count if world_size() == 1 else int(sum_over_ranks(torch.tensor([count], device=device)))


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum of every value over the ranks. The host does not wait for the device."""
    if world_size() == 1:
        return values
    everyone = values.clone()
    dist.all_reduce(everyone)
    return everyone


def largest(values: Sequence[int]) -> list[int]:
    """The largest over the ranks of each value."""
    if world_size() == 1:
        return list(values)
    everyone = torch.tensor(values, device=message_device())
    dist.all_reduce(everyone, dist.ReduceOp.MAX)
    return everyone.tolist()


def sum_gradients(networks: Iterable[nn.Module]) -> None:
    """Add up every ``.grad`` over the ranks. A rank that kept no row takes part with zeros.

    A parameter that has no gradient on any rank stays without one: the optimizer then skips it, as on one rank.
    """
    if world_size() == 1:
        return
    every = dict.fromkeys(each for network in networks for each in network.parameters() if each.requires_grad)
    for parameters in buckets(list(every)):
        gradients = [each.new_zeros(each.shape) if each.grad is None else each.grad for each in parameters]
        # The same message says which parameters have a gradient.
        owners = parameters[0].new_tensor([each.grad is not None for each in parameters])
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), owners])
        dist.all_reduce(flat)
        *sums, owners = flat.split([*(each.numel() for each in parameters), len(parameters)])
        for parameter, own, summed, has_any in zip(parameters, gradients, sums, owners.tolist(), strict=True):
            parameter.grad = own.copy_(summed.view_as(own)) if has_any else None


def buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Split parameters into lists that fit a message, each of one type and device."""
    held: list[nn.Parameter] = []
    for parameter in parameters:
        size = parameter.numel() + sum(each.numel() for each in held)
        if held and (size > BUCKET or (parameter.dtype, parameter.device) != (held[0].dtype, held[0].device)):
            yield held
            held = []
        held.append(parameter)
    if held:
        yield held


def gather_tensors(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """The tensors of every rank, alike in names, types and shapes, in host memory."""
    if world_size() == 1:
        return [dict(tensors)]
    packed = torch.cat([flat_bytes(tensor) for tensor in tensors.values()]).to(message_device())
    found = []
    for own in gather_packed(packed.unsqueeze(1))[1]:
        pieces = own.squeeze(1).cpu().split([tensor.nbytes for tensor in tensors.values()])
        found.append({name: shaped(piece, like) for (name, like), piece in zip(tensors.items(), pieces, strict=True)})
    return found


def tensors_from_first(tensors: Mapping[str, Tensor], kinds: Sequence[Sequence[Any]]) -> dict[str, Tensor]:
    """The tensors of the first rank, in host memory. ``kinds``: the names, types and shapes of them, known to all."""
    if world_size() == 1:
        return dict(tensors)
    found = {}
    for name, kind, shape in kinds:
        like = torch.empty(shape, dtype=getattr(torch, kind), device="meta")
        content = torch.empty(like.nbytes, dtype=torch.uint8) if rank() else flat_bytes(tensors[name])
        content = content.to(message_device())
        dist.broadcast(content, 0)
        found[name] = shaped(content.cpu(), like)
    return found


def kinds_of(tensors: Mapping[str, Tensor]) -> list[list[Any]]:
    """Names, types and shapes, as JSON can hold them."""
    return [[name, str(each.dtype).removeprefix("torch."), list(each.shape)] for name, each in tensors.items()]


def flat_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8)


def shaped(content: Tensor, like: Tensor) -> Tensor:
    return content.clone().view(like.dtype).view(like.shape)  # a copy: a tensor may begin at any byte


def message_device() -> torch.device:
    """The device of small messages: the CPU, unless the process group has GPUs only."""
    has_host = "cpu" in dist.get_backend_config()
    return torch.device("cpu") if has_host else torch.device("cuda", torch.cuda.current_device())
