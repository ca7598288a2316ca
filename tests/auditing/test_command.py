"""`deconfound audit`: files in, a page, numbers and a card out, and errors that name file, column and fix."""

import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from deconfound import metrics
from deconfound.auditing.files import output_columns, read_file
from deconfound.cli.audit import audit
from deconfound.errors import DeconfoundError
from tests.auditing.cohort import cohort

app = typer.Typer()
app.command()(audit)
QUICK = ["--permutations", "39", "--bootstraps", "40"]


def write(path, columns, separator=","):
    lines = [separator.join(columns)]
    lines += [separator.join(str(cell) for cell in row) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def files(tmp_path):
    outputs, table = cohort(n=90)
    write(tmp_path / "people.tsv", table, "\t")
    shuffled = np.random.default_rng(0).permutation(90)
    write(tmp_path / "clean.csv", {"scan": table["scan"][shuffled], "logit": outputs["clean"][shuffled]})
    write(tmp_path / "site.csv", {"scan": table["scan"], "logit": outputs["by site"]})
    write(tmp_path / "all.csv", {**table, "logit": outputs["clean"], "other": outputs["by site"]})
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments), *QUICK])


def shown(output):
    """Model, confound and verdict of each line of the table in the terminal."""
    return [[cell.strip() for cell in line.split("│")[1:4]] for line in output.splitlines() if line.startswith("│")]


def test_one_file_with_everything_gives_four_files_and_exit_code_zero(files):
    out = files / "audit"
    done = run(files / "all.csv", "--confounds", "age,sex,site", "--labels", "dx", "--out", out)
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in out.iterdir()) == ["audit.csv", "audit.html", "audit.json", "card.md"]
    found = json.loads((out / "audit.json").read_text())
    assert found["about"]["models"] == ["all"]
    assert "read as: all: scores above 0 mean dx = patient" in done.output
    assert shown(done.output) == [["all", confound, "none found"] for confound in ("age", "sex", "site")]


def test_shuffled_files_are_joined_by_id_and_ids_keep_their_zeros(files):
    options = ["--confounds", "site", "--labels", "dx", "--table", files / "people.tsv", "--id", "scan"]
    done = run(files / "clean.csv", files / "site.csv", *options, "--out", files / "joined")
    assert done.exit_code == 0, done.output
    found = json.loads((files / "joined" / "audit.json").read_text())
    grades = {item["model"]: item["grade"] for item in found["verdicts"]}
    assert grades["site"] == "strong"
    outputs, table = cohort(n=90)
    auc = {row["model"]: row["value"] for row in found["rows"] if row["statistic"] == "auc" and not row["confound"]}
    for model, name in (("clean", "clean"), ("site", "by site")):
        assert auc[model] == pytest.approx(float(metrics.auc(outputs[name], table["dx"] == "patient")))


def test_several_models_in_one_file_and_a_check_that_fails_the_build(files):
    options = ["--confounds", "site", "--labels", "dx", "--model", "a=logit", "--model", "b=other"]
    done = run(files / "all.csv", *options, "--out", files / "two", "--check")
    assert done.exit_code == 1
    found = json.loads((files / "two" / "audit.json").read_text())
    assert found["about"]["models"] == ["a", "b"]
    assert shown(done.output) == [["a", "site", "none found"], ["b", "site", "strong"]]


def test_arrays_and_features_are_read_in_the_order_of_the_table(files):
    outputs, table = cohort(n=90)
    np.save(files / "clean.npy", outputs["clean"])
    np.savez(files / "hidden.npz", clean=np.column_stack([outputs["clean"], table["site"] == "UCSF"]))
    options = [
        "--table",
        files / "people.tsv",
        "--confounds",
        "site",
        "--labels",
        "dx",
        "--features",
        files / "hidden.npz",
    ]
    done = run(files / "clean.npy", *options, "--out", files / "arrays")
    assert done.exit_code == 0, done.output
    found = json.loads((files / "arrays" / "audit.json").read_text())
    assert {item["space"]: item["grade"] for item in found["verdicts"]}["features"] == "strong"


