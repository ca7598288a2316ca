"""The harness: cells are computed once, stored whole, found again by their definition, and shown on a page."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from deconfound.errors import OptionError, RunError
from deconfound.layers.pmdn import update
from deconfound_lab.harness import (
    Cell,
    Experiment,
    Figure,
    Finished,
    Page,
    Section,
    Store,
    Table,
    reach,
    run_experiment,
)
from deconfound_lab.harness import experiment as running
from deconfound_lab.harness import provenance as source
from deconfound_lab.harness.estimates import Value, of_draws, over_folds, over_seeds, rounded
from deconfound_lab.harness.experiment import remake
from deconfound_lab.harness.page import fill, write_page
from deconfound_lab.synthetic.experiment import SyntheticExperiment
from deconfound_lab.synthetic.plan import Setup
from deconfound_lab.synthetic.training import run_setup
from tests import same_results

ROOT = Path(__file__).parents[2]


@dataclass
class Squares(Experiment):
    """Squares of numbers; a cell may be made to raise, or to keep a part and then stop."""

    modules = ("harness.estimates",)
    numbers: tuple = (1, 2, 3)
    scale: float = 1.0
    faults: dict = field(default_factory=dict)
    computed: list = field(default_factory=list)
    data = "made up"

    @property
    def definition(self):
        return {"plan": {"scale": self.scale, "sizes": (1, 2)}}

    def cells(self):
        return [Cell(f"number {number}, squared", {"number": number}) for number in self.numbers]

    def compute(self, cell, signals):
        number = cell.definition["number"]
        self.computed.append(number)
        if number in self.faults:
            signals.keep({"part": 0})
            raise self.faults[number]
        return {"square": self.scale * number**2, "row": np.arange(number)}

    def summarise(self, finished, failures):
        squares = {key: stored.result["square"] for key, stored in finished.items()}
        sources = source.distinct(stored.provenance for stored in finished.values())
        return {"squares": squares, "failures": dict(failures), "provenance": sources} if squares else None

    @classmethod
    def page(cls, results, folder):
        rows = [[key, f"{value:g}"] for key, value in results["squares"].items()]
        made = source.made_by(results["provenance"], ["cells"], cls.modules)
        return Page("numbers", "Squares", "They grow.", [Section("Table", "Look:", Table(["", "square"], rows))], made)


def test_a_second_run_goes_on_and_a_third_computes_nothing(tmp_path):
    assert run_experiment(Squares(), tmp_path, minutes=0).results is None
    first = Squares(numbers=(1,))
    assert run_experiment(first, tmp_path).finished == 1
    second, calls = Squares(), []
    run = run_experiment(second, tmp_path, progress=lambda *state: calls.append(state))
    assert second.computed == [2, 3]
    assert calls[0] == ("number 2, squared", 1, 3)
    assert calls[-1] == ("all cells", 3, 3)
    assert run.results["squares"] == {"number 1, squared": 1.0, "number 2, squared": 4.0, "number 3, squared": 9.0}
    assert run == run_experiment(Squares(faults={n: RunError("computed again") for n in (1, 2, 3)}), tmp_path)
    assert "| number 3, squared | 9 |" in (tmp_path / "tables.md").read_text()


def test_arrays_and_plain_values_come_back_as_they_were(tmp_path):
    store = Store(tmp_path, {})
    result = {"x": np.array([[0.1, np.nan]], np.float32), "n": np.arange(3), "name": "ä", "history": [{"loss": 1 / 3}]}
    store.write(Cell("a", {"t": (1, 2)}), Finished(dict(result), {"seed": 1}, 2.5))
    found = store.read([Cell("a", {"t": (1, 2)})])["a"]
    np.testing.assert_array_equal(found.result.pop("x"), result.pop("x"))
    assert found.result.pop("n").tolist() == result.pop("n").tolist()
    assert (found.result, found.provenance, found.seconds, found.whole) == (result, {"seed": 1}, 2.5, True)


def test_a_folder_of_another_experiment_is_refused_or_started_anew(tmp_path):
    run_experiment(Squares(), tmp_path)
    with pytest.raises(RunError, match=r"must hold this experiment; got one with plan\.scale 1\.0 instead of 2\.0"):
        run_experiment(Squares(scale=2.0), tmp_path)
    store = Store(tmp_path, Squares(scale=2.0).definition, anew=True)
    assert store.replaced
    assert store.everything() == {}


def test_broken_cells_and_those_of_another_definition_are_named_together(tmp_path):
    run_experiment(Squares(), tmp_path)
    store = Store(tmp_path, Squares().definition)
    cells = Squares().cells()
    store.path(cells[0]).write_bytes(b"broken")
    changed = [cells[0], replace(cells[1], definition={"number": 7}), cells[2]]
    with pytest.raises(RunError, match=r"has 2 faults(?s:.*)squared\.npz must be a finished cell; got") as got:
        store.read(changed)
    assert got.match(r"must be of the cell 'number 2, squared' as it is now; got one of {'number': 2}")


def test_a_cell_that_fails_is_named_does_not_stop_the_others_and_is_tried_again(tmp_path):
    run = run_experiment(Squares(faults={2: RunError("no square. Lower it.\nMore of it.")}), tmp_path)
    assert run.finished == 2
    assert run.results["failures"] == {"number 2, squared": "no square. Lower it."}
    again = Squares()
    assert run_experiment(again, tmp_path).results["failures"] == {}
    assert again.computed == [2]


def test_a_part_is_stored_and_computed_anew_and_no_part_counts_as_finished(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_experiment(Squares(faults={2: KeyboardInterrupt()}), tmp_path)
    store = Store(tmp_path, Squares().definition)
    assert store.everything()["number 2, squared"].result == {"part": 0}
    assert list(store.read(Squares().cells())) == ["number 1, squared"]
    again = Squares()
    run_experiment(again, tmp_path)
    assert again.computed == [2, 3]


def test_when_the_time_is_up_a_cell_stops_at_its_next_part_and_none_begins(tmp_path, monkeypatch):
    ticks = iter(range(0, 10_000, 25))  # each look at the clock is 25 s later
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    late = Squares(faults={1: RunError("went on without time")})
    run = run_experiment(late, tmp_path, minutes=1)
    assert late.computed == [1]
    assert (run.finished, run.results) == (0, None)
    assert Store(tmp_path, late.definition).failures(late.cells()) == {}


def test_a_cell_that_another_process_is_at_is_left_to_it(tmp_path):
    store = Store(tmp_path, Squares().definition)
    with store.hold("number 2, squared") as mine:
        assert mine
        experiment = Squares()
        assert run_experiment(experiment, tmp_path).finished == 2
        assert experiment.computed == [1, 3]


def test_what_is_killed_while_writing_leaves_the_cell_as_it_was(tmp_path, monkeypatch):
    store, cell = Store(tmp_path, {}), Cell("a")
    store.write(cell, Finished({"n": 1}, {}, 0.0))
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.write(cell, Finished({"n": 2}, {}, 0.0))
    monkeypatch.undo()
    assert store.read([cell])["a"].result == {"n": 1}


def test_processes_side_by_side_share_the_cells(tmp_path):
    code = (
        "from tests.lab.test_harness import Squares\n"
        "from deconfound_lab.harness import run_experiment\n"
        f"if __name__ == '__main__': print(run_experiment(Squares(), {str(tmp_path)!r}, jobs=2).finished)"
    )
    script = tmp_path.parent / f"{tmp_path.name}.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.stdout.strip() == "3", done.stderr
    with pytest.raises(OptionError, match="jobs must be at least 1; got 0"):
        run_experiment(Squares(), tmp_path, jobs=0)


def test_provenance_says_what_is_needed_and_a_page_marks_results_of_older_code(tmp_path, monkeypatch):
    run_experiment(Squares(), tmp_path)
    (origin,) = json.loads((tmp_path / "results.json").read_text())["provenance"]
    assert origin["data"] == "made up"
    assert {"deconfound", "commit", "code", "device", "seed", "python", "packages", "command"} <= set(origin)
    assert source.OLDER not in (tmp_path / "report.html").read_text()
    monkeypatch.setattr(source, "code_digest", lambda modules: "another")
    remake(Squares, tmp_path)
    assert source.OLDER in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("before", "after", "device", "proven"),
    [
        ("made", "now", "a GPU", True),
        ("made", "now", "x86_64", False),
        ("other", "now", "a GPU", False),
        ("made", "other", "a GPU", False),
    ],
)
def test_a_page_says_where_older_code_is_shown_to_give_the_same_numbers(
    monkeypatch, tmp_path, before, after, device, proven
):
    ways = {"cpu": (9, 8), "gpu without kernels": (4, 4), "gpu with kernels": (3, 3)}
    counts = {way: {"trainings": trained, "equal": equal} for way, (trained, equal) in ways.items()}
    record = {"ways": counts, "before": {"a+b": before}, "after": {"a+b": after}}
    (tmp_path / "same.json").write_text(json.dumps(record))
    monkeypatch.setattr(source, "PROVEN", tmp_path / "same.json")
    monkeypatch.setattr(source, "code_digest", lambda modules: "now")
    empty = dict.fromkeys(("deconfound", "commit", "python", "command"), "")
    origin = {**empty, "packages": {}, "platform": "Linux x86_64", "device": device, "code": "made"}
    (line,) = source.made_by([origin], ["One"], ["a", "b"])
    assert ("7 small trainings with both are equal in every bit" in line) is proven
    assert (source.OLDER in line) is not proven


def test_the_comparison_of_two_versions_sees_a_formula_that_is_off(monkeypatch):
    def digest():
        return same_results.trained("rows", "pmdn", "batches of 20", 3)

    right = digest()
    assert digest() == right
    monkeypatch.setattr(update, "PRIOR", update.PRIOR + 1e-4)
    assert digest() != right


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes files of a small library and a small lab, and returns the digest of the lab's module `run`."""
    for name in ("deconfound", "deconfound_lab"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(reach, "_OURS", {name: tmp_path / name for name in ("deconfound", "deconfound_lab")})

    def forget():
        for kept in (reach._tree, reach._imported, source.code_digest):
            kept.cache_clear()

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        forget()
        return source.code_digest(("run",))

    yield write
    forget()


SMALL = {
    "deconfound/__init__.py": "if TYPE_CHECKING:\n    from deconfound.a import f, g\n",
    "deconfound/a/__init__.py": "from deconfound.a.one import f\nfrom deconfound.a.two import g\n",
    "deconfound/a/one.py": "def f():\n    from deconfound.deep import h\n    return h\n",
    "deconfound/a/two.py": "g = 1\n",
    "deconfound/deep.py": "h = 1\n",
    "deconfound/only_types.py": "T = int\n",
    "deconfound/named/__init__.py": "from importlib import import_module\nfind = import_module\n",
    "deconfound/named/far.py": "x = 1\n",
    "deconfound_lab/authors.py": "own = 1\n",
    "deconfound_lab/harness/page.py": "show = 1\n",
    "deconfound_lab/run.py": "import deconfound as dc\nfrom deconfound.named import find\n"
    "from deconfound_lab.authors import own\nfrom deconfound_lab.harness.page import show\nif TYPE_CHECKING:\n"
    "    from deconfound.only_types import T\ny = dc.f\n",
}


@pytest.mark.parametrize(
    ("file", "text", "counts"),
    [
        ("deconfound_lab/run.py", SMALL["deconfound_lab/run.py"] + "z = 1\n", True),
        ("deconfound_lab/run.py", '"""Words."""\n' + SMALL["deconfound_lab/run.py"] + "# words\n", False),
        ("deconfound/a/one.py", "def f():\n    from deconfound.deep import h\n    return 2 * h\n", True),
        ("deconfound/deep.py", "h = 2\n", True),
        ("deconfound/named/far.py", "x = 2\n", True),
        ("deconfound/a/two.py", "g = 2\n", False),
        ("deconfound/only_types.py", "T = str\n", False),
        ("deconfound_lab/authors.py", "own = 2\n", False),
        ("deconfound_lab/harness/page.py", "show = 2\n", False),
    ],
    ids=[
        "itself",
        "words",
        "imported",
        "in a function",
        "found by name",
        "not imported",
        "only for types",
        "a method of its own",
        "the harness",
    ],
)
def test_the_digest_sees_all_code_that_is_imported_and_no_other(written, file, text, counts):
    before = written(SMALL)
    assert (written({file: text}) != before) == counts
    assert written(SMALL) == before


def test_whatever_runs_in_a_training_is_in_the_digest():
    """By the functions that Python calls in one, wherever they came from."""
    ran = set()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_name != "<module>":  # importing a file is not using it
            ran.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        run_setup(Setup("pmdn", 20, steps=2, seeds=(0,), balanced=True), torch.device("cpu"), lambda *_: None, 50)
    finally:
        sys.setprofile(None)
    ours = {path for path in map(Path, ran) if "deconfound" in path.as_posix() and path.is_relative_to(ROOT / "src")}
    passing_names_on = {path for path in ours if path.name == "__init__.py"} | {ROOT / "src/deconfound/renamed.py"}
    assert ours - passing_names_on <= set(reach.files_behind(SyntheticExperiment.modules))
    assert len(ours) > 25


def test_the_digest_of_code_is_the_same_under_every_python(written):
    """Written out of its tree, the quotes of x differ between 3.11 and 3.12, and those of y are not as written."""
    code = """def f():\n    x = f"{', '.join(['a'])}"\n    y = "a\""""
    expected = hashlib.sha256(f"deconfound_lab/run.py\0{code}".encode()).hexdigest()[:16]
    assert written({"deconfound_lab/run.py": code}) == expected
    words = code.replace("():\n", '():\n    """B.\n\n    C.\n    """\n')
    assert written({"deconfound_lab/run.py": f'"""A."""\n\n\n{words}  # D\n'}) == expected


def test_an_interval_over_folds_is_students_with_the_correction_for_overlap():
    from scipy import stats

    values = [0.4, 0.5, 0.45, 0.6, 0.55]
    for share in (0.25, 0.0):
        found = over_folds(dict(enumerate(values)), share)
        error = np.std(values, ddof=1) * np.sqrt(1 / 5 + share)
        assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 4, np.mean(values), error))
    assert over_seeds(values) == found
    assert over_folds({3: 0.4}, 0.25) == Value(0.4, 0.4, 0.4)


