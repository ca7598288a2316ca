"""Many jobs: one that fails or dies does not stop the others, here or on a cluster."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from deconfound.errors import OptionError
from deconfound.training.jobs import open_runs, plan
from deconfound.training.run_folder import gather, open_run
from deconfound.training.workers import Cluster, execute
from tests.training import tiny

BASE = {"training": {"epochs": 2}, "method": {"name": "none"}}


def fragile(outputs, shape, how, only):
    """A network that fails in some runs."""
    network = torch.nn.Sequential(torch.nn.Linear(shape[0], 4), torch.nn.ReLU(), torch.nn.Linear(4, outputs))
    if only:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("this network is broken on purpose")
    return network


def runs(tmp_path, broken, how="raise"):
    path = tiny.write(tmp_path)
    made = []
    for name in ("first", "second", "third"):
        options = {"how": how, "only": name in broken}
        network = {"name": "tests.training.test_jobs:fragile", "options": options}
        made.append(tiny.config(path, tmp_path / name, network=network, **BASE))
    return made


def ended(tmp_path, outcomes):
    return {outcome.job.name: outcome.error for outcome in outcomes}


def test_a_failing_job_is_reported_and_the_others_end(tmp_path):
    jobs, _ = plan(open_runs(runs(tmp_path, {"second"})))
    outcomes = list(execute(jobs))
    errors = ended(tmp_path, outcomes)
    assert len(errors) == 6
    assert [name for name, error in errors.items() if error] == ["second fold 0", "second fold 1"]
    assert errors["second fold 0"] == "ValueError: this network is broken on purpose"
    assert "Traceback" in next(outcome.details for outcome in outcomes if outcome.error)
    assert len(gather(open_run(tmp_path / "third"))["folds"]) == 2


def test_processes_give_the_numbers_of_one_process(tmp_path):
    configs = runs(tmp_path, {"second"})[:2]
    jobs, _ = plan(open_runs(configs))
    errors = ended(tmp_path, execute(jobs, processes=2))
    assert {name for name, error in errors.items() if error} == {"second fold 0", "second fold 1"}
    network = configs[0].to_dict()["network"]
    alone = tiny.config(tmp_path / "table.csv", tmp_path / "alone", network=network, **BASE)
    assert gather(open_run(tmp_path / "first"))["folds"] == tiny.fit(alone)["folds"]


@pytest.mark.slow
def test_a_process_that_is_killed_loses_its_own_job_alone(tmp_path):
    jobs, _ = plan(open_runs(runs(tmp_path, {"second"}, "kill")[:2]))
    errors = ended(tmp_path, execute(jobs[1:3], processes=2))
    assert errors["first fold 1"] is None
    assert "its process was killed, twice" in errors["second fold 0"]


def test_an_array_of_submitit_runs_every_fold_it_can(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]))
    jobs, _ = plan(open_runs(runs(tmp_path, {"second"})[:2]))
    errors = ended(tmp_path, execute(jobs[1:3], cluster=Cluster("local", {"timeout_min": 5}, poll_seconds=0.1)))
    assert errors == {"first fold 1": None, "second fold 0": "ValueError: this network is broken on purpose"}
    assert (tmp_path / "first" / "fold-1" / "result.json").exists()
    assert list((tmp_path / "cluster").glob("*.err"))


def test_a_cluster_that_is_not_there_is_an_error(tmp_path):
    jobs, _ = plan(open_runs(runs(tmp_path, set())[:1]))
    with pytest.raises(OptionError, match="--slurm must reach a cluster that takes the jobs"):
        list(execute(jobs, cluster=Cluster("slurm")))


SCRIPT = """
import os
from deconfound.training import fit

found = fit("config.yaml").results
print("rank", os.environ.get("LOCAL_RANK", 0), "folds", len(found["folds"]), "auc", found["metrics"]["auc"]["mean"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["command", "python"])
def test_two_processes_train_one_fold_together_and_say_everything_once(tmp_path, how):
    path = tiny.write(tmp_path, tiny.cohort(120))
    training = {"epochs": 3, "devices": 2, "strategy": "ddp"}
    settings = tiny.settings(path, tmp_path / "run", training=training)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [str(Path(sys.executable).parent / "deconfound"), "fit", "config.yaml"]
    command = command if how == "command" else [sys.executable, "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, cwd=tmp_path)
    found = gather(open_run(tmp_path / "run"))
    assert len(found["folds"]) == 2
    assert done.stderr == ""
    if how == "command":
        assert done.stdout.count("pmdn · 2 folds") == 1
        assert done.stdout.startswith("reading: reading the data\n")
        assert done.stdout.count("reading the data") == 1  # the second process is silent
    else:
        auc = found["metrics"]["auc"]["mean"]
        assert sorted(done.stdout.splitlines()) == [f"rank {rank} folds 2 auc {auc}" for rank in (0, 1)]