def test_whole_numbers_are_features_and_confounds_beside_them_are_not(files):
    outputs, table = cohort(n=90)
    np.save(files / "clean.npy", outputs["clean"])
    write(files / "counts.csv", {"count": np.random.default_rng(0).integers(0, 50, 90), "age": table["age"]})
    options = ["--table", files / "people.tsv", "--confounds", "age", "--features", files / "counts.csv"]
    done = run(files / "clean.npy", *options, "--json", files / "counts.json")
    assert done.exit_code == 0, done.output
    grades = {item["space"]: item["grade"] for item in json.loads((files / "counts.json").read_text())["verdicts"]}
    assert grades["features"] == "none found"


def test_parquet_is_read_like_csv(files):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pandas.read_csv(files / "all.csv").to_parquet(files / "all.parquet")
    done = run(files / "all.parquet", "--confounds", "site", "--labels", "dx", "--out", files / "parquet")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["absent.csv", "--confounds", "age"], "absent.csv must be a file; got nothing there"),
        (["all.csv", "--confounds", "agee"], "all.csv: .*got 'agee', which it lacks. Did you mean 'age'"),
        (["all.csv", "--confounds", "age", "--outputs", "logits"], "all.csv: outputs of 'all'.*'logits'.*'logit'"),
        (["people.tsv", "--confounds", "age"], "people.tsv must have columns of outputs.*Name them with --outputs"),
        (["clean.csv", "--confounds", "age", "--table", "short.csv"], "same rows in the same order.*got 90 and 2 rows"),
        (
            ["clean.csv", "--confounds", "age", "--table", "short.csv", "--id", "scan"],
            "no row for .*88 of 90 are absent",
        ),
        (
            ["twice.csv", "--confounds", "age", "--table", "people.tsv", "--id", "scan"],
            "every 'scan' once; got '0001' in rows 0, 1",
        ),
        (["uneven.csv", "--confounds", "age"], "3 cells in every line, separated by the comma; got 2 in line 3"),
        (["all.csv", "--confounds", "age", "--type", "age"], "--type must be NAME=VALUE; got 'age'"),
        (
            ["all.csv", "--confounds", "age", "--model", "a=logit", "--model", "a=other"],
            "give each name once; got 'a' tw",
        ),
        (
            ["empty.npz", "--confounds", "age", "--table", "people.tsv"],
            "must hold arrays with one row per sample; got no",
        ),
        (["single.npy", "--confounds", "age", "--table", "people.tsv"], "must hold arrays with one row per sample"),
        (["rows.npy", "--confounds", "age"], "must stand beside a table of people; got arrays alone. Give it with --t"),
        (["all.ods", "--confounds", "age"], "must end in .csv, .tsv, .txt, .parquet, .xlsx, .npy or .npz; got '.ods'"),
        (["all.csv", "--confounds", "age", "--out", "all.csv"], "--out must be a folder that can be written"),
    ],
)
def test_errors_name_the_file_the_column_and_the_fix(files, monkeypatch, arguments, text):
    write(files / "short.csv", {"scan": ["0000", "0001"], "age": [60, 61]})
    write(files / "twice.csv", {"scan": ["0001", "0001"], "logit": [0.1, 0.2]})
    (files / "uneven.csv").write_text("scan,logit,age\n1,2,3\n1,2\n")
    (files / "all.ods").write_text("")
    np.savez(files / "empty.npz")
    np.save(files / "single.npy", 3.0)
    np.save(files / "rows.npy", np.zeros(90))
    monkeypatch.chdir(files)
    done = run(*arguments)
    assert not (files / "audit").exists()
    assert isinstance(done.exception, DeconfoundError), done.output
    assert re.search(text, str(done.exception)), str(done.exception)


