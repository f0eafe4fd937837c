"""Without a GPU Triton interprets the kernels, if it is told so before it is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
