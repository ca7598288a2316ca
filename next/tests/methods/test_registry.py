"""Methods by name: what exists, what its options are, and what a mistake is answered with."""

from __future__ import annotations

import inspect

import pytest

from deconfound.errors import OptionError
from deconfound.methods import METHODS, LayeredMethod, Method, make_method, method_options
from tests.attach.cohort import count_hooks
from tests.methods.problem import make_network, make_problem

PROBLEM = make_problem()
NAMES = ("none", "mdn", "rmdn", "pmdn", "adversarial", "residualized-inputs")


class Wide(Method):
    """A method with an option that has no default."""

    def __init__(self, network, setting, *, width, depth=2):
        super().__init__(network, setting)
        self.width, self.depth = width, depth


class Narrow(METHODS["pmdn"]):
    """A layered method with an option more."""

    def __init__(self, network, setting, *, narrow=3, **options):
        super().__init__(network, setting, **options)
        self.narrow = narrow


def test_the_methods():
    """Each has a one-line summary: the first line of its docstring."""
    assert tuple(METHODS) == NAMES
    for kind in METHODS.values():
        summary = inspect.getdoc(kind).split("\n")[0]
        assert summary.endswith(".")
        assert len(summary) <= 100
    needing = [name for name, kind in METHODS.items() if kind.needs_confounds]
    assert needing == ["mdn", "rmdn", "pmdn", "residualized-inputs"]


def test_the_options_of_each_method():
    shared = {"per": "channel", "where": "after", "channel_axis": None}
    assert method_options("none") == {}
    assert method_options("mdn") == {**shared, "gram": "training", "momentum": 0.1}
    assert method_options("adversarial") == {"weight": 0.2, "warmup": 0, "hidden": 32}
    assert method_options("residualized-inputs") == {"by": "regression"}
    empty = inspect.Parameter.empty
    assert method_options(f"{__name__}:Wide") == {"width": empty, "depth": 2}
    assert method_options(f"{__name__}:Narrow") == {"narrow": 3}


def test_methods_of_your_own():
    wide = make_method(f"{__name__}:Wide", make_network(), PROBLEM.setting(), {"width": 5})
    assert (wide.width, wide.depth) == (5, 2)
    options = {"narrow": 7, "memory": 80.0}
    narrow = make_method(f"{__name__}:Narrow", make_network(), PROBLEM.setting(), options)
    assert (narrow.narrow, narrow.network.layers["0"].memory) == (7, 80.0)
    literal = make_method(
        "tests.methods.literal:LiteralPMDN", make_network(), PROBLEM.setting(), {"per": "feature"}
    )
    assert isinstance(literal, LayeredMethod)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pmnd", r"method 'pmnd' is unknown\. Did you mean 'pmdn'.*Write 'package\.module:Class'"),
        (3, r"method 3 is unknown\. There are 'none', 'mdn'"),
        ("no.such:Thing", r"cannot be imported: ModuleNotFoundError: No module named 'no'"),
        (f"{__name__}:Wid", "the module has no 'Wid'. Did you mean 'Wide'"),
        (f"{__name__}:PROBLEM", r"subclass of deconfound\.methods\.Method; got Problem"),
    ],
)
def test_a_name_that_is_no_method(name, message):
    with pytest.raises(OptionError, match=message):
        make_method(name, make_network(), PROBLEM.setting())
    with pytest.raises(OptionError, match=message):
        method_options(name)


def test_all_faults_of_the_options_at_once():
    """Unknown names, text in place of a number, and a value out of range; the network stays."""
    network = make_network()
    options = {"gradints": "frozen", "step": "0.25", "memory": 0, "colour": 1}
    with pytest.raises(OptionError) as caught:
        make_method("pmdn", network, PROBLEM.setting(), options)
    assert str(caught.value).split("\n") == [
        "gradints= is no option of method 'pmdn'. Did you mean 'gradient'?",
        "step= must be a number; got '0.25'.",
        "colour= is no option of method 'pmdn'. "
        "There are 'per', 'where', 'channel_axis', 'gradient', 'memory', 'step'.",
        "memory must be a number of samples, 1 or more; got 0.",
    ]
    with pytest.raises(OptionError, match=r"colour= is no option of method 'pmdn'\. There are"):
        make_method("pmdn", network, PROBLEM.setting(), {"colour": 1})
    assert count_hooks(network) == 0
    with pytest.raises(OptionError, match=r"x= is no option of method 'none'\. It has no options"):
        make_method("none", network, PROBLEM.setting(), {"x": 1})
    with pytest.raises(OptionError, match="by= must be text; got 3"):
        make_method("residualized-inputs", network, PROBLEM.setting(), {"by": 3})
    with pytest.raises(OptionError, match=r"widht= is no option.*'width'(.|\n)*missing 1 required"):
        make_method(f"{__name__}:Wide", network, PROBLEM.setting(), {"widht": 3})
