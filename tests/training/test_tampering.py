"""Files of a run that were changed, exchanged or forged are refused; a run folder executes no code."""

import json
import pickle
import shutil
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deconfound.errors import DeconfoundError, RunError
from deconfound.training import compare, predict, read_run_outputs
from deconfound.training.run_folder import RESULT, open_run, signed
from tests.training import tiny


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run of PMDN with its table, and one of another seed on the same data."""
    folder = tmp_path_factory.mktemp("tampering")
    path = tiny.write(folder)
    run, other = tiny.config(path, folder / "run"), tiny.config(path, folder / "other", run={"seed": 4})
    tiny.fit(run)
    tiny.fit(other)
    return run, path, folder


@pytest.fixture
def copied(made, tmp_path):
    """A copy of that run that may be changed: its config and its folder."""
    config, _, folder = made
    shutil.copytree(folder / "run", tmp_path / "run")
    return config.updated(run={"folder": str(tmp_path / "run")}), tmp_path / "run"


def refused(config, path, text):
    """Everything that reads the run refuses it."""
    with pytest.raises(RunError, match=text):
        predict(config.run.folder, path)
    with pytest.raises(RunError, match=text):
        tiny.fit(config)
    with pytest.raises(RunError, match=text):
        read_run_outputs(config.run.folder)


def changed_digit(file):
    """Replace one digit by another."""
    content = bytearray(file.read_bytes())
    place = next(i for i in range(len(content) // 2, len(content)) if chr(content[i]) in "12345678")
    content[place] += 1
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["design.json", "scaling.json", "predictions.csv", "checkpoint.pt", "history.csv"])
def test_a_changed_digit_is_refused_by_everything_that_reads_the_file(made, copied, name):
    config, folder = copied
    changed_digit(folder / "fold-1" / name)
    text = rf"fold-1/{name} must be as the run wrote it; got content that does not match its digest\. Delete .*fold-1"
    with pytest.raises(RunError, match=text):
        tiny.fit(config)
    if name != "history.csv":
        with pytest.raises(RunError, match=text):
            predict(folder, made[1])
    shutil.rmtree(folder / "fold-1")  # what the error advises
    tiny.fit(config)


def test_a_changed_digit_of_a_result_or_of_the_description_is_refused(made, copied):
    config, folder = copied
    changed_digit(folder / "fold-0" / RESULT)
    refused(config, made[1], r"fold-0/result\.json must be as the run wrote it")
    shutil.copy(made[2] / "run" / "fold-0" / RESULT, folder / "fold-0" / RESULT)
    changed_digit(folder / "run.json")
    refused(config, made[1], r"run\.json must be as the run wrote it; .* Bring the old file back")


def test_another_folds_files_are_refused(made, copied):
    config, folder = copied
    shutil.rmtree(folder / "fold-1")
    shutil.copytree(folder / "fold-0", folder / "fold-1")
    refused(config, made[1], r"fold-1/result\.json must belong to fold 1 of this run; got one of another fold")


def test_another_runs_files_are_refused(made, copied):
    config, folder = copied
    shutil.rmtree(folder / "fold-1")
    shutil.copytree(made[2] / "other" / "fold-1", folder / "fold-1")
    refused(config, made[1], r"fold-1/result\.json must belong to fold 1 of this run; got one of another run")


def test_another_folds_design_is_refused(made, copied):
    _, folder = copied
    shutil.copy(folder / "fold-0" / "design.json", folder / "fold-1" / "design.json")
    with pytest.raises(RunError, match=r"fold-1/design\.json must be as the run wrote it"):
        predict(folder, made[1])


def test_a_comparison_refuses_changed_runs(made, tmp_path):
    options = {"methods": ["none"], "permutations": 39, "bootstraps": 40}
    config = tiny.config(made[1], tmp_path / "all", compare=options, training={"epochs": 1})
    compare(config)
    changed_digit(tmp_path / "all" / "none-seed-0" / "fold-0" / "predictions.csv")
    with pytest.raises(RunError, match=r"predictions\.csv must be as the run wrote it"):
        compare(config)


class Bomb:
    def __reduce__(self):
        return (sys.modules["builtins"].__dict__["exec"], ("raise SystemExit('code of a checkpoint was executed')",))


def forged(folder, name, content):
    """Put a file into fold 0 with all digests right, as someone who means harm would."""
    fold = open_run(folder).folds[0]
    result = {key: value for key, value in fold.result().items() if key not in ("run", "fold", "files", "sha256")}
    files = {file: fold.read(file) for file in fold.result()["files"]}
    fold.write({**files, name: content}, result)


@pytest.mark.parametrize("how", ["pickle", "torch", "rubbish", "tensors of another kind"])
def test_a_forged_checkpoint_is_refused_in_our_own_words(made, copied, tmp_path, how):
    _, folder = copied
    if how == "pickle":
        content = pickle.dumps({"weight": Bomb()})
    elif how == "torch":
        torch.save({"weight": Bomb()}, tmp_path / "bomb.pt")
        content = (tmp_path / "bomb.pt").read_bytes()
    elif how == "rubbish":
        content = b"no checkpoint at all"
    else:
        torch.save({"weight": torch.zeros(3)}, tmp_path / "other.pt")
        content = (tmp_path / "other.pt").read_bytes()
    forged(folder, "checkpoint.pt", content)
    with pytest.raises(RunError) as caught:
        predict(folder, made[1])
    expected = "must fit the network of its config" if "tensors" in how else "must hold plain tensors, as `fit` writes"
    assert expected in str(caught.value)
    assert "weights_only" not in str(caught.value)


def test_a_foreign_run_imports_nothing_unless_it_is_trusted(made, copied, tmp_path, monkeypatch):
    _, folder = copied
    (tmp_path / "harmful.py").write_text("raise SystemExit('code of a run folder was executed')\n")
    monkeypatch.syspath_prepend(tmp_path)
    about = json.loads((folder / "run.json").read_text())
    del about["sha256"]
    about["config"]["network"]["name"] = "harmful:build"
    (folder / "run.json").write_text(json.dumps(signed(about)))
    (folder / "config.yaml").unlink()
    for read in (lambda: predict(folder, made[1]), lambda: predict(folder, made[1], trust=False)):
        with pytest.raises(RunError, match=r"or be trusted; got 'harmful:build', which is code .* add --trust"):
            read()
    read_run_outputs(folder)
    with pytest.raises(SystemExit, match="code of a run folder was executed"):  # the control: that is what trust means
        predict(folder, made[1], trust=True)


def test_a_network_of_ones_own_beside_the_config_is_found_and_its_source_is_part_of_the_run(tmp_path):
    code = "import torch\n\ndef build(outputs, shape):\n    return torch.nn.Linear(shape[0], outputs)\n"
    (tmp_path / "own_network_beside.py").write_text(code)
    content = tiny.settings(
        tiny.write(tmp_path), tmp_path / "run", network={"name": "own_network_beside:build", "options": {}},
        method={"name": "none"}, training={"epochs": 1},
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(content))  # JSON is YAML
    tiny.fit(tmp_path / "config.json")
    found = predict(tmp_path / "run", tmp_path / "table.csv", trust=True)
    assert found.scores.shape == (72, 1)
    (tmp_path / "own_network_beside.py").write_text(code.replace("Linear(", "Linear(bias=False, in_features="))
    with pytest.raises(RunError, match=r"the source code of the network of .*run must be the one it was started with"):
        tiny.fit(tmp_path / "config.json")


IN_A_FOLD = ("result.json", "design.json", "scaling.json", "predictions.csv", "checkpoint.pt", "features.npz")
NAMES = ["run.json", "config.yaml", *(f"fold-{fold}/{name}" for fold in (0, 1) for name in IN_A_FOLD)]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(name=st.sampled_from(NAMES), place=st.floats(0, 1), change=st.sampled_from(["flip", "cut", "empty", "gone"]))
def test_whatever_is_done_to_a_file_the_numbers_are_right_or_refused(made, tmp_path_factory, name, place, change):
    _, path, folder = made
    copy = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(folder / "run", copy)
    content = bytearray((copy / name).read_bytes())
    at = min(int(place * len(content)), len(content) - 1)
    if change == "gone":
        (copy / name).unlink()
    else:
        content[at] ^= 0x11
        (copy / name).write_bytes({"flip": bytes(content), "cut": bytes(content[:at]), "empty": b""}[change])
    for read in (lambda run: predict(run, path).scores.numpy(), lambda run: read_run_outputs(run).outputs):
        try:
            found = read(copy)
        except DeconfoundError as error:
            text = str(error)
        else:
            assert np.array_equal(found, read(made[2] / "run"))
            continue
        assert str(copy) in text
