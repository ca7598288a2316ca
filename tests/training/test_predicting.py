"""A finished run answers for people it has never seen, with its own designs, scaling and networks."""

import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from deconfound.cli import app
from deconfound.data import open_table
from deconfound.errors import DeconfoundWarning, OptionError, RunError, TableError
from deconfound.methods import METHODS
from deconfound.training.predicting import predict
from tests.training import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of PMDN, and the table it was made from."""
    folder = tmp_path_factory.mktemp("predict")
    path = tiny.write(folder, tiny.cohort(90))
    tiny.fit(tiny.config(path, folder / "run"))
    return folder / "run", path


def test_one_fold_predicts_its_test_rows_as_it_did(run, tmp_path):
    folder, path = run
    said = pd.read_csv(folder / "fold-1" / "predictions.csv")
    table = pd.read_csv(path, dtype={"id": str}).iloc[said["row"]].drop(columns="dx")
    found = predict(folder, tiny.write(tmp_path, table, "new.csv"), fold=1)
    assert list(found.ids) == table["id"].tolist()
    assert found.seen == len(table)
    assert torch.allclose(found.scores[:, 0], torch.tensor(said["score_dx"].to_numpy()), atol=1e-6)
    assert found.spread.isnan().all()


def test_rows_of_known_people_and_rows_that_no_fold_is_tested_on_are_seen(tmp_path):
    path = tiny.write(tmp_path, tiny.cohort(120, scans=2))
    splits = {"kind": "isolated", "folds": 2}
    tiny.fit(tiny.config(path, tmp_path / "run", data={"person": "person"}, splits=splits, training={"epochs": 1}))
    tested = sum(len(pd.read_csv(tmp_path / "run" / f"fold-{fold}" / "predictions.csv")) for fold in range(2))
    assert tested < 120
    assert predict(tmp_path / "run", path).seen == 120
    visits = tiny.cohort(120, scans=2).assign(id=[f"new{row}" for row in range(120)])
    assert predict(tmp_path / "run", tiny.write(tmp_path, visits, "visits.csv")).seen == 120
    others = visits.assign(person=[f"other{row}" for row in range(120)])
    assert predict(tmp_path / "run", tiny.write(tmp_path, others, "others.csv")).seen == 0


@pytest.mark.parametrize("kind", ["table", "array"])
def test_ids_of_people_and_rows_keep_their_zeros_in_predictions(tmp_path, kind):
    frame = tiny.cohort(60, scans=2)
    frame["subject"] = [f"{7 * row // 2 + 5:04d}" for row in range(60)]
    frame["subject"] = frame["subject"].to_numpy()[np.arange(60) // 2 * 2]
    path = tiny.write(tmp_path, frame.drop(columns="person"))
    data = {"id": None, "person": "subject"}
    if kind == "array":
        np.save(tmp_path / "x.npy", frame[["f0", "f1"]].to_numpy())
        data |= {"source": str(tmp_path / "x.npy"), "table": str(path)}
    tiny.fit(tiny.config(path, tmp_path / "run", data=data, training={"epochs": 1}))
    for fold in range(2):
        said = pd.read_csv(tmp_path / "run" / f"fold-{fold}" / "predictions.csv", dtype=str)
        rows = frame.iloc[said["row"].astype(int)]
        assert said["subject"].tolist() == rows["subject"].tolist()
        assert said["id"].tolist() == rows["id"].tolist()
    # A spreadsheet drops the zeros of ids, and these people are known all the same.
    visits = frame.assign(subject=frame["subject"].astype(int), id=[f"new{row}" for row in range(60)])
    new, images = tiny.write(tmp_path, visits, "visits.csv"), tmp_path / "x.npy" if kind == "array" else None
    assert predict(tmp_path / "run", new, images).seen == 60
    visits["subject"] += 1
    assert predict(tmp_path / "run", tiny.write(tmp_path, visits, "visits.csv"), images).seen == 0


def test_rows_without_an_id_are_nobody_that_the_run_has_seen(tmp_path):
    frame = tiny.cohort(60)
    frame.loc[:9, "id"] = None
    path = tiny.write(tmp_path, frame)
    tiny.fit(tiny.config(path, tmp_path / "run", data={"id": None}, training={"epochs": 1}))
    found = predict(tmp_path / "run", path)
    assert found.ids[8:12] == ("", "", "0010", "0011")
    assert found.seen == 50


def test_a_large_number_is_predicted_with_the_digits_of_the_run(tmp_path):
    table = tiny.cohort(60)
    table["steps"] = 1e7 + 1 / 3 + table.pop("f5")
    path = tiny.write(tmp_path, table.drop(columns="dx"))
    tiny.fit(tiny.config(path, tmp_path / "run", data={"label": "steps"}, training={"epochs": 1}))
    said = pd.read_csv(tmp_path / "run" / "fold-1" / "predictions.csv")
    new = tiny.write(tmp_path, pd.read_csv(path, dtype={"id": str}).iloc[said["row"]], "new.csv")
    found = predict(tmp_path / "run", new, fold=1).scores[:, 0].numpy()
    np.testing.assert_allclose(found, said["prediction_steps"], rtol=0, atol=1e-4)


def test_new_rows_need_no_column_that_the_run_left_out(tmp_path):
    path = tiny.write(tmp_path)
    tiny.fit(tiny.config(path, tmp_path / "run", data={"exclude": ["f5"]}, training={"epochs": 1}))
    kept = predict(tmp_path / "run", path).scores
    assert torch.equal(predict(tmp_path / "run", tiny.write(tmp_path, tiny.cohort().drop(columns="f5"))).scores, kept)


def test_all_folds_together_are_their_mean(run, tmp_path):
    folder, _ = run
    path = tiny.write(tmp_path, tiny.cohort(20, seed=9).assign(id=[f"new{i}" for i in range(20)]), "new.csv")
    each = torch.stack([predict(folder, path, fold=fold).scores for fold in range(2)])
    both = predict(folder, path)
    assert torch.allclose(both.scores, each.mean(0))
    assert torch.allclose(both.spread, each.std(0))
    assert both.seen == 0
    lines = both.to_csv().split("\n")
    assert lines[0] == "id,score_dx,score_sd_dx,predicted_dx"
    assert lines[1].startswith("new0,")
    assert lines[1].split(",")[-1] in ("asd", "control")


@pytest.mark.parametrize("method", [name for name in METHODS if name != "pmdn"])
def test_every_method_comes_back_from_its_files(tmp_path, method):
    path = tiny.write(tmp_path, tiny.cohort(90))
    network = {"options": {"hidden": [12]}}  # wide enough for erase
    training = {"epochs": 1, "batch_size": 30}
    tiny.fit(tiny.config(path, tmp_path / "run", method={"name": method}, training=training, network=network))
    said = pd.read_csv(tmp_path / "run" / "fold-0" / "predictions.csv")
    table = pd.read_csv(path, dtype={"id": str}).iloc[said["row"]].drop(columns="dx")
    found = predict(tmp_path / "run", tiny.write(tmp_path, table, "new.csv"), fold=0)
    assert torch.allclose(found.scores[:, 0], torch.tensor(said["score_dx"].to_numpy()), atol=1e-5)


def test_a_quantity_is_predicted_in_its_own_units(tmp_path):
    path = tiny.write(tmp_path)
    config = tiny.config(
        path, tmp_path / "run", data={"label": "age"}, design={"confounds": ["sex"]}, method={"name": "none"}
    )
    tiny.fit(config)
    found = predict(tmp_path / "run", path)
    assert 50 < float(found.scores.mean()) < 75
    assert found.to_csv().startswith("id,prediction_age,prediction_sd_age\n")


def test_images_are_read_from_beside_the_table(tmp_path):
    frame = tiny.cohort(60)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32))
    table = tiny.write(tmp_path, frame[["id", "dx", "age", "sex", "site"]])
    tiny.fit(tiny.config(tmp_path / "x.npy", tmp_path / "run", data={"table": str(table)}))
    np.save(tmp_path / "new.npy", np.zeros((5, 6), dtype=np.float32))
    people = tiny.write(tmp_path, frame[["age", "sex", "site"]].iloc[:5], "people.csv")
    assert predict(tmp_path / "run", people, tmp_path / "new.npy").scores.shape == (5, 1)
    np.save(tmp_path / "wide.npy", np.zeros((5, 7), dtype=np.float32))
    with pytest.raises(TableError, match=r"samples must have the shape \(6,\) of the run's; got \(7,\)"):
        predict(tmp_path / "run", people, tmp_path / "wide.npy")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda frame: frame.drop(columns="site"),
            "confounds must be columns of the table; got 'site', which it lacks",
        ),
        (
            lambda frame: frame.drop(columns="f3"),
            "data.features must be columns of the table; got 'f3', which it lacks",
        ),
        (lambda frame: frame.assign(site="Z"), "column 'site' must hold levels seen in fit"),
        (lambda frame: frame.assign(site="Z"), r"or pass unseen='mean' \(--unseen mean\) to treat them as"),
        (
            lambda frame: frame.assign(age=None),
            "Leave these rows out, or train with design.missing: mean to treat them",
        ),
        (
            lambda frame: frame.assign(f1=np.inf),
            "samples must be finite; got infinite values in 12 rows",
        ),
        (lambda frame: frame.assign(f1=np.nan), "samples must be filled in every row; got an empty value in 12 rows"),
    ],
)
def test_rows_that_cannot_be_read_are_refused(run, tmp_path, change, said):
    frame = change(tiny.cohort(12).drop(columns="dx"))
    with pytest.raises(TableError, match=said):
        predict(run[0], tiny.write(tmp_path, frame, "new.csv"))


@pytest.mark.parametrize(
    ("cells", "got"),
    [
        (["-2,5"], "-2,5"),
        (["unreadable"], "unreadable"),
        (["0.5", "1.5", "unreadable"], "unreadable"),
        (["0.5", None, "-2,5 mm"], "-2,5 mm"),
    ],
)
def test_text_in_a_feature_of_numbers_is_no_number(run, tmp_path, cells, got):
    frame = tiny.cohort(len(cells)).drop(columns="dx").assign(f0=cells)
    said = rf"^f0 must be a number \(or TRUE and FALSE\), as in training; got '{got}'\. Write it as a number"
    with pytest.raises(TableError, match=said):
        predict(run[0], tiny.write(tmp_path, frame, "new.csv"))
    with pytest.raises(TableError, match=said):
        predict(run[0], frame)


def test_one_text_among_many_numbers_is_the_one_that_is_named(run, tmp_path):
    frame = tiny.cohort(40).drop(columns="dx")
    frame["f0"] = [*frame["f0"].astype(str)[:-1], "unreadable"]
    with pytest.raises(TableError, match="got 'f0', which holds 'unreadable'"):
        predict(run[0], tiny.write(tmp_path, frame, "new.csv"))


def test_features_of_booleans_and_levels_are_known_by_name(tmp_path):
    frame = tiny.cohort(60).assign(
        smoker=np.arange(60) % 3 == 0, hand=np.array(["left", "right", "both"])[np.arange(60) % 3]
    )
    path = tiny.write(tmp_path, frame)
    tiny.fit(tiny.config(path, tmp_path / "run", training={"epochs": 1}))
    kept = predict(tmp_path / "run", path).scores
    turned = tiny.write(tmp_path, frame[frame.columns[::-1]], "turned.csv")
    assert torch.equal(predict(tmp_path / "run", turned).scores, kept)
    few = tiny.write(tmp_path, frame[frame["hand"] == "left"], "few.csv")
    assert torch.allclose(predict(tmp_path / "run", few).scores, kept[::3], atol=1e-6)
    new = tiny.write(tmp_path, frame.replace({"hand": {"both": "neither"}}), "new.csv")
    told = r"column hand has levels that are no features: neither\. Cells that hold them \(20 of 60\) count as empty"
    with pytest.warns(DeconfoundWarning, match=told), pytest.raises(TableError, match=r"hand\[both\]"):
        predict(tmp_path / "run", new)
    with pytest.raises(TableError, match=r"smoker must be a number \(or TRUE and FALSE\), as in training; got 'maybe'"):
        predict(tmp_path / "run", tiny.write(tmp_path, frame.assign(smoker=["True", "maybe"] * 30), "words.csv"))


def test_a_source_with_the_features_in_another_order_is_refused(run):
    frame = tiny.cohort(12)
    with pytest.raises(TableError, match=r"features of the run in its order, f0, f1, .* 1 more; got f5, f4"):
        predict(run[0], open_table(frame, id="id", features=[f"f{k}" for k in reversed(range(6))]))


def test_a_table_without_rows_is_refused_and_a_single_row_is_called_one(run, tmp_path):
    frame = tiny.cohort(12).drop(columns="dx")
    with pytest.raises(TableError, match=r"table must have at least one row to predict; got none\. Check how"):
        predict(run[0], frame.head(0))
    path = tiny.write(tmp_path, frame.head(1), "new.csv")
    done = CliRunner().invoke(app, ["predict", str(run[0]), str(path), "--out", str(tmp_path / "one.csv")])
    assert "one.csv, 1 row\n" in done.output


def shifted(n=80, shift=2.0, site="Z"):
    """People of a new site, whose features lie higher."""
    frame = tiny.cohort(n, seed=5).assign(id=[f"new{i}" for i in range(n)], site=site)
    for k in range(6):
        frame[f"f{k}"] += shift
    return frame


def test_a_new_site_is_an_error_the_mean_or_adapted_to(run, tmp_path):
    folder, _ = run
    path = tiny.write(tmp_path, shifted().drop(columns="dx"), "new.csv")
    with pytest.raises(TableError, match="column 'site' must hold levels seen in fit"):
        predict(folder, path, unseen="error")
    at_mean, adapted = (predict(folder, path, unseen=policy) for policy in ("mean", "adapt"))
    usual = predict(folder, tiny.write(tmp_path, shifted(shift=0.0, site="A"), "usual.csv")).scores.mean()
    assert (adapted.scores.mean() - usual).abs() < (at_mean.scores.mean() - usual).abs()
    told = [line for line in adapted.assumed if line.startswith("fold 0, site 'Z': 80 rows without labels")]
    assert len(told) == 1
    assert told[0].endswith("for prevalences from 0.05 to 0.95")
    few = predict(folder, tiny.write(tmp_path, shifted().head(9).drop(columns="dx"), "few.csv"), unseen="adapt")
    assert "fold 0, site 'Z': 9 rows, too few to adapt to, the mean is used" in few.assumed


def test_controls_of_a_new_site_are_used_and_rows_of_known_sites_are_left_alone(run, tmp_path):
    folder, _ = run
    new = shifted()
    new.loc[new["dx"] == "asd", "dx"] = None
    both = pd.concat([shifted(20, 0.0, "A").assign(id=[f"old{i}" for i in range(20)]), new])
    found = predict(folder, tiny.write(tmp_path, both, "both.csv"), unseen="adapt")
    assert any("site 'Z': 40 rows with labels: the offset" in line for line in found.assumed)
    plain = predict(folder, tiny.write(tmp_path, both, "both.csv"), unseen="mean")
    assert torch.equal(found.scores[:20], plain.scores[:20])
    assert not torch.allclose(found.scores[20:], plain.scores[20:], atol=1e-3)


def test_the_command_says_what_it_adapted_to_and_refuses_methods_that_cannot(run, tmp_path):
    path = tiny.write(tmp_path, shifted().drop(columns="dx"), "new.csv")
    said = CliRunner().invoke(
        app, ["predict", str(run[0]), str(path), "--unseen", "adapt", "--out", str(tmp_path / "o.csv")]
    )
    assert said.exit_code == 0
    assert "site 'Z': 80 rows without labels" in said.output
    tiny.fit(tiny.config(run[1], tmp_path / "plain", method={"name": "none"}, training={"epochs": 1}))
    with pytest.raises(
        OptionError, match="unseen='adapt' must have a method whose layers read the confounds; got 'none'"
    ):
        predict(tmp_path / "plain", path, unseen="adapt")
    with pytest.raises(OptionError, match="unseen must be 'mean', 'adapt' or 'error'; got 'guess'"):
        predict(run[0], path, unseen="guess")


def test_a_method_that_reads_no_confounds_needs_none(tmp_path):
    path = tiny.write(tmp_path)
    tiny.fit(tiny.config(path, tmp_path / "run", method={"name": "none"}))
    bare = tiny.cohort(10)[[f"f{k}" for k in range(6)]]
    assert predict(tmp_path / "run", tiny.write(tmp_path, bare, "new.csv")).scores.shape == (10, 1)


def test_broken_runs_are_told(run, tmp_path):
    folder, path = run
    with pytest.raises(RunError, match=r"must be the folder of a run; got no run\.json there"):
        predict(tmp_path, path)
    with pytest.raises(OptionError, match="--fold must be between 0 and 1; got 7"):
        predict(folder, path, fold=7)
    checkpoint = folder / "fold-1" / "checkpoint.pt"
    content = checkpoint.read_bytes()
    try:
        checkpoint.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(RunError, match=r"checkpoint\.pt must be as the run wrote it"):
            predict(folder, path)
        checkpoint.unlink()
        with pytest.raises(RunError, match=r"checkpoint\.pt must be readable"):
            predict(folder, path)
    finally:
        checkpoint.write_bytes(content)


def test_rows_without_ids_are_numbered_and_none_of_them_counts_as_seen(tmp_path):
    path = tiny.write(tmp_path, tiny.cohort(60).drop(columns="id"))
    tiny.fit(tiny.config(path, tmp_path / "run", data={"id": None}, method={"name": "none"}))
    found = predict(tmp_path / "run", path)
    assert found.ids[:2] == ("0", "1")
    assert found.seen == 0


def test_ids_are_written_under_the_name_of_their_column(tmp_path):
    path = tiny.write(tmp_path, tiny.cohort(60).rename(columns={"id": "scan"}))
    tiny.fit(tiny.config(path, tmp_path / "run", data={"id": "scan"}, method={"name": "none"}))
    assert (tmp_path / "run" / "fold-0" / "predictions.csv").read_text().startswith("row,scan,dx,")
    found = predict(tmp_path / "run", path)
    assert found.to_csv().startswith("scan,score_dx,")
    assert found.seen == 60


def test_cells_that_a_spreadsheet_would_execute_are_guarded_where_that_is_asked_for(tmp_path):
    frame = tiny.cohort(60)
    frame["id"] = [f"=HYPERLINK({row})" for row in range(60)]
    tiny.fit(tiny.config(tiny.write(tmp_path, frame), tmp_path / "run", method={"name": "none"}))
    found = predict(tmp_path / "run", tmp_path / "table.csv")
    assert found.to_csv().split("\n")[1].startswith("=HYPERLINK(0),")
    assert found.to_csv(guard_formulas=True).split("\n")[1].startswith("'=HYPERLINK(0),")


def test_levels_and_empty_cells_that_the_folds_do_not_know_are_named_with_their_rows(tmp_path):
    frame = tiny.cohort(60)
    frame.loc[frame.index[0], "site"] = "rare"
    config = tiny.config(tiny.write(tmp_path, frame), tmp_path / "run", design={"unseen": "mean", "missing": "mean"})
    tiny.fit(config)
    new = tiny.cohort(12).drop(columns="dx")
    new.loc[[2, 5], "site"], new.loc[7, "site"], new.loc[8, "age"] = "Z", "rare", None
    path = tiny.write(tmp_path, new, "new.csv")
    told = predict(tmp_path / "run", path).assumed
    assert "site 'Z', in rows 2, 5, was not in the training rows: the mean of the training rows is used" in told
    assert "age is empty in row 8: the mean of the training rows is used" in told
    rare = [line for line in told if "'rare'" in line]
    assert len(rare) == 1
    assert "was not in the training rows of fold" in rare[0]
    assert predict(tmp_path / "run", tiny.write(tmp_path, new.head(2), "known.csv")).assumed == ()
    done = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), str(path), "--out", str(tmp_path / "said.csv")])
    assert "site 'Z', in rows 2, 5" in done.output


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.yaml", "data: [", r"config\.yaml must be as the run wrote it; got other content. It is a copy"),
        ("run.json", "[]", r"run\.json must have format deconfound-run 2; got None None"),
        ("run.json", "{", r"run\.json must be JSON that can be read; got .* Bring the old file back"),
    ],
)
def test_a_run_whose_files_were_changed_is_told_by_file(run, tmp_path, name, content, said):
    folder = tmp_path / "copy"
    shutil.copytree(run[0], folder)
    (folder / name).write_text(content)
    with pytest.raises(RunError, match=said):
        predict(folder, run[1])


def test_levels_that_look_like_numbers_or_truths_are_known_in_a_table_that_has_no_other(tmp_path):
    """Where 3B is not among the new sites, a reader alone would take the others for numbers."""
    frame = tiny.cohort(90)
    frame["site"] = frame["site"].map({"A": "1", "B": "02", "C": "3B"})
    frame["family"] = np.array(["TRUE", "FALSE", "unknown"])[np.arange(90) // 2 % 3]
    frame["stage"] = np.array(["01", "2", "x"])[np.arange(90) // 3 % 3]
    path = tiny.write(tmp_path, frame)
    tiny.fit(tiny.config(path, tmp_path / "run", training={"epochs": 2}))
    kept = predict(tmp_path / "run", path).scores
    few = ((frame["site"] != "3B") & (frame["family"] != "unknown") & (frame["stage"] != "x")).tolist()
    frame[few].to_excel(tmp_path / "few.xlsx", index=False)
    frame[few].to_parquet(tmp_path / "few.parquet")
    new = [tiny.write(tmp_path, frame[few], "few.csv"), tmp_path / "few.xlsx", tmp_path / "few.parquet", frame[few]]
    for table in new:
        found = predict(tmp_path / "run", table)
        assert found.assumed == ()
        assert torch.allclose(found.scores, kept[torch.tensor(few)], atol=1e-6)
    typed = frame[(frame["site"] == "1") & np.array(few)].assign(site=1.0)
    typed["family"] = typed["family"] == "TRUE"
    rows = typed.index.tolist()
    assert torch.allclose(predict(tmp_path / "run", typed).scores, kept[rows], atol=1e-6)


@pytest.mark.parametrize("method", list(METHODS))
def test_labels_are_not_read_so_that_a_class_the_run_has_not_seen_is_no_fault(tmp_path, method):
    path = tiny.write(tmp_path)
    network = {"name": "mlp", "options": {"hidden": [16]}}  # erase needs more features than directions
    tiny.fit(tiny.config(path, tmp_path / "run", method={"name": method}, network=network, training={"epochs": 1}))
    bare = predict(tmp_path / "run", tiny.write(tmp_path, tiny.cohort().drop(columns="dx"), "bare.csv")).scores
    other = tiny.write(tmp_path, tiny.cohort().assign(dx="mci"), "other.csv")
    for table in (path, other):
        assert torch.equal(predict(tmp_path / "run", table).scores, bare)


@pytest.mark.parametrize("missing", ["error", "mean"])
def test_a_class_that_the_run_has_not_seen_is_no_label_where_it_adapts(tmp_path, missing):
    path = tiny.write(tmp_path)
    tiny.fit(tiny.config(path, tmp_path / "run", design={"missing": missing}, training={"epochs": 1}))
    bare, other = (tiny.write(tmp_path, shifted().assign(dx=dx), f"{dx}.csv") for dx in (None, "mci"))
    found, expected = (predict(tmp_path / "run", table, unseen="adapt") for table in (other, bare))
    assert "fold 0, site 'Z': 80 rows without labels" in " ".join(found.assumed)
    assert found.assumed == expected.assumed
    assert torch.equal(found.scores, expected.scores)
