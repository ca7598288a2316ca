"""Fused GPU kernels for the passes over features; nothing else knows Triton.

A layer's work on `n × d` features is a few operations on each number, so its floor is the time to read the features
once and to write the residual once. One kernel comes near: each of its programs goes through some features of all
samples, projects them on the regressors, moves their coefficients, and goes through the same features again, which a
cache still holds, to subtract. How far coefficients move is known before; what depends on the features depends on each
feature alone, so that no program waits for another.

`DECONFOUND_KERNELS=0` in the environment chooses plain torch everywhere; `TRITON_INTERPRET=1` runs the kernels on a
CPU, slowly, for tests.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch
from torch import Tensor

from deconfound.layers import torch_private

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
AVAILABLE = os.environ.get("DECONFOUND_KERNELS", "1") != "0" and find_spec("triton") is not None

# Up to so many regressors a pass is bound by memory; beyond them cuBLAS multiplies faster.
MOST_REGRESSORS = 32
TYPES = (torch.float32, torch.bfloat16, torch.float16)


def possible(features: Tensor) -> bool:
    """A first look, which costs little: there are none on a CPU."""
    return AVAILABLE and (features.is_cuda or INTERPRETED)


def usable(features: Tensor, coefficients: Tensor) -> bool:
    """Whether the kernels serve features like these, with coefficients `(q, …)`."""
    return (
        possible(features)
        and features.dtype in TYPES
        and coefficients.dtype == torch.float32
        and coefficients.device == features.device
        and coefficients.shape[0] <= MOST_REGRESSORS
        and features.numel() > 0
        and coefficients.numel() > 0
        and not torch_private.is_exporting()
    )
