"""`build` finds a network by its name, and says which part of a name or option is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from sklearn.base import BaseEstimator
from torch import nn

from deconfound.errors import OptionError
from deconfound.networks import MLP, ConvNet, build, is_builtin, is_estimator

HERE = __name__


def both(shape, outputs, *, width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], width), nn.Linear(width, outputs))


def neither(width):
    return nn.Linear(width, width)


def anything(outputs, **options):
    network = nn.Linear(2, outputs)
    network.options = options
    return network


def broken(outputs):
    raise RuntimeError("no such layer")


def a_list(outputs):
    return [outputs]


class Constant(BaseEstimator):
    """An estimator of our own."""

    def __init__(self, value=0):
        self.value = value

    def fit(self, x, y):
        return self


def make_constant(outputs):
    return Constant(outputs)


def failure(*arguments):
    with pytest.raises(OptionError) as error:
        build(*arguments)
    return str(error.value)


def test_names_of_ours_build_our_classes():
    assert isinstance(build("mlp", (3,), 1), MLP)
    assert isinstance(build("convnet", (3, 8, 8), 1), ConvNet)
    assert [is_builtin(name) for name in ("mlp", "convnet", "huggingface")] == [True] * 3
    assert not is_builtin("MLP")


def test_a_callable_gets_those_of_shape_and_outputs_that_it_names():
    """Kills arguments by position, and `shape` for callables that do not know it."""
    network = build(f"{HERE}:both", (5,), 2, {"width": 3})
    assert network(torch.zeros(1, 5)).shape == (1, 2)
    assert network[1].out_features == 3
    assert build(f"{HERE}:neither", (5,), 2, {"width": 3}).in_features == 3
    assert build(f"{HERE}:anything", (5,), 2, {"depth": 3}).options == {"depth": 3}


def test_classes_and_factories_of_estimators_are_taken():
    ridge = build("sklearn.linear_model:Ridge", (5,), 1, {"alpha": 2.0})
    assert is_estimator(ridge)
    assert ridge.alpha == 2.0
    assert build(f"{HERE}:make_constant", (5,), 3).value == 3
    assert not is_estimator(Constant)
    assert not is_estimator(nn.Linear(1, 1))


def test_a_misspelt_option_and_wrong_values_are_reported_together():
    """Kills an error that stops at the first fault."""
    text = failure("mlp", (3, 8, 8), 1, {"hiden": [4], "dropout": 2, "shape": (1,)})
    assert "hiden= is no option of mlp. Did you mean 'hidden'?" in text
    assert "shape= is no option of mlp." in text
    assert "An MLP reads samples of shape (d,); got (3, 8, 8)" in text
    assert "dropout must be a number from 0 to below 1; got 2." in text
    assert "(shape, outputs, *, hidden=(64, 32), dropout=0.0)" in text


def test_options_of_a_callable_are_checked_against_its_own_signature():
    text = failure(f"{HERE}:both", (5,), 2, {"widht": 3, "outputs": 1})
    assert f"widht= is no option of {HERE}:both. Did you mean 'width'?" in text
    assert "outputs= is no option" in text
    assert "(shape, outputs, *, width=4)" in text
    assert "n_estimators" in failure("sklearn.ensemble:RandomForestClassifier", (5,), 1, {"n": 3})
    assert "outputs= is no option" in failure(f"{HERE}:anything", (5,), 2, {"outputs": 1})
    assert "It has no options." in failure(f"{HERE}:a_list", (5,), 1, {"n": 3})


def test_what_fails_is_named():
    cases = [
        ("mpl", "There is no network 'mpl'. Did you mean 'mlp'?"),
        ("no_such_package.nets:make", "No module named 'no_such_package'"),
        (f"{HERE}:bothh", "the module has no 'bothh'. Did you mean 'both'"),
        (f"{HERE}:HERE", "must be a callable; got a str"),
        (f"{HERE}:broken", f"{HERE}:broken fails with outputs=2: RuntimeError: no such layer."),
        (f"{HERE}:neither", "missing 1 required positional argument: 'width'"),
        (f"{HERE}:a_list", "it returned a list. Return the network itself."),
        ("huggingface", "missing 1 required keyword-only argument: 'model'"),
    ]
    for name, text in cases:
        assert text in failure(name, (5,), 2)


def test_an_error_of_the_callable_is_kept_as_the_cause():
    with pytest.raises(OptionError) as error:
        build(f"{HERE}:broken", (5,), 2)
    assert isinstance(error.value.__cause__, RuntimeError)


def test_modules_of_the_current_folder_are_found_by_the_installed_command(tmp_path):
    """A script elsewhere has its own folder on the path, not the current one."""
    (tmp_path / "own_networks.py").write_text(
        textwrap.dedent("""
        from torch import nn

        def make(outputs):
            from own_helper import width
            return nn.Linear(width, outputs)
        """)
    )
    (tmp_path / "own_helper.py").write_text("width = 7\n")
    (tmp_path / "bad.py").write_text("import no_such_dependency\n")
    script = tmp_path / "elsewhere" / "script.py"
    script.parent.mkdir()
    script.write_text(
        textwrap.dedent("""
        from deconfound.networks import build
        print(build("own_networks:make", (7,), 2))
        try:
            build("bad:make", (7,), 2)
        except ValueError as error:
            print(error)
        """)
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script)]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert "Linear(in_features=7, out_features=2, bias=True)" in result.stdout
    assert "Network 'bad:make' cannot be imported" in result.stdout
    assert "No module named 'no_such_dependency'" in result.stdout
