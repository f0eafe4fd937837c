"""Microseconds of every way to the row norms of cnn9's convolutions, on a GPU in bfloat16.

    python benchmarks/kernels.py                        # one table; * marks the form that the library chooses
    python benchmarks/kernels.py --layers 2 4           # of these layers alone
    python benchmarks/kernels.py --sweep --layers 2     # other tiles; the best of each form

A time is the median over 20 replays of a CUDA graph of 20 calls, divided by 20. An error is the largest relative
one of the squared norms, against single precision from the same bfloat16 maps.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradsieve.kernels import tiles
from gradsieve.kernels.choice import kernel_for
from gradsieve.kernels.direct import can_copy_in_bulk, direct_bulk, direct_pointers
from gradsieve.kernels.first import first
from gradsieve.kernels.gram import gram_shifted, gram_small
from gradsieve.kernels.kept import kept_sum
from gradsieve.kernels.maps import checked_maps
from gradsieve.kernels.tiles import FirstTile, GramTile, KeptTile, ProductTile, SmallTile

DEVICE, KIND = "cuda", torch.bfloat16
CALLS = REPLAYS = 20
KEPT_SHARE = 0.55


class Layer(NamedTuple):
    inputs: int
    outputs: int
    side: int  # of the input
    padding: int

    @property
    def out_side(self) -> int:
        return self.side + 2 * self.padding - 2

    @property
    def weights(self) -> int:
        return 9 * self.inputs * self.outputs

    def __str__(self) -> str:
        return f"{self.inputs} -> {self.outputs}, {self.side}x{self.side}"


CNN9 = (
    Layer(3, 128, 32, 1),
    Layer(128, 128, 32, 1),
    Layer(128, 128, 32, 1),
    Layer(128, 256, 16, 1),
    Layer(256, 256, 16, 1),
    Layer(256, 256, 16, 1),
    Layer(256, 512, 8, 0),
    Layer(512, 256, 6, 0),
    Layer(256, 128, 4, 0),
)

Call = Callable[..., Tensor | None]  # takes a tile at most; None: no norms, but timed for comparison
ErrorOf = Callable[[Tensor], float]


class Measured(NamedTuple):
    name: str
    microseconds: float
    error: float | None


def main() -> None:
    options = parsed_options()
    if not torch.cuda.is_available():
        raise SystemExit("These times are taken on a GPU, and PyTorch finds none here.")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.batch} rows, {KIND}")
    torch.backends.cudnn.benchmark = True  # cuDNN at its best
    layers = [CNN9[number - 1] for number in options.layers]
    (sweep if options.sweep else compare)(options.layers, layers, options.batch, options.forms)


def parsed_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    numbers = range(1, len(CNN9) + 1)
    parser.add_argument("--layers", type=int, nargs="+", choices=numbers, default=list(numbers), metavar="NUMBER")
    parser.add_argument("--forms", nargs="+", default=[""], help="only forms whose name begins so", metavar="NAME")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--sweep", action="store_true", help="try other tiles")
    return parser.parse_args()


# ------------------------------------------------------------------------------- what is timed


def maps(layer: Layer, rows: int) -> tuple[Tensor, Tensor]:
    """An input as after a leaky ReLU and a small output gradient, channels last."""
    torch.manual_seed(0)
    activations = F.leaky_relu(torch.randn(rows, layer.inputs, layer.side, layer.side, device=DEVICE), 0.01)
    gradient = torch.randn(rows, layer.outputs, layer.out_side, layer.out_side, device=DEVICE) * 1e-3
    return channels_last(activations.to(KIND)), channels_last(gradient.to(KIND))


def channels_last(values: Tensor) -> Tensor:
    return values.contiguous(memory_format=torch.channels_last)


def convolution(layer: Layer) -> nn.Conv2d:
    return nn.Conv2d(layer.inputs, layer.outputs, 3, padding=layer.padding, bias=False, device=DEVICE, dtype=KIND)


def forms(layer: Layer, x: Tensor, g: Tensor) -> Iterator[tuple[str, Call]]:
    """Every form that takes this layer, by name."""
    padding, positions = layer.padding, layer.out_side**2
    buffer = torch.empty(len(x), layer.weights, dtype=KIND, device=DEVICE)
    if layer.inputs <= tiles.MOST_FIRST_INPUTS:
        wide = channels_last(F.pad(x, (0, 0, 0, 0, 0, 8 - layer.inputs)))
        wide_buffer = torch.empty(len(x), 9 * 8 * layer.outputs, dtype=KIND, device=DEVICE)
        yield "first", partial(first, x, g, padding)
        yield "first, stored", partial(first, x, g, padding, buffer)
        yield "first of 8 channels, stored", partial(first, wide, g, padding, wide_buffer)
    else:
        if layer.out_side & (layer.out_side - 1) == 0 and positions >= tiles.SMALLEST:
            yield "direct in bulk", partial(direct_bulk, x, g, padding)
            yield "direct in bulk, stored", partial(direct_bulk, x, g, padding, buffer)
        yield "direct by pointers", partial(direct_pointers, x, g, padding)
        yield "direct by pointers, stored", partial(direct_pointers, x, g, padding, buffer)
        if padding == 1 and positions % tiles.SMALLEST == 0:
            yield "gram_shifted", partial(gram_shifted, x, g)
        if positions <= tiles.MOST_SMALL_POSITIONS:
            yield "gram_small", partial(gram_small, x, g, padding)
    yield "unfold + bmm", partial(unfold_and_multiply, x, g, padding)
    yield "cuDNN weight gradient", partial(weight_gradient, convolution(layer), x, g)


def unfold_and_multiply(x: Tensor, g: Tensor, padding: int) -> Tensor:
    windows = F.unfold(x, 3, padding=padding)  # (N, inputs x 9, positions)
    return torch.bmm(g.flatten(2), windows.mT).float().square().sum((1, 2))


def weight_gradient(layer: nn.Conv2d, x: Tensor, g: Tensor) -> None:
    """What Standard pays for this layer: the gradient of the whole batch, without norms."""
    sizes = (layer.stride, layer.padding, layer.dilation)
    weight = channels_last(layer.weight.detach())
    torch.ops.aten.convolution_backward(g, x, weight, None, *sizes, False, [0, 0], 1, [False, True, False])


def error_of_norms(x: Tensor, g: Tensor, padding: int) -> ErrorOf:
    """The largest relative error against single precision, which is taken some rows at a time."""
    pieces = zip(x.float().split(16), g.float().split(16), strict=True)
    exact = torch.cat([unfold_and_multiply(some_x, some_g, padding) for some_x, some_g in pieces])
    # Kernels give a norm in parts, one of each program.
    return lambda norms: ((norms.reshape(len(exact), -1).sum(1) - exact).abs() / exact).max().item()


# -------------------------------------------------------------------------------- how it is timed


def microseconds(function: Callable[[], object]) -> float:
    """The median time of a call inside a CUDA graph, where launches cost next to nothing."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()  # compiles, and lets libraries choose
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            function()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / CALLS)
    return median(times)