def test_predictions_as_the_library_writes_them_are_read_by_their_logits_or_scores(tmp_path):
    outputs, table = cohort(n=90)
    logit = outputs["clean"]
    said = {"logit_dx": logit, "score_dx": 1 / (1 + np.exp(-logit)), "predicted_dx": np.where(logit > 0, "x", "y")}
    spread = {"score_dx": said["score_dx"], "score_sd_dx": said["score_dx"], "predicted_dx": said["predicted_dx"]}
    assert output_columns(said, set()) == ["logit_dx"]
    assert output_columns(spread, set()) == ["score_dx"]
    write(tmp_path / "said.csv", {**table, **spread})
    found = run(tmp_path / "said.csv", "--confounds", "age", "--out", tmp_path / "audit")
    assert found.exit_code == 0


def test_files_that_are_not_what_their_ending_says_are_told(tmp_path):
    (tmp_path / "latin.csv").write_bytes("site\nK\u00f6ln\n".encode("latin-1"))
    (tmp_path / "bad.npy").write_bytes(b"")
    for name, text in (("latin.csv", "must be UTF-8 text"), ("bad.npy", "must hold plain arrays of numbers")):
        with pytest.raises(DeconfoundError, match=text):
            read_file(tmp_path / name)


def test_an_archive_that_unpacks_to_far_too_much_is_refused_unread(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", b"")
        archive.infolist()[0].file_size = 5 * 10**9
        archive.filelist[0].file_size = 5 * 10**9
    with pytest.raises(DeconfoundError, match="must not unpack to more than 1 GB"):
        read_file(tmp_path / "bomb.npz")


def test_every_absent_column_is_told_at_once(files):
    found = run(files / "all.csv", "--confounds", "agee,sitee", "--out", files / "audit")
    assert "'agee'" in str(found.exception)
    assert "'sitee'" in str(found.exception)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "gaps.csv: output 'score' must be filled in every row; got nothing in rows 3, 8. Leave these rows out"),
        (["--outputs", "answer"], "gaps.csv: output 'answer' must be filled in every row; got nothing in row 5"),
        (["--outputs", "named,score"], "'named' must be numbers beside other outputs; got 'patient' in 60 rows"),
        (["--outputs", "named,score"], "\n.*'score' must be filled"),
        (
            ["--outputs", "slips"],
            "outputs of 'gaps' must be numbers, or one column of class names; got 'failed' in rows 2",
        ),
    ],
)
def test_outputs_that_are_empty_or_text_are_told_by_column_and_rows(tmp_path, options, text):
    score = np.linspace(-1, 1, 60)
    named = np.where(score > -2, "patient", "control")
    columns = {"age": np.arange(60), "score": score, "answer": named, "named": named, "slips": score}
    columns = {name: values.astype(object) for name, values in columns.items()}
    columns["score"][[3, 8]] = columns["answer"][5] = ""
    columns["slips"][[2, 7]] = "failed"
    write(tmp_path / "gaps.csv", columns)
    done = run(tmp_path / "gaps.csv", "--confounds", "age", *options)
    assert isinstance(done.exception, DeconfoundError), done.output
    assert re.search(text, str(done.exception)), str(done.exception)


def test_files_of_one_name_in_two_folders_are_two_models(files, monkeypatch):
    outputs, table = cohort(n=90)
    for folder, name in (("a", "clean"), ("b", "by site")):
        (files / folder).mkdir()
        write(files / folder / "predictions.csv", {**table, "logit": outputs[name]})
    monkeypatch.chdir(files)
    done = run("a/predictions.csv", "b/predictions.csv", "--confounds", "site", "--out", "both")
    assert done.exit_code == 0, done.output
    found = json.loads((files / "both" / "audit.json").read_text())
    assert found["about"]["models"] == ["a/predictions", "b/predictions"]
    done = run("all.csv", "all.csv", "--confounds", "site")
    assert "models must have different names; got 'all' twice" in str(done.exception)


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(files, monkeypatch):
    monkeypatch.setattr("deconfound.auditing.joined.audit", lambda *args, **options: pytest.fail("measured first"))
    done = run(files / "all.csv", "--confounds", "age", "--out", files / "all.csv")
    assert "--out must be a folder that can be written" in str(done.exception)


