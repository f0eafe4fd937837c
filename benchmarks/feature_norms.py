"""Why PRL(G) falls behind PRL(L) on landmarks with a flipped sign: rows of small activations hide their errors.

    gradsieve reproduce table1 --rows clean --seeds 1 --data-dir data --out runs/grid     # makes the features
    python benchmarks/feature_norms.py runs/grid/features

A gradient over all parameters is a row's error times the size of its activations. Here the same features are given as
they are, scaled to one norm a row, and standardised by column: R2 on clean test rows, and the purity of the kept rows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gradsieve import make_run, train
from gradsieve.data.features import ABOUT, TENSORS

FORMS = {
    "as they are": lambda rows: rows,
    "one norm a row": lambda rows: rows * (rows.norm(dim=1).mean() / rows.norm(dim=1, keepdim=True)),
    "standardised": lambda rows: (rows - rows.mean(0)) / rows.std(0).clamp(min=1e-6),
}


def write_features(folder: Path, inputs: Tensor, targets: Tensor) -> None:
    """As ``gradsieve reproduce table1`` leaves them."""
    save_file({"inputs": inputs.contiguous(), "targets": targets}, folder / TENSORS)
    content = (folder / TENSORS).read_bytes()
    (folder / ABOUT).write_text(json.dumps({"sha256": hashlib.sha256(content).hexdigest()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--rate", type=float, default=0.4)
    parser.add_argument("--corruption", default="signflip")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    tensors = load_file(given.features / TENSORS)
    shares = torch.tensor([0.05, 0.5, 0.95])
    norms = tensors["inputs"].norm(dim=1).quantile(shares).tolist()
    print("norms of the features, 5th, 50th and 95th percentile:", *(f"{norm:.1f}" for norm in norms))
    print("| features | clean | prl-l | purity | prl-g | purity |\n| --- | --- | --- | --- | --- | --- |")
    for name, form in FORMS.items():
        with tempfile.TemporaryDirectory() as folder:
            write_features(Path(folder), form(tensors["inputs"]), tensors["targets"])
            common = {"preset": "authors", "seed": given.seed, "data_dir": folder, "epochs": given.epochs}
            wrong = {"corruption": given.corruption, "rate": given.rate}
            clean = train(make_run("celeba-features", "standard", **common)).last10_mean
            robust = [train(make_run("celeba-features", method, **wrong, **common)) for method in ("prl-l", "prl-g")]
        cells = [text for each in robust for text in (f"{each.last10_mean:.3f}", f"{each.purity:.3f}")]
        print(f"| {name} | {clean:.3f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
