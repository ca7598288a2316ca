"""A run keeps every row at once, goes on from where it was stopped, and ends when its time is up."""

import json
from types import SimpleNamespace

import pytest
import torch
import typer
from typer.testing import CliRunner

from deconfound.errors import OptionError
from deconfound_lab.benchmarks import experiment, networks, precompile
from deconfound_lab.benchmarks.jobs import Job, metadata
from deconfound_lab.cli.bench import bench
from deconfound_lab.harness import Store
from deconfound_lab.harness import experiment as running


@pytest.fixture
def measured(monkeypatch):
    """Two sections of jobs that only count how often they ran; a job may be made to raise."""
    counts, faults = {}, {}

    def job(section, name, rows=2):
        def measure(clock):
            counts[name] = counts.get(name, 0) + 1
            for index in range(rows):
                if index == 1 and name in faults:
                    raise faults[name]
                yield {"name": name, "value": index}

        return Job(section, name, measure)

    sections = {
        "one": lambda device, quick: [job("one", "a"), job("one", "b")],
        "two": lambda device, quick: [job("two", "c")],
    }
    monkeypatch.setattr(experiment, "SECTIONS", sections)
    return counts, faults


def values(folder):
    return [
        row["name"] for job in json.loads((folder / "cpu.json").read_text())["jobs"].values() for row in job["rows"]
    ]


def stored(folder):
    """Every row in the folder's cells."""
    store = Store(folder / "cpu", json.loads((folder / "cpu" / "experiment.json").read_text()))
    return [row["name"] for cell in store.everything().values() for row in cell.result["rows"]]


def test_every_row_is_on_disk_when_it_is_told(measured, tmp_path):
    seen = []
    experiment.run("cpu", folder=tmp_path, say=lambda text: seen.append(stored(tmp_path)))
    assert seen[0] == ["a"]
    assert seen[-1] == ["a", "a", "b", "b", "c", "c"]