def test_a_refused_or_stopped_audit_leaves_no_folder_behind_that_was_not_there(files, monkeypatch):
    monkeypatch.chdir(files)
    (files / "old").mkdir()
    before = sorted(files.rglob("*"))
    for refused in (["--confounds", "agee"], [], ["--confounds", "age", "--outputs", "logits"]):
        assert run("all.csv", *refused, "--out", "old/new/deeper").exception
        assert sorted(files.rglob("*")) == before
    assert run("all.csv", "--confounds", "age", "--html", "a/a.html", "--json", "all.csv/b.json").exception
    assert run("all.csv", "--confounds", "agee", "--out", "old").exception
    assert sorted(files.rglob("*")) == before

    def stop(*_, **__):
        (files / "somebody" / "else").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("deconfound.auditing.joined.audit", stop)
    run("all.csv", "--confounds", "age", "--html", "somebody/a/a.html")
    assert sorted(files.rglob("*")) == sorted([*before, files / "somebody", files / "somebody" / "else"])


def test_named_files_are_written_and_nothing_else(files, monkeypatch):
    monkeypatch.chdir(files)
    done = run("all.csv", "--confounds", "age", "--labels", "dx", "--html", "a.html", "--card", "b/card.md",
               "--figures", "c")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert not (files / "audit").exists()
    assert (files / "c" / "What-is-left-in-the-outputs.png").exists()
    assert "figures in c" in done.output
    card = (files / "b" / "card.md").read_text()
    assert "to be written by the author" in card
    assert "**all: AUC**: 0." in card
    done = run("all.csv", "--confounds", "age", "--card", "card.txt")
    assert "--card must be a file that ends in .md or .card.json; got card.txt" in str(done.exception)


def test_names_of_columns_say_which_class_and_which_level_a_score_stands_for(files):
    outputs, table = cohort(n=90)
    score = 1 / (1 + np.exp(-outputs["clean"]))
    table["dx"] = np.where(table["dx"] == "patient", "first", "second")  # by the alphabet "second" would be positive
    said = {"score_dx": score, "score_sd_dx": 0 * score, "predicted_dx": np.where(score > 0.5, "first", "second")}
    write(files / "said.csv", {**table, **said})
    done = run(files / "said.csv", "--confounds", "sex", "--labels", "dx", "--json", files / "said.json")
    assert done.exit_code == 0, done.output
    assert "probabilities above 0.5 mean dx = first" in done.output
    classes = {"score_second": 1 - score, "score_first": score, "predicted_dx": said["predicted_dx"]}
    write(files / "classes.csv", {**table, **classes})
    done = run(files / "classes.csv", "--confounds", "sex", "--labels", "dx", "--json", files / "classes.json")
    for name in ("said", "classes"):
        rows = json.loads((files / f"{name}.json").read_text())["rows"]
        found = next(row for row in rows if row["statistic"] == "auc" and not row["confound"])
        assert found["value"] > 0.85


def test_columns_that_are_called_by_classes_are_read_by_their_names_in_any_order(files, monkeypatch):
    monkeypatch.chdir(files)
    rng = np.random.default_rng(0)
    dx = rng.choice(["AD", "CN", "MCI"], 90)
    scores = {f"score_{level}": rng.random(90) + 2 * (dx == level) for level in ("AD", "CN", "MCI")}
    table = {"scan": np.arange(90), "age": rng.normal(size=90), "dx": dx, "predicted_dx": dx}
    write(Path("sorted.csv"), {**table, **scores})
    write(Path("turned.csv"), {**table, **dict(reversed(scores.items()))})
    found = json_of("sorted.csv", "turned.csv", "--labels", "dx")
    assert auc_of(found, "turned") == auc_of(found, "sorted") > 0.95
    found = json_of("turned.csv", "--labels", "dx", "--model", "class=predicted_dx", "--model",
                    "score=score_MCI,score_CN,score_AD")  # fmt: skip
    assert auc_of(found, "class") == 1
    assert auc_of(found, "score") > 0.95
    found = json_of("turned.csv", "--labels", "dx", "--outputs", "predicted_dx", "--classes", "MCI,CN,AD")
    assert auc_of(found, "turned") == 1


