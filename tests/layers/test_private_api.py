"""What torch does not promise is used in one file."""

import re
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

import deconfound
from deconfound.layers import torch_private

SOURCE = Path(deconfound.__file__).parent
PRIVATE = re.compile(r"torch\._[a-zA-Z]|torch\.\w+\._[a-zA-Z]|\b_foreach_|\b_is_exporting_flag")


def test_private_names_of_torch_stand_in_one_file():
    found = {
        path.relative_to(SOURCE).as_posix(): lines
        for path in SOURCE.rglob("*.py")
        if (lines := [line.strip() for line in path.read_text().splitlines() if PRIVATE.search(line)])
    }
    assert set(found) == {"layers/torch_private.py"}


def test_they_say_what_they_promise():
    assert not torch_private.in_backward()
    assert not torch_private.in_functorch()
    assert not torch_private.is_exporting()
    seen = []
    x = torch.ones(2, requires_grad=True)
    y = 2 * x
    y.register_hook(lambda gradient: seen.append(torch_private.in_backward()))
    y.sum().backward()
    torch.vmap(lambda x: (seen.append(torch_private.in_functorch()), x)[1])(torch.ones(3))
    assert seen == [True, True]


class Look(torch.autograd.Function):
    seen: ClassVar[list[bool]] = []

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Look.seen.append(torch_private.backward_reaches_parameters(ctx))
        return gradient


def test_a_backward_for_inputs_alone_is_told_from_one_of_training():
    Look.seen.clear()
    linear, x = nn.Linear(3, 2), torch.randn(4, 3, requires_grad=True)
    Look.apply(linear(x)).sum().backward()
    torch.autograd.grad(Look.apply(linear(x)).sum(), x)
    torch.autograd.grad(Look.apply(linear(x)).sum(), list(linear.parameters()))
    Look.apply(linear(x)).sum().backward(inputs=[x])
    Look.apply(x).sum().backward()
    assert Look.seen == [True, False, True, False, True]
