"""Layers: features and metadata of any form and size, in training and in eval."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import deconfound as dc
from tests.fuzz.harness import target
from tests.fuzz.measures import NO_NUMBERS, SAME

KINDS = ["mdn", "mdn batch", "mdn training", "pmdn", "pmdn frozen", "pmdn average", "rmdn", "joint", "alternating"]
TABLE = {
    "age": np.random.default_rng(0).normal(60, 9, 24),
    "site": np.arange(24) % 3,
    "dx": np.random.default_rng(1).integers(0, 2, 24),
}


def made(kind: str, design: dc.Design, shape: Any, **options: Any) -> torch.nn.Module:
    builders = {
        "mdn": lambda: dc.MDN(design, shape, **options),
        "mdn batch": lambda: dc.MDN(design, shape, gram="batch", **options),
        "mdn training": lambda: dc.MDN(design, shape, gram="training", **options),
        "pmdn": lambda: dc.PMDN(design, shape, **options),
        "pmdn frozen": lambda: dc.PMDN(design, shape, gradient="frozen", **options),
        "pmdn average": lambda: dc.PMDN(design, shape, step="average", **options),
        "rmdn": lambda: dc.RMDN(design, shape, **options),
        "joint": lambda: dc.JointPMDN(design, shape, **options),
        "alternating": lambda: dc.AlternatingPMDN(design, shape, **options),
    }
    layer: torch.nn.Module = builders[kind]()
    return layer


@target
def layer_shapes(data: st.DataObject) -> str:
    """Shapes and options of any kind build a layer that takes such features, or are refused."""
    design = dc.Design(["age", "site"], ["dx"], types={"site": "categorical"}).fit(TABLE)
    size = st.sampled_from([1, 2, 3, np.int64(2), np.int32(3), 0, -1, None, 1.5, "4", True, torch.tensor(2)])
    shape = data.draw(st.one_of(size, st.lists(size, max_size=3), st.lists(size, max_size=3).map(tuple)))
    share = data.draw(st.sampled_from([None, None, "positions", "channels", 3]))
    axis = data.draw(st.sampled_from([1, -1, 2, 0, 5, -9, np.int64(1), "1", None]))
    layer = made(data.draw(st.sampled_from(KINDS)), design, shape, share=share, channel_axis=axis)
    sizes = [2 if edge is None else int(edge) for edge in layer.feature_shape]
    out = layer(torch.randn(5, *sizes), design.encode({name: values[:5] for name, values in TABLE.items()}))
    assert out.shape == (5, *sizes)
    assert out.isfinite().all()
    assert repr(layer)
    return "read"


@target
def layer_features(data: st.DataObject) -> str:
    """Finite numbers give finite residuals of their type; what is not finite teaches nothing, and is counted."""
    design = dc.Design(["age", "site"], ["dx"], types={"site": "categorical"}).fit(TABLE)
    kind = data.draw(st.sampled_from(KINDS))
    layer = made(kind, design, 2)
    metadata = design.encode(TABLE)
    good = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))
    size = data.draw(st.sampled_from([1.0, 1.0, 1e-30, 1e6, 1e15, 1e30, 1e38]))
    forms = {
        "plain": lambda x: x,
        "double": lambda x: x.double(),
        "half": lambda x: x.half(),
        "bfloat16": lambda x: x.bfloat16(),
        "transposed": lambda x: x.T.contiguous().T,
        "gradient": lambda x: x.clone().requires_grad_(),
        "nan": lambda x: torch.where(torch.arange(24)[:, None] == 3, torch.nan, x),
        "infinite": lambda x: torch.where(torch.arange(24)[:, None] == 3, -torch.inf, x),
        "integers": lambda x: x.long(),
        "complex": lambda x: x + 1j,
        "booleans": lambda x: x > 0,
        "array": lambda x: x.numpy(),
        "list": lambda x: x.tolist(),
        "nothing": lambda x: None,
        "empty": lambda x: x[:0],
        "narrow": lambda x: x[:, :1],
        "flat": lambda x: x[:, 0],
    }
    name = data.draw(st.sampled_from(["plain", *forms]))
    given = forms[name](size * good)
    kinds = {**SAME, **NO_NUMBERS, "short": lambda x: x[:-1], "thin": lambda x: x[:, :-1]}
    odd = data.draw(st.sampled_from([None, None, None, *kinds]))
    handed = metadata if odd is None else kinds[odd](metadata.astype(np.float64))
    if data.draw(st.booleans()):
        layer.eval()
    weights = [np.ones(24), np.zeros(24), -np.ones(24), np.full(24, np.nan), "x"]
    weight = data.draw(st.sampled_from([None] * 6 + weights))
    out = layer(given, metadata[:0] if name == "empty" else handed, weight=weight)
    assert out.shape == given.shape
    assert out.dtype == given.dtype
    if name in ("plain", "double", "transposed", "gradient") and size <= 1e15:
        assert out.isfinite().all(), (kind, name, size)
    if name == "gradient" and size <= 1e15:
        out.sum().backward()
        assert given.grad.isfinite().all()
    # Whatever came, the layer learns on: no poison stays.
    layer.train()
    with torch.no_grad():
        for _ in range(2):
            assert layer(good, metadata).isfinite().all(), (kind, name, size)
    return "read"