def measured(name: str, call: Call, error_of: ErrorOf) -> Measured | None:
    """Time and error, or one printed line about what went wrong."""
    try:
        got = call()
        return Measured(name, microseconds(call), None if got is None else error_of(got))
    except Exception as problem:  # whatever a compiler or a driver may throw: the others still count
        print(f"{name}: {type(problem).__name__}: {' '.join(str(problem).split())[:140]}", flush=True)
        return None


# -------------------------------------------------------------------------------- what is printed


def wanted(name: str, prefixes: list[str]) -> bool:
    return name.startswith(tuple(prefixes))


def compare(numbers: list[int], layers: list[Layer], rows: int, prefixes: list[str]) -> None:
    """One line for every layer and form."""
    print(f"{'layer':28}{'form':32}{'us':>9}{'error':>10}")
    for number, layer in zip(numbers, layers, strict=True):
        x, g = maps(layer, rows)
        error_of = error_of_norms(x, g, layer.padding)
        chosen = chosen_form(layer, x, g)
        for name, call in forms(layer, x, g):
            result = measured(name, call, error_of) if wanted(name, prefixes) else None
            if result:
                print_line(f"{number}: {layer}", result, "*" if name == chosen else " ")
    if wanted("kept_sum", prefixes):
        for result in kept_sums(rows):
            print_line("1-3: the kept rows", result)


def chosen_form(layer: Layer, x: Tensor, g: Tensor) -> str | None:
    """The form that the library chooses, by its name here."""
    form = kernel_for(convolution(layer), x, g)
    if form is None:
        return None
    bulk = can_copy_in_bulk(checked_maps(x, g, layer.padding)) if form.name == "direct" else None
    way = {None: "", True: " in bulk", False: " by pointers"}[bulk]
    return form.name + way + (", stored" if form.stores else "")