def test_a_run_that_is_stopped_keeps_its_rows_and_the_next_goes_on_from_there(measured, tmp_path):
    counts, faults = measured
    faults["b"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        experiment.run("cpu", folder=tmp_path)
    assert values(tmp_path) == ["a", "a", "b"]
    faults.clear()
    result = experiment.run("cpu", folder=tmp_path)
    assert values(tmp_path) == ["a", "a", "b", "b", "c", "c"]
    assert counts == {"a": 1, "b": 2, "c": 1}
    assert result["left_out"] == []


def test_sections_of_the_same_code_are_merged_and_measured_anew_on_request(measured, tmp_path):
    counts, _ = measured
    experiment.run("cpu", ["two"], folder=tmp_path)
    experiment.run("cpu", ["one"], folder=tmp_path)
    assert values(tmp_path) == ["c", "c", "a", "a", "b", "b"]
    experiment.run("cpu", ["two"], folder=tmp_path, again=True)
    assert counts == {"a": 1, "b": 1, "c": 2}


def test_what_other_code_measured_is_not_gone_on_with(measured, tmp_path, monkeypatch):
    experiment.run("cpu", ["one"], folder=tmp_path)
    monkeypatch.setattr(experiment, "code_digest", lambda modules: "another")
    experiment.run("cpu", ["two"], folder=tmp_path)
    assert values(tmp_path) == ["c", "c"]


def test_nothing_begins_after_the_time_is_up_and_what_is_left_out_is_named(measured, tmp_path, monkeypatch):
    ticks = iter(range(0, 10_000, 25))  # each look at the clock is 25 s later
    for module in (experiment, running):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    result = experiment.run("cpu", folder=tmp_path, minutes=1)
    assert values(tmp_path) == ["a"]
    assert result["left_out"] == ["one: a", "one: b", "two: c"]


def test_a_job_that_fails_is_noted_and_the_others_go_on(measured, tmp_path):
    measured[1]["a"] = RuntimeError("out of memory")
    result = experiment.run("cpu", folder=tmp_path)
    assert result["jobs"]["one: a"]["fault"] == "RuntimeError: out of memory"
    assert values(tmp_path) == ["a", "b", "b", "c", "c"]


def test_bad_options_are_refused_all_at_once_with_the_nearest_name(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(OptionError) as caught:
        experiment.plan("cuda", ["passes", "stpes"], ["egaer"])
    text = str(caught.value)
    assert "device must be one that torch sees here, cpu; got 'cuda'." in text
    assert "sections must be among checks, passes" in text
    assert "got stpes. Did you mean steps?" in text
    assert "modes must be among eager, graph, compiled; got egaer. Did you mean eager?" in text
    with pytest.raises(OptionError, match="modes must be among eager, compiled; got graph"):
        experiment.plan("cpu", modes=["graph"])
    with pytest.raises(OptionError, match="minutes must be positive; got 0"):
        experiment.run("cpu", minutes=0)


def test_what_takes_long_to_compile_waits_for_the_rest():
    names = [job.key for job in experiment.plan("cpu", ["steps", "growth"], ["compiled", "eager"], quick=True)]
    assert names[0] == "steps: synthetic CNN, batch 8, eager"
    assert [name.endswith("compiled") for name in names] == [False] * 7 + [True] * 3


def command(*words):
    app = typer.Typer()
    app.command()(bench)
    return CliRunner().invoke(app, list(words))


def test_the_command_writes_json_and_tables_and_names_a_device_that_is_not_there(tmp_path):
    done = command("--quick", "--sections", "growth", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "growth: layers: n 64, d 256" in done.output
    assert json.loads((tmp_path / "cpu.json").read_text())["jobs"]["growth: samples"]["rows"]
    assert "### Growth" in (tmp_path / "cpu.md").read_text()
    refused = command("--device", "foo", "--out", str(tmp_path))
    assert isinstance(refused.exception, OptionError)
    assert "device must be one that torch sees here, cpu" in str(refused.exception)


def test_the_command_says_that_a_stopped_run_is_kept(measured, tmp_path):
    measured[1]["b"] = KeyboardInterrupt()
    done = command("--out", str(tmp_path))
    assert done.exit_code == 130
    assert "what was measured is kept" in done.output
    assert values(tmp_path) == ["a", "a", "b"]


def test_the_command_says_what_it_goes_on_from(measured, tmp_path, monkeypatch):
    assert "going on" not in command("--sections", "one", "--out", str(tmp_path)).output
    assert "going on: 2 of 3 are measured already" in command("--out", str(tmp_path)).output
    monkeypatch.setattr(experiment, "code_digest", lambda modules: "another")
    assert "measured by other code or elsewhere" in command("--out", str(tmp_path)).output


def test_processes_that_compile_share_the_pieces_among_them(monkeypatch):
    done = []
    pieces = tuple((lambda clock, index=index: done.append((index, clock.once))) for index in range(7))
    jobs = [Job("s", "wanted", lambda clock: [], pieces), Job("s", "measured already", lambda clock: [], pieces[:1])]
    monkeypatch.setattr(experiment, "plan", lambda *options: jobs)
    for part in range(3):
        monkeypatch.setattr("sys.argv", ["precompile", json.dumps([["cpu"], ["s: wanted"], part, 3])])
        precompile.main()
    assert sorted(done) == [(index, True) for index in range(7)]


def test_compiling_that_takes_too_long_is_ended(monkeypatch):
    started = []

    class Endless(precompile.subprocess.Popen):
        def __init__(self, command, **options):
            super().__init__(["sleep", "1000"], **options)
            started.append(self)

    monkeypatch.setattr(precompile.subprocess, "Popen", Endless)
    monkeypatch.setattr(precompile.os, "cpu_count", lambda: 5)
    job = Job("s", "j", lambda clock: [], (lambda clock: None,) * 9)
    precompile.precompile(("cpu", None, None, True), [job], print, minutes=1e-6)
    assert len(started) == 3
    assert all(helper.poll() is not None for helper in started)


def test_a_compiled_network_with_norms_is_not_taken_for_the_plain_one():
    """As torch's compiler takes one whose norms hang on it as hooks."""
    torch._dynamo.reset()
    case = networks.cases(quick=True)[0]
    design, _ = metadata(case.batch)
    plain, normed = (networks.with_method(case, method, design, "cpu") for method in ("none", "batchnorm"))
    for model in (plain, normed):
        torch.compile(model, backend="eager")(torch.randn(case.batch, *case.shape))
    norms = [module for module in normed.modules() if hasattr(module, "num_batches_tracked")]
    assert [int(norm.num_batches_tracked) for norm in norms] == [1, 1, 1]
