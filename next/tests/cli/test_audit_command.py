"""`deconfound audit`: its exit codes, streams and files, and errors that name its options."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import Result
from typer.testing import CliRunner

from deconfound.cli import app

N = 200
RANDOM = np.random.default_rng(0)
IS_AD = np.arange(N) % 2
IS_B = RANDOM.integers(2, size=N)
NOISE = RANDOM.normal(size=N)
PEOPLE = pd.DataFrame(
    {
        "id": [f"{row:04d}" for row in range(N)],
        "site": np.array(["A", "B"])[IS_B],
        "dx": np.array(["CN", "AD"])[IS_AD],
        "prob_AD": 1 / (1 + np.exp(-IS_AD - NOISE)),
        "leak": IS_AD + NOISE + 2 * IS_B,
        "center": np.array(["A", "B"])[IS_AD],
        "name": [f"Smith-{row}" for row in range(N)],
    }
)
FAST = ("--permutations", "39", "--bootstraps", "0")
# Advice in Python: an argument with a bracket or a quotation mark, or a library.
PYTHON = re.compile(r"\w=[\[{'\"]|\w=[\s.]|pandas|DataFrame|numpy\.asarray")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with people.csv."""
    monkeypatch.chdir(tmp_path)
    PEOPLE.to_csv("people.csv", index=False)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["audit", *arguments])


def run_people(*arguments: str) -> Result:
    columns = ("--confound", "site", "--label", "dx", *FAST)
    return run("people.csv", *columns, *arguments)


def run_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deconfound.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_loads_neither_torch_nor_pandas():
    """Kills an import of the library at the top of a command."""
    code = (
        "import sys\n"
        "from deconfound.cli import main\n"
        "sys.argv = ['deconfound', '--help']\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n"
        "    names = ('torch', 'pandas', 'numpy', 'scipy', 'sklearn')\n"
        "    print(end.code, [name for name in names if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "audit" in done.stdout
    assert done.stdout.endswith("0 []\n")


def test_version_and_help():
    assert re.fullmatch(r"deconfound \d.*\n", CliRunner().invoke(app, ["--version"]).stdout)
    text = run("--help").stdout
    for option in ("--confound", "--label", "--model", "--check", "--json", "--force"):
        assert option in text


def test_it_prints_the_answer_and_writes_the_page(folder):
    done = run_people("--planted", "0")
    assert done.exit_code == 0
    assert "not found" in done.stdout
    assert "'AD' is predicted from 0.5 on" in done.stdout
    assert "nan" not in done.stdout
    assert done.stdout.endswith("Wrote audit.html\n")
    assert done.stderr.startswith("step 1 of ")
    assert (folder / "audit.html").read_text().lower().startswith("<!doctype html>")


def test_what_is_not_known_is_a_dash(folder):
    done = run("people.csv", "--confound", "center", "--label", "dx", "--planted", "0", *FAST)
    assert re.search(r"people  center    no answer  –      –       –              –", done.stdout)


def test_lines_are_never_cut_in_a_pipe(folder):
    name = "a model with a very long name " * 9
    done = run_people("--model", f"{name.strip()}=prob_AD", "--planted", "0", "--positive", "AD")
    assert f"{name.strip()}  site " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        ((), 0, "Check passed"),
        (("--planted", "2"), 0, "Check passed"),
        (("--planted", ".02"), 3, "Check impossible: leaks of 0.02 sd in all rows or in one"),
        (("--confound", "center"), 3, "Check impossible: confounds have no answer ('center' in"),
        (
            ("--model", "m=leak", "--positive", "AD"),
            1,
            "Check failed: leaks were found ('site' in 'm')",
        ),
        (("--model", "m=leak", "--positive", "AD", "--confound", "center"), 1, "Check failed"),
    ],
)
def test_check_ends_with_0_1_or_3(folder, arguments, code, reason):
    size = () if "--planted" in arguments else ("--planted", "1")
    done = run_people("--check", *size, *arguments)
    assert done.stdout.splitlines()[-1].startswith(reason), done.stdout
    assert done.exit_code == code


def test_without_check_a_leak_ends_with_0(folder):
    done = run_people("--model", "m=leak", "--positive", "AD", "--planted", "0", "--quiet")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    assert (folder / "audit.html").exists()


def test_json_is_alone_on_stdout_and_the_same_in_a_file(folder):
    done = run_people("--json", "--check", "--planted", "1", "--out", "a.json")
    data = json.loads(done.stdout)
    assert data["verdicts"][0]["confound"] == "site"
    assert data == json.loads((folder / "a.json").read_text())
    assert done.stderr.splitlines()[-1].startswith("Check passed")
    assert not (folder / "audit.html").exists()


def test_several_files_joined_by_id(folder):
    half = PEOPLE.iloc[::-1]
    half[["id", "prob_AD"]].to_csv("first.csv", index=False)
    half[["id", "leak"]].rename(columns={"leak": "score_AD"}).to_parquet("second.parquet")
    np.savez("fc1.npz", id=half["id"].to_numpy(str), fc1=half[["leak", "prob_AD"]].to_numpy())
    files = ("first.csv", "second.parquet", "--table", "people.csv", "--features", "fc1.npz")
    columns = ("--id", "id", "--confound", "site", "--label", "dx", "--planted", "0", *FAST)
    done = run(*files, *columns, "--json", "--quiet")
    verdicts = json.loads(done.stdout)["verdicts"]
    answers = {(verdict["model"], verdict["answer"]) for verdict in verdicts}
    assert answers == {("first", "not found"), ("second", "found"), ("fc1", "found")}


