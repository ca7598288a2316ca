"""Launches that are remembered; a stand-in takes the place of Triton, which needs a GPU."""

import inspect
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from deconfound.layers.pmdn.kernels import deciding, gain_kernels, gradient_kernels, kernel, launch, ops, passes
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


def test_an_early_kernel_is_launched_as_one_that_waits_by_itself(function):
    Launch(function, (7,), (5, 0.5), {"BD": 16, "Q": 3}, early=True)(torch.zeros(32), None)
    ((_, _, constants),) = function.compiled
    assert constants["launch_pdl"] is True


@pytest.mark.parametrize(
    ("capability", "cuda", "wait", "expected"),
    [
        ((9, 0), "12.8", print, True),
        ((12, 0), "12.8", print, True),
        ((8, 9), "12.8", print, False),
        ((9, 4), None, print, False),  # AMD counts its own way
        ((9, 0), "12.8", None, False),  # an older Triton
    ],
)
def test_kernels_overlap_only_where_they_can(monkeypatch, capability, cuda, wait, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(kernel, "wait_for_previous", wait)
    monkeypatch.setattr(kernel, "INTERPRETED", False)
    assert kernel.may_overlap.__wrapped__(torch.device("cuda", 0)) == expected
    assert not kernel.may_overlap.__wrapped__(torch.device("cpu"))


def test_only_a_pass_after_its_decision_begins_early(monkeypatch):
    seen = []
    monkeypatch.setattr(launch, "may_overlap", lambda device: True)
    monkeypatch.setattr(deciding, "may_overlap", lambda device: True)
    monkeypatch.setattr(Launch, "__call__", lambda self, *tensors: seen.append(self))
    deciding._step_launches.cache_clear()
    deciding._average_launches.cache_clear()
    x, r, c, beta = torch.zeros(4, 6), torch.zeros(4, 3), torch.zeros(4, 2), torch.zeros(3, 6)
    gram, one, counts = torch.eye(3), torch.zeros(()), torch.zeros(2)
    state = (torch.zeros(10), torch.zeros(3, 6), torch.zeros(6))
    rest = ([2, 0, 1], [8, 8], 0.0, [300.0, 5.0, 20000.0], 0, True)
    ops.pmdn_forward(x, r, r, None, c, gram, counts, torch.zeros(3), beta, *state, one, *rest)
    launch.move(x, beta, r, c, gram, torch.zeros(5), one, one)
    state, constants = (torch.zeros(4), torch.zeros(2, 6), torch.zeros(6)), [300.0, 5.0, 20000.0, 1.4, 6.0, 2.0]
    ops.pmdn_backward(x, c, c, beta[:2], counts, *state, None, 1, [8, 8], constants, 0, True)
    assert [call.constants["EARLY"] for call in seen] == [True, True, True, False, True, True, True]
    assert ["launch_pdl" in call.options for call in seen] == [False, True, True, False, False, True, True]
    deciding._step_launches.cache_clear()
    deciding._average_launches.cache_clear()


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


NUMBERS = torch.randn(40, 48, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"features": NUMBERS[1:9, :24]}, True),
        ({"features": NUMBERS[:9, :24]}, False),
        ({"features": NUMBERS[:8, :23], "coefficients": NUMBERS[:3, :23]}, False),
        ({"features": NUMBERS[:8, :24].clone()}, False),
        ({"features": NUMBERS[:8, :24].bfloat16()}, False),
        ({"regressors": NUMBERS[:3, :8].T}, False),
        ({"confounds": NUMBERS[:8, :1]}, False),
        ({"gram": None}, False),
        ({"whole": False}, False),
        ({"tile": Tile(8, 16, 1)}, False),
    ],
    ids=["nothing", "place", "rows", "features", "distance of rows", "size of a number", "strides", "confounds", "gram",
         "whole", "tile"],
)  # fmt: skip
def test_a_call_is_made_anew_for_what_changes_it(monkeypatch, change, same):
    seen = []
    monkeypatch.setattr(Launch, "__call__", lambda self, *tensors: seen.append(self))
    usual = {
        "features": NUMBERS[:8, :24], "coefficients": NUMBERS[:3, :24], "regressors": NUMBERS[:8, :3],
        "confounds": NUMBERS[:8, :2], "gram": NUMBERS[:3, :3], "numbers": NUMBERS[0, :5], "flag": None, "skipped": None,
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
    gram, numbers, one = torch.eye(3), torch.zeros(5), torch.zeros(())
    launch.cross(x, r)
    launch.subtract(x, c, beta[:2])
    launch.move(x, beta, r, c, gram, numbers, one, one)
    state = (torch.zeros(10), torch.zeros(3, 6), torch.zeros(6))
    groups, runs, counts = [2, 0, 1], [8, 8], torch.zeros(2)
    deciding.decide_step(
        x, r, r, None, gram, counts, torch.zeros(3), beta, state, one, groups, runs, 0, [300, 5, 20000]
    )
    state = (torch.zeros(4), torch.zeros(2, 6), torch.zeros(6))
    deciding.decide_average(x, c, beta[:2], counts, state, None, 1, runs, [300, 5, 20000, 1.4, 6, 2])
    assert set(seen) == {
        passes.sum_products, passes.subtract_only, passes.move_and_subtract, gain_kernels.sample_errors,
        gain_kernels.direct_and_decide, gradient_kernels.sample_gradients, gradient_kernels.direct_and_average,
    }  # fmt: skip
