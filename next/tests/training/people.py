"""Parts of a fold, methods and images that the tests of training share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

import deconfound as dc
from deconfound.methods import Method, Setting, make_method
from deconfound.training import Part
from tests.helpers import encode, fit_design, make_people

SIZES = {"train": slice(0, 300), "validation": slice(300, 400), "test": slice(400, 500)}


def make_parts(seed: int = 0, **options: Any) -> tuple[dc.Design, dict[str, Part]]:
    """Return a design and the three parts of a fold of 500 confounded people."""
    x, table = make_people(500, seed=seed, d=6)
    design = fit_design(table.iloc[SIZES["train"]])
    metadata = encode(design, table).float()
    target = torch.tensor(table["label"].to_numpy() == "case").float()[:, None]
    rows = torch.arange(500)
    x = (x / x.std(0)).float()
    parts = {
        name: Part(x, rows[where], metadata[where], target[where], **options)
        for name, where in SIZES.items()
    }
    return design, parts


def make_mlp(design: dc.Design, name: str = "none", seed: int = 0, **options: Any) -> Method:
    """Return a method around a small network with dropout."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
    setting = Setting(design, torch.zeros(2, 6), at=["0"])
    return make_method(name, network, setting, options)


def numbers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a state dict without the bytes of designs."""
    state = module.state_dict()
    return {name: value for name, value in state.items() if value.is_floating_point()}


def assert_equal_states(first: nn.Module, second: nn.Module) -> None:
    ours, theirs = numbers(first), numbers(second)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=0)


def make_table(n: int = 240, seed: int = 0) -> tuple[np.ndarray, pd.DataFrame]:
    """Return features `(n, 6)` and a table with ids, for whole folds."""
    x, table = make_people(n, seed=seed, d=6, association=0.3)
    return x.float().numpy(), table