def print_line(layer: str, result: Measured, mark: str = " ") -> None:
    error = "" if result.error is None else f"{result.error:10.1e}"
    print(f"{layer:28}{mark} {result.name:30}{result.microseconds:9.1f}{error}", flush=True)


def kept_sums(rows: int, choices: Sequence[KeptTile | None] = (None,)) -> Iterator[Measured]:
    """The update of the layers whose weight gradients are stored, beside PyTorch's; None is the tile in use."""
    stored = torch.randn(rows, sum(layer.weights for layer in CNN9[:3]), device=DEVICE).to(KIND)
    kept = torch.randperm(rows, device=DEVICE)[: int(KEPT_SHARE * rows)]
    exact = stored[kept].float().sum(0)
    calls: list[tuple[str, Call]] = [("index and sum", lambda: stored[kept].sum(0, dtype=torch.float32))]
    calls += [(str(tuple(tile)) if tile else "kept_sum", partial(kept_sum, stored, kept, tile)) for tile in choices]
    for name, call in calls:
        result = measured(name, call, lambda sums: ((sums - exact).norm() / exact.norm()).item())
        if result:
            yield result


# --------------------------------------------------------------------------------------- other tiles

PRODUCT_TILES = [
    ProductTile(outputs, inputs, positions, warps, stages)
    for (outputs, inputs, warps), positions, stages in product(
        [(128, 128, 8), (128, 64, 8), (128, 64, 4), (64, 128, 4), (64, 64, 4)], [32, 64], [3, 4, 5]
    )
]
FIRST_TILES = [FirstTile(*each) for each in product([64, 128], [32, 64, 128], [4, 8], [3, 4])]
GRAM_TILES = [
    GramTile(positions, channels, warps, stages)
    for (positions, warps), channels, stages in product([(64, 4), (128, 4), (128, 8)], [32, 64], [2, 3, 4])
]
SMALL_TILES = [SmallTile(*each) for each in product([32, 64, 128], [4, 8], [3, 4, 5])]
KEPT_TILES = tuple(KeptTile(*each) for each in product([256, 512, 1024], [8, 16], [2, 4]))


def with_tiles(name: str, call: Call) -> dict[str, list[tuple[tuple[int, ...], Call]]]:
    """What to call with each tile, by name of the form; gram_shifted has two kernels, of which one keeps its own."""
    if name == "gram_shifted":
        return {
            "gram_shifted, first kernel": [(tile, partial(call, tile=tile)) for tile in GRAM_TILES],
            "gram_shifted, second kernel": [(tile, partial(call, weighted=tile)) for tile in GRAM_TILES],
        }
    tiles_of = {"first": FIRST_TILES, "direct": PRODUCT_TILES, "gram_small": SMALL_TILES}
    choices = next((choices for start, choices in tiles_of.items() if name.startswith(start)), [])
    return {name: [(tile, partial(call, tile=tile)) for tile in choices]}


def sweep(numbers: list[int], layers: list[Layer], rows: int, prefixes: list[str]) -> None:
    """The best tiles of each form, beside the one in use; layers of one shape are tried once."""
    for layer, number in dict(zip(layers, numbers, strict=True)).items():
        x, g = maps(layer, rows)
        error_of = error_of_norms(x, g, layer.padding)
        for form, call in forms(layer, x, g):
            for name, choices in with_tiles(form, call).items():
                if choices and wanted(name, prefixes):
                    results = [measured(str(tuple(tile)), tiled, error_of) for tile, tiled in choices]
                    print_best(f"{number}: {layer}", name, measured("in use", call, error_of), results)
    if wanted("kept_sum", prefixes):
        print_best("1-3: the kept rows", "kept_sum", None, list(kept_sums(rows, (None, *KEPT_TILES))))


def print_best(layer: str, form: str, in_use: Measured | None, results: Sequence[Measured | None]) -> None:
    """What is in use and the three fastest."""
    print(f"{layer}, {form}")
    best = sorted((result for result in results if result), key=lambda result: result.microseconds)
    for result in (in_use, *best[:3]):
        if result:
            print_line("", result)


if __name__ == "__main__":
    main()
