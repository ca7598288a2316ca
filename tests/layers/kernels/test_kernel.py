"""Launches that are remembered; a stand-in takes the place of Triton, which needs a GPU."""

import inspect
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from deconfound.layers.pmdn.kernels import kernel, launch, passes
from deconfound.layers.pmdn.kernels.kernel import Launch
from deconfound.layers.pmdn.kernels.tiles import Tile


class Compiled:
    def __init__(self, calls):
        self.calls = calls

    def __getitem__(self, grid):
        return lambda *arguments: self.calls.append((grid, arguments))


class Function:
    """Compiles at every call, as far as it can tell."""

    arg_names = ("x", "y", "n", "step", "Q", "BD")

    def __init__(self):
        self.compiled, self.launched = [], []

    def __getitem__(self, grid):
        def compile_and_launch(*arguments, **constants):
            self.compiled.append((grid, arguments, constants))
            return Compiled(self.launched)

        return compile_and_launch


@pytest.fixture
def function(monkeypatch):
    monkeypatch.setattr(kernel, "DIRECT", True)
    return Function()


@pytest.fixture
def one(function):
    return Launch(function, (7,), (5, 0.5), {"BD": 16, "Q": 3})


def test_tensors_of_a_known_kind_go_to_the_compiled_form_with_arguments_in_order(function, one):
    x = torch.zeros(32)
    one(x, None)
    one(x, None)
    ((grid, arguments, constants),) = function.compiled
    assert (grid, arguments) == ((7,), (x, None, 5, 0.5))
    assert constants == {"BD": 16, "Q": 3, "num_warps": 4, "enable_fp_fusion": True}
    assert function.launched == [((7, 1, 1), (x, None, 5, 0.5, 3, 16))]


def test_warps_and_registers_reach_the_compiler(function):
    Launch(function, (7,), (5, 0.5), {"BD": 16, "Q": 3}, warps=8, registers=96)(torch.zeros(32), None)
    ((_, _, constants),) = function.compiled
    assert (constants["num_warps"], constants["maxnreg"]) == (8, 96)


@pytest.mark.parametrize(
    "other",
    [
        (torch.zeros(33)[1:], None),
        (torch.zeros(32, dtype=torch.bfloat16), None),
        (torch.zeros(32), torch.zeros(32)),
        (SimpleNamespace(is_cuda=False, device=torch.device("cpu", 1), dtype=torch.float32, data_ptr=lambda: 16), None),
    ],
    ids=["alignment", "type", "a tensor instead of none", "device"],
)
def test_tensors_of_another_kind_are_compiled_for(function, one, other):
    for tensors in ((torch.zeros(32), None), other):
        one(*tensors)
    assert len(function.compiled) == 2
    assert not function.launched


def test_a_kernel_is_launched_on_the_device_of_its_tensors(function, one, monkeypatch):
    """A model may lie on another GPU than torch's current one, on which Triton would launch."""
    entered = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(entered.append(device)))
    for index in (0, 1, 1):
        device = torch.device("cuda", index)
        one(SimpleNamespace(is_cuda=True, device=device, dtype=torch.float32, data_ptr=lambda: 16), None)
    assert entered == [torch.device("cuda", 1)] * 2
    assert (len(function.compiled), len(function.launched)) == (2, 1)


ONE = torch.zeros(())
NUMBERS = torch.randn(40, 48, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"x": NUMBERS[1:9, :24]}, True),
        ({"x": NUMBERS[:9, :24]}, False),
        ({"x": NUMBERS[:8, :23], "coefficients": NUMBERS[:3, :23]}, False),
        ({"x": NUMBERS[:8, :24].clone()}, False),
        ({"x": NUMBERS[:8, :24].bfloat16()}, False),
        ({"regressors": NUMBERS[:3, :8].T}, False),
        ({"confounds": NUMBERS[:8, :1]}, False),
        ({"by": launch.Averaging(NUMBERS[:1, :24], 0.1, 2.0)}, False),
        ({"whole": False}, False),
        ({"tile": Tile(8, 16, 1)}, False),
    ],
    ids=["nothing", "place", "rows", "features", "distance of rows", "size of a number", "strides", "confounds", "by",
         "whole", "tile"],
)  # fmt: skip
def test_a_call_is_made_anew_for_what_changes_it(monkeypatch, change, same):
    seen = []
    monkeypatch.setattr(Launch, "__call__", lambda self, *tensors: seen.append(self))
    usual = {
        "x": NUMBERS[:8, :24], "coefficients": NUMBERS[:3, :24], "regressors": NUMBERS[:8, :3],
        "confounds": NUMBERS[:8, :2], "rates": NUMBERS[0, :4], "by": launch.Descent(NUMBERS[:3, :3], ONE, ONE),
    }  # fmt: skip
    launch.move(**usual)
    launch.move(**usual | change)
    assert (seen[0] is seen[1]) == same


def test_every_kernel_of_ours_is_given_exactly_what_it_takes(monkeypatch):
    """Triton's interpreter drops constants that a kernel does not know; its compiler refuses them."""
    seen = []

    def look(self, *tensors):
        names = list(inspect.signature(getattr(self.function, "fn", self.function)).parameters)
        seen.append(self.function)
        assert set(names[len(tensors) + len(self.numbers) :]) == set(self.constants)

    monkeypatch.setattr(Launch, "__call__", look)
    x, r, c, beta = torch.zeros(4, 6), torch.zeros(4, 3), torch.zeros(4, 2), torch.zeros(3, 6)
    launch.cross(x, r)
    launch.subtract(x, c, beta[:2])
    launch.move(x, beta, r, c, torch.zeros(4), launch.Descent(torch.eye(3), ONE, ONE))
    launch.move(x, beta[:2], c, c, ONE, launch.Averaging(torch.zeros(1, 6), 0.25, 2.0))
    assert set(seen) == {passes.sum_products, passes.subtract_only, passes.move_and_subtract}