def test_rows_that_are_left_out_are_stated_once(folder):
    PEOPLE[["id", "prob_AD"]][:150].to_csv("some.csv", index=False)
    columns = ("--id", "id", "--confound", "site", "--label", "dx", "--planted", "0", *FAST)
    done = run("some.csv", "--table", "people.csv", *columns)
    assert done.stdout.count("were left out") == 1


# Files that are read are never written.


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.parametrize("is_link", [False, True])
def test_no_file_that_is_read_is_overwritten(folder, force, is_link):
    (folder / "people.csv").rename("people.json.csv")
    target = folder / "people.json.csv"
    name = "people.json.csv"
    if is_link:
        name = "link.csv"
        os.link(target, name)
    before = target.read_bytes()
    done = run(str(target), "--confound", "site", "--out", name, *force)
    assert done.exit_code == 2
    assert "is read by this command" in done.stderr
    assert target.read_bytes() == before


def test_an_existing_page_needs_force(folder):
    (folder / "audit.html").write_text("mine")
    refused = run_people()
    assert refused.exit_code == 2
    assert "'audit.html' exists. Write --force" in refused.stderr
    assert (folder / "audit.html").read_text() == "mine"
    assert run_people("--force", "--planted", "0").exit_code == 0
    assert (folder / "audit.html").read_text() != "mine"


@pytest.mark.parametrize("out", ["page.pdf", "page", "absent/page.html", "people.csv/page.html"])
def test_a_target_that_cannot_be_written_is_refused_before_the_work(folder, out):
    done = run_people("--out", out)
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: --out ")
    assert "step" not in done.stderr


# Errors name options.

WRONG: list[tuple[Sequence[str], str]] = [
    (("--outputs", "leak"), "Write|write --classes AD,CN .*--positive CN"),
    (("--outputs", "leak", "--positive", "MCI"), "--positive MCI is no level"),
    (("--outputs", "leak", "--classes", "AD"), "--classes AD do not name"),
    (
        ("--outputs", "prob_AD,leak"),
        "If each column is another model, write --model prob_AD=prob_AD",
    ),
    (("--outputs", "names"), "no column 'names' in 'people.csv'.*'name'"),
    (("--outputs", "name"), "'name' has other cells in rows 0, 1"),
    (("--model", "prob_AD"), "--model must be NAME=VALUE; got 'prob_AD'"),
    (("--model", "a=prob_AD", "--model", "a=leak"), "--model gives 'a' twice"),
    (("--model", "a=leak", "--outputs", "leak"), "--model and --outputs are both given"),
    (("--type", "site=text"), "Write 'numeric' or 'categorical'"),
    (("--type", "site=numeric"), "'site'"),
    (("--type", "sit=numeric"), "There is no column 'sit'. Did you mean 'site'"),
    (("--confound", "dx"), "stands in --confound and in --label"),
    (("--person", "site"), "in --confound and in --person"),
    (("--confound", "sitee"), "no column 'sitee'"),
    (("--permutations", "3"), "--permutations cannot be 3"),
    (("--seed", "-1"), "--seed cannot be -1"),
    (("--check", "--planted", "0"), "--check needs planted leaks"),
    (("--id", "key"), "no column 'key'"),
    (("--table", "absent.csv"), "no file 'absent.csv'"),
    (("--features", "absent.npy"), "no file 'absent.npy'"),
    (("--table", "short.csv"), "Write the column that joins them: --id participant_id"),
    (("--table", "gaps.csv", "--id", "id"), "'site' is empty in .*Leave these rows out"),
    (("--table", "codes.csv", "--id", "id"), "--type site=numeric or --type site=categorical"),
    (("--table", "latin.csv"), "not UTF-8 text. Save it as UTF-8."),
    (("--table", "uneven.csv"), "Correct these lines"),
]


@pytest.mark.parametrize(("arguments", "text"), WRONG)
def test_errors_are_sentences_that_name_options(folder, arguments, text):
    PEOPLE.iloc[:9].to_csv("short.csv", index=False)
    PEOPLE.assign(site=[None, *PEOPLE["site"][1:]]).to_csv("gaps.csv", index=False)
    PEOPLE.assign(site=np.arange(N) % 4).to_csv("codes.csv", index=False)
    (folder / "latin.csv").write_bytes("id,site\n1,Köln\n".encode("latin-1"))
    (folder / "uneven.csv").write_text("id,site\n1,Smith,3\n")
    done = run_people("--planted", "0", "--quiet", *arguments)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert re.search(text, done.stderr, re.DOTALL), done.stderr
    assert not PYTHON.search(done.stderr), done.stderr
    assert "Smith" not in done.stderr
    assert not (folder / "audit.html").exists()


def test_an_option_that_is_absent_or_unknown_is_bad_use(folder):
    assert run("people.csv").exit_code == 2
    assert "--confound" in run("people.csv").stderr
    assert run().exit_code == 2
    assert run_people("--planted", "much").exit_code == 2
    assert run_people("--no-such-option").exit_code == 2


# Real processes.


def test_a_reader_that_stops_early_ends_nothing(folder):
    """`deconfound audit … | head -1` writes the page and ends with the code of the check."""
    columns = ["--confound", "site", "--label", "dx", "--outputs", "leak", "--positive", "AD"]
    command = [sys.executable, "-m", "deconfound.cli", "audit", "people.csv", *columns, *FAST]
    process = subprocess.Popen(
        [*command, "--check"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "Traceback" not in errors
    assert "Broken" not in errors
    assert (folder / "audit.html").exists()


def test_a_process_prints_plain_lines_and_no_traceback(folder):
    done = run_process("audit", "people.csv", "--confound", "sitee", "--label", "dx")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: There is no column 'sitee'.")
    assert "\x1b" not in done.stderr
    assert done.stdout == ""
