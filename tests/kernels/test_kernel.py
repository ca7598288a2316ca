"""Launches that are remembered; a stand-in takes the place of Triton, which needs a GPU."""

import inspect
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from deconfound.kernels import deciding, gains, kernel, launch, passes, responses
from deconfound.kernels.kernel import Kernel


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


def launch_one(one, *, x=None, y=None, n=5, q=3, width=16, warps=4, registers=None):
    tensors = (torch.zeros(32) if x is None else x, y)
    one((7,), tensors, (n, 0.5), {"BD": width, "Q": q}, warps, registers)


def test_a_kind_of_call_that_is_known_goes_to_its_compiled_form_with_arguments_in_order(function):
    one = Kernel(function)
    x = torch.zeros(32)
    launch_one(one, x=x)
    launch_one(one, x=x)
    ((grid, arguments, constants),) = function.compiled
    assert (grid, arguments) == ((7,), (x, None, 5, 0.5))
    assert constants == {"BD": 16, "Q": 3, "num_warps": 4, "enable_fp_fusion": True}
    assert function.launched == [((7, 1, 1), (x, None, 5, 0.5, 3, 16))]


@pytest.mark.parametrize(
    "other",
    [
        {"n": 6},
        {"q": 4},
        {"warps": 8},
        {"registers": 96},
        {"x": torch.zeros(33)[1:]},
        {"x": torch.zeros(32, dtype=torch.bfloat16)},
        {"y": torch.zeros(32)},
        {"x": SimpleNamespace(is_cuda=False, device=torch.device("cpu", 1), dtype=torch.float32, data_ptr=lambda: 16)},
    ],
    ids=["number", "constant", "warps", "registers", "alignment", "type", "a tensor instead of none", "device"],
)
def test_another_kind_of_call_is_compiled_for_itself(function, other):
    one = Kernel(function)
    for options in ({}, other):
        launch_one(one, **options)
    assert len(function.compiled) == 2
    assert not function.launched


def test_a_kernel_is_launched_on_the_device_of_its_tensors(function, monkeypatch):
    """A model may lie on another GPU than torch's current one, on which Triton would launch."""
    entered = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(entered.append(device)))
    one = Kernel(function)
    for index in (0, 1, 1):
        device = torch.device("cuda", index)
        launch_one(one, x=SimpleNamespace(is_cuda=True, device=device, dtype=torch.float32, data_ptr=lambda: 16))
    assert entered == [torch.device("cuda", 1)] * 2
    assert (len(function.compiled), len(function.launched)) == (2, 1)


def test_kinds_are_forgotten_when_there_are_too_many(function, monkeypatch):
    monkeypatch.setattr(kernel, "MOST_REMEMBERED", 3)
    one = Kernel(function)
    for n in range(10):
        launch_one(one, n=n)
        assert len(one.known) <= 3


def test_every_kernel_of_ours_is_given_exactly_what_it_takes(monkeypatch):
    """Triton's interpreter drops constants that a kernel does not know; its compiler refuses them."""
    seen = []

    def look(self, grid, tensors, numbers, constants, *options):
        names = list(inspect.signature(getattr(self.function, "fn", self.function)).parameters)
        seen.append(self.function)
        assert set(names[len(tensors) + len(numbers) :]) == set(constants)

    monkeypatch.setattr(Kernel, "__call__", look)
    x, r, c, beta = torch.zeros(4, 6), torch.zeros(4, 3), torch.zeros(4, 2), torch.zeros(3, 6)
    gram, numbers, one = torch.eye(3), torch.zeros(5), torch.zeros(())
    launch.cross(x, r)
    launch.subtract(x, c, beta[:2])
    launch.move(x, beta, r, c, gram, numbers, one, one)
    state = (torch.zeros(3), one, torch.zeros(3), torch.zeros(3, 6))
    deciding.decide_step(x, r, None, gram, one, torch.zeros(3), beta, state, one, [2, 0, 1], [8, 8], 0, [300, 5, 20000])
    state = (torch.zeros(1), one, torch.zeros(1), torch.zeros(2, 6))
    constants = [300, 5, 20000, 1.4, 6, 2]
    deciding.decide_response(x, c, beta[:2], one, one, state, None, 1, [8, 8], constants)
    assert set(seen) == {
        passes.sum_products, passes.subtract_only, passes.move_and_subtract, gains.measure_errors,
        gains.vote_and_decide, responses.measure_gradients, responses.vote_and_decide,
    }  # fmt: skip