def test_a_class_in_a_file_that_the_label_does_not_have_is_wrong_as_a_name_and_as_a_column(files, monkeypatch):
    monkeypatch.chdir(files)
    rng = np.random.default_rng(0)
    dx, names = rng.choice(["CN", "MCI"], 90), np.array(["AD", "CN", "MCI"])
    scores = rng.normal(size=(90, 3))
    said = {f"logit_{name}": scores[:, place] for place, name in enumerate(names)}
    table = {"age": rng.normal(size=90), "dx": dx, "predicted_dx": names[scores.argmax(1)]}
    write(Path("subset.csv"), {**table, **said})
    for chosen in ((), ("--outputs", "predicted_dx")):
        found = json_of("subset.csv", "--labels", "dx", *chosen)
        assert accuracy_of(found, "subset") == pytest.approx(np.mean(table["predicted_dx"] == dx))
        assert [note["kind"] for note in found["notes"]].count("unknown classes") == 1
    write(Path("other.csv"), {**table, "dx": np.where(dx == "CN", "AD", "FTD"), **dict(list(said.items())[:2])})
    found = json_of("other.csv", "--labels", "dx")
    assert "called AD, CN, and none of them stands for dx FTD" in found["notes"][0]["text"]


def test_columns_that_are_called_by_labels_are_read_by_their_names_in_any_order(files, monkeypatch):
    monkeypatch.chdir(files)
    rng = np.random.default_rng(0)
    labels = {"hiv": rng.integers(0, 2, 90), "mci": rng.integers(0, 2, 90)}
    scores = {f"logit_{name}": truth - 0.5 + 0.1 * rng.normal(size=90) for name, truth in labels.items()}
    write(Path("both.csv"), {"age": rng.normal(size=90), **labels, **scores})
    for order in ("hiv,mci", "mci,hiv"):
        assert auc_of(json_of("both.csv", "--labels", order), "both") == 1


def json_of(*arguments):
    done = run(*arguments, "--confounds", "age", "--json", "found.json")
    assert done.exit_code == 0, done.output
    return json.loads(Path("found.json").read_text())


def auc_of(found, model):
    return measured(found, model, "auc")


def accuracy_of(found, model):
    return measured(found, model, "accuracy")


def measured(found, model, statistic):
    wanted = (statistic, "outputs", "")
    rows = [row for row in found["rows"] if (row["statistic"], row["space"], row["confound"]) == wanted]
    return next(row["value"] for row in rows if row["model"] == model)


def test_files_that_no_id_joins_are_said_to_be_matched_by_their_order(files):
    outputs, table = cohort(n=90)
    write(files / "named.csv", {"scan": table["scan"], "logit": outputs["clean"]})
    write(files / "nameless.csv", {"logit": outputs["clean"]})
    np.save(files / "array.npy", outputs["clean"])
    for name, by_order in (("named.csv", False), ("nameless.csv", True), ("array.npy", True)):
        joined = ["--id", "scan"] if name == "named.csv" else []
        done = run(files / name, "--table", files / "people.tsv", "--confounds", "age", "--out", files / "out", *joined)
        assert done.exit_code == 0, done.output
        said = f"rows of {name} and people.tsv are matched by their order" in " ".join(done.output.split())
        assert said == by_order