def test_a_bootstrap_interval_has_the_percentiles_or_stands_around_the_value():
    draws = 0.2 + np.linspace(-0.05, 0.05, 101)
    found = of_draws(0.1, draws)
    assert (found.mean, found.low, found.high) == pytest.approx((0.1, 0.1525, 0.2475))
    found = of_draws(0.1, draws, centred=True)
    assert (found.mean, found.low, found.high) == pytest.approx((0.1, 0.0525, 0.1475))
    assert rounded({"a": (1 / 3, 2, "x")}) == {"a": [0.333333, 2, "x"]}


WILD = '<script>alert(1)</script> & "a" <b>'


def test_nothing_that_a_page_is_given_becomes_markup(tmp_path):
    sections = [
        Section(WILD, WILD, Table(["", WILD], [[WILD, WILD]]), [WILD]),
        Section("figure", "", Figure("f.png", b"\x89PNG", WILD)),
    ]
    page = Page(WILD, WILD, WILD, sections, [WILD])
    write_page(page, tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert text.count("&lt;script&gt;") >= 10
    assert "<script>alert" not in text
    assert 'alt="&lt;script&gt;' in text
    assert (tmp_path / "f.png").read_bytes() == b"\x89PNG"


def test_a_page_shows_code_and_weight_as_in_markdown():
    page = Table(["", "`x` and"], [["`fc1`, `fc2`", "**behind** 2 * 3 * 4"]]).html()
    assert "<code>fc1</code>, <code>fc2</code>" in page
    assert "<strong>behind</strong> 2 * 3 * 4" in page


def test_a_page_of_the_docs_is_filled_between_its_marks():
    table = Table(["", "b"], [["a", "1"]])
    page = Page(
        "", "", "", [Section("One", "Look.", table, ["Mind."]), Section("Two", "", Figure("f.png", b"", "F"))], ["x"]
    )
    text = "before\n<!-- begin One -->\nstale\n<!-- end One -->\n<!-- begin results --><!-- end results -->\nafter\n"
    filled = fill(text, page, "results/x")
    assert "stale" not in filled
    assert filled.startswith("before")
    assert filled.endswith("after\n")
    assert filled.count("| a | 1 |") == 2
    assert "![F](results/x/f.png)" in filled
    assert "- Mind." in filled
    assert fill(filled, page, "results/x") == filled
    for wrong in ("nothing", "<!-- begin Three --><!-- end Three -->", "<!-- begin One -->"):
        with pytest.raises(OptionError, match="the page must hold <!-- begin"):
            fill(wrong, page, "")