def test_features_in_another_order_are_joined_by_the_id_that_they_share_with_the_predictions(files):
    rng = np.random.default_rng(0)
    age = rng.normal(size=90)
    table = {"participant_id": [f"p{row}" for row in range(90)], "age": age, "logit": rng.normal(size=90)}
    write(files / "said.csv", table)
    order = rng.permutation(90)
    hidden = {"participant_id": np.array(table["participant_id"])[order], "h1": age[order], "h2": rng.normal(size=90)}
    write(files / "hidden.csv", hidden)
    np.save(files / "hidden.npy", age)
    for name, by_order in (("hidden.csv", False), ("hidden.npy", True)):
        done = run(files / "said.csv", "--features", files / name, "--confounds", "age", "--out", files / "out")
        assert done.exit_code == 0, done.output
        assert ["said", "age", "strong"] in shown(done.output)  # the outputs hold nothing of age
        assert (f"said.csv and {name} are matched by their order" in " ".join(done.output.split())) == by_order


def judged(rows, **changed):
    """Predictions of one model with the label and the test fold that its file gives for them."""
    rng = np.random.default_rng(0)
    dx = np.array(["control", "patient"] * 30)
    table = {"id": np.array([f"p{row}" for row in range(60)]), "dx": dx, "fold": np.arange(60) % 3}
    table |= {"age": rng.normal(size=60), "logit": rng.normal(size=60) + (dx == "patient")}
    return {name: values[rows] for name, values in (table | changed).items()}


def test_files_with_other_folds_or_labels_than_the_first_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    turned = np.arange(60)[::-1]
    own = judged(np.arange(60))
    write(Path("first.csv"), own)
    write(Path("folds.csv"), judged(turned, fold=(np.arange(60) + (np.arange(60) == 57)) % 3))
    write(Path("labels.csv"), judged(turned, dx=np.where(np.arange(60) < 2, "patient", own["dx"])))
    write(Path("same.csv"), judged(turned, fold=np.arange(60) % 3 + 0.0))
    options = ["--id", "id", "--confounds", "age", "--labels", "dx", "--out", "out"]
    refused = {
        ("first.csv", "folds.csv", "--fold", "fold"): "first.csv and folds.csv must have the same test folds to be "
        "audited together; got 'fold' = 1 in row 2 of folds.csv (id p57) and 0 in first.csv (1 of 60 rows differ). "
        "Audit them one at a time, or leave out --fold.",
        ("first.csv", "labels.csv"): "first.csv and labels.csv must have the same labels to be audited together; got "
        "'dx' = patient in row 59 of labels.csv (id p0) and control in first.csv (1 of 60 rows differ). Audit them "
        "one at a time.",
        ("first.csv", "--table", "labels.csv"): "labels.csv and first.csv must have the same labels to be audited "
        "together; got 'dx' = control in row 0 of first.csv (id p0) and patient in labels.csv (1 of 60 rows differ). "
        "Correct the one that is wrong, or take 'dx' out of the predictions.",
    }
    for arguments, text in refused.items():
        assert str(run(*arguments, *options).exception) == text
    for arguments in (("first.csv", "folds.csv"), ("first.csv", "same.csv", "--fold", "fold")):
        done = run(*arguments, *options)
        assert done.exit_code == 0, done.output


def test_rounded_and_empty_labels_are_no_contradiction(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    score = np.random.default_rng(1).normal(size=60)
    rounded = np.array([f"{value:.6g}" for value in score])
    rounded[3] = ""
    write(Path("first.csv"), judged(np.arange(60), dx=score, logit=score))
    write(Path("second.csv"), judged(np.arange(60), dx=rounded, logit=-score))
    done = run("first.csv", "second.csv", "--id", "id", "--confounds", "age", "--labels", "dx", "--out", "out")
    assert done.exit_code == 0, done.output


def test_rows_that_the_first_file_lacks_are_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("few.csv"), judged(np.arange(50)))
    write(Path("all.csv"), judged(np.arange(60)))
    done = run("few.csv", "all.csv", "--id", "id", "--confounds", "age", "--labels", "dx", "--out", "out")
    assert done.exit_code == 0, done.output
    said = "all: 10 of 60 rows are left out, for few has no row with their id."
    assert said in " ".join(done.output.split())
