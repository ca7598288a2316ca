"""Pages built from pieces, a comparison in words, figures, cards, and trainings that failed."""

import json
import math
import re
import sys

import numpy as np
import pytest

from deconfound.auditing import (
    Markup,
    audit,
    comparison_page,
    comparison_sentences,
    html_page,
    html_table,
    png_figure,
    section,
    training_problems,
)
from deconfound.auditing.figures import COLOURS, Curve, Dot, Value, curves, scatter, spreads, training_curves
from deconfound.errors import DeconfoundError, OptionError
from tests.auditing.cohort import cohort

NASTY = "<script>alert(1)</script>"
QUICK = {"permutations": 39, "bootstraps": 40, "embedding": False}


def test_a_page_is_whole_fetches_nothing_and_escapes_text_but_not_markup():
    table = html_table(["method", NASTY], [[NASTY, Markup("<b>bold</b>")]])
    page = html_page(NASTY, [section(NASTY, table, png_figure(b"png", NASTY), lead=NASTY)], kicker=NASTY, summary=NASTY)
    assert "<script" not in page
    assert "<b>bold</b>" in page
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")
    page = html_page("t", [], data={"text": "</script><!--"}, script="1")
    assert page.count("</script>") == 2


def measures(mean, difference):
    width = 0.02
    change = {"mean": difference, "low": difference - width, "high": difference + width, "p": 0.5}
    return {"mean": mean, "low": mean - 0.03, "high": mean + 0.03, "p": None, "sets": 5, "difference": change}


@pytest.fixture(scope="module")
def content():
    outputs, table = cohort(n=160)
    outputs = {"none": outputs["by site"], "pmdn": outputs["clean"]}
    audited = audit(outputs, table, confounds=["site"], labels=["dx"], **QUICK).to_dict()
    problem = {"kind": "loss at chance", "fold": 1, "seed": 0, "text": f"fold 1, seed 0: {NASTY}"}
    lines = [
        {"name": "none", "method": "none", "runs": {"0": "a"}, "seconds": 1.0,
         "measures": {"auc": measures(0.8, 0.0), "left/outputs/site": measures(0.3, 0.0)}},
        {"name": "pmdn", "method": "pmdn", "runs": {"0": "b"}, "seconds": 2.0, "problems": [problem],
         "curves": {"0": {"val_loss": [0.7, 0.6, float("nan")]}},
         "measures": {"auc": measures(0.81, 0.01), "left/outputs/site": measures(0.01, -0.29)}},
    ]  # fmt: skip
    origin = {"packages": {}, "command": "c", "data": "0" * 64, "deconfound": "0.2", "commit": None, "platform": "x",
              "device": "cpu", "python": "3.11"}  # fmt: skip
    config = {"data": {"source": "t.csv"}, "network": {"name": "mlp", "options": {}}, "design": {"unseen": "mean"},
              "splits": {"kind": "leave-one-out", "column": "site"}}  # fmt: skip
    return {"base": "none", "rows": 160, "lines": lines, "confounds": ["site"], "folds": [0, 1, 2, 3, 4],
            "audit": audited, "provenance": origin, "config": config}  # fmt: skip


def test_a_comparison_names_failed_trainings_first_and_both_kinds_of_differences(content):
    said = comparison_sentences(content)
    assert said[0] == "1 training of pmdn should not be read as results: loss at chance."
    assert said[1].startswith("The plain network reaches AUC 0.800")
    assert "Over trainings, no method differs measurably from it: every confidence interval includes 0." in said[1]
    assert "Over people, given these trainings, these differ from it: pmdn" in said[1]
    assert "With 5 test sets, differences of about 0.028 and more can be shown." in said[1]
    assert said[2] == (
        "Of site, the plain network leaves dcor² 0.300 in its outputs, pmdn the least with 0.010; measurably less: "
        "pmdn."
    )


@pytest.mark.parametrize(
    ("difference", "said"), [(0.01, "no difference is measurable"), (0.05, "measurably more: pmdn")]
)
def test_a_plain_network_that_leaves_the_least_is_said_to_only_where_others_leave_measurably_more(
    content, difference, said
):
    first, second = content["lines"]
    left = {"measures": {**second["measures"], "left/outputs/site": measures(0.3 + difference, difference)}}
    found = comparison_sentences({**content, "lines": [first, second | left]})
    assert found[2] == f"Of site, the plain network leaves dcor² 0.300 in its outputs, the least of all; {said}."


def test_what_cannot_be_measured_in_the_first_method_is_not_taken_from_the_next(content):
    first, second = content["lines"]
    nothing = {"measures": {**first["measures"], "left/outputs/site": measures(0.3, 0.0) | {"mean": None}}}
    found = comparison_sentences({**content, "lines": [first | nothing, second]})
    assert found[2].startswith("Of site, the plain network leaves dcor² – in its outputs, pmdn the least with 0.010")


def test_the_page_of_a_comparison_says_how_test_sets_were_made_and_shows_every_method(content):
    page = comparison_page(content)
    assert "one site at a time is the test set" in page
    assert "design.unseen = mean" in page
    assert "Cost against what is left of site" in page
    assert "Training curves" in page
    assert '<section id="problems"' in page
    assert "pmdn, fold 1, seed 0: &lt;script&gt;" in page
    assert NASTY not in page
    assert json.loads(json.dumps(content["audit"], allow_nan=False))


def test_differences_over_people_are_in_the_rows(content):
    rows = {row["statistic"]: row for row in content["audit"]["rows"] if row["statistic"].endswith("_difference")}
    auc = {row["model"]: row["value"] for row in content["audit"]["rows"]
           if row["statistic"] == "auc" and not row["confound"] and row["space"] == "outputs"}  # fmt: skip
    found = rows["auc_difference"]
    assert (found["model"], found["level"]) == ("pmdn", "none")
    assert found["value"] == pytest.approx(auc["pmdn"] - auc["none"])
    assert found["low"] > 0
    assert rows["within_group_dcor_sqr_difference"]["high"] < 0


def test_figures_hold_what_they_are_given_and_survive_what_is_missing():
    lines = [Curve(f"line {k}", [0, 1], [0, 1]) for k in range(14)]
    drawn = curves("a < b", lines, ("x", "y")).html
    assert drawn.count("<polyline") == 15
    assert len({f"var(--m{k})" for k in range(COLOURS) if f"var(--m{k})" in drawn}) == 12
    assert "a &lt; b" in drawn
    assert ">line 13</text>" in drawn  # the legend is part of the figure, and saved with it
    missing = scatter("t", [Dot("x", Value(0.1), Value(0.2)), Dot("y", Value(math.nan), Value(1.0))], ("x", "y")).svg
    assert missing.count("<circle") == 2  # one point, and its swatch
    assert "nan" not in missing + training_curves("t", [Curve("l", [0, 1], [0.5, math.nan])]).svg
    box = {"level": "x" * 30, "group": "g", "at": [0, 1, 2, 3, 4], "n": 5}
    assert "x" * 15 + "…" in spreads("t", [box], "score").svg


def test_every_figure_is_saved_as_svg_and_png_with_its_colours_and_its_words(tmp_path, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed")
    outputs, table = cohort(n=160)
    table["dx"] = np.where(table["dx"] == "patient", "$ill & <b>$", "control")
    found = audit(outputs["by site"], table, confounds=["site"], labels=["dx"], **QUICK)
    files = found.save_figures(tmp_path / "new")
    names = ["What-is-left-in-the-outputs", "Performance-by-site", "model-scores-by-site-and-label", "model-ROC",
             "model-ROC-by-site"]  # fmt: skip
    assert [path.name for path in files] == [f"{name}.{kind}" for name in names for kind in ("svg", "png")]
    for path in files[::2]:
        text = path.read_text()
        size = [int(number) for number in re.findall(r'width="(\d+)" height="(\d+)"', text)[0]]
        assert not re.search(r"var\(|class=", text)
        image = pyplot.imread(path.with_suffix(".png"))
        assert image.shape[:2] == (3 * size[1], 3 * size[0])
        assert (image[2, 2, :3] == 1).all()
        drawn = {"#" + "".join(f"{round(255 * value):02x}" for value in pixel) for pixel in np.unique(
            image[:, :, :3].reshape(-1, 3), axis=0)}  # fmt: skip
        assert set(re.findall(r'<(?:circle|polyline)[^>]*(?:fill|stroke)="(#\w{6})"', text)) <= drawn
    assert "$ill &amp; &lt;b&gt;$" in files[4].read_text()
    with pytest.raises(OptionError, match="kinds must be of svg, png; got pdf"):
        found.save_figures(tmp_path, ["pdf"])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DeconfoundError, match="matplotlib must be installed for this"):
        found.save_figures(tmp_path, ["png"])


def test_a_card_has_what_an_audit_knows_and_marks_the_rest():
    outputs, table = cohort(n=90)
    found = audit(outputs["clean"], table, confounds=["site"], labels=["dx"], **QUICK)
    card = found.to_card()
    for text in ("## Performance", "## Confounding", "**Rows**: 90", "dx (control, patient)", "confounds alone: AUC"):
        assert text in card
    assert card.count("to be written by the author") >= 8


def test_the_card_of_several_models_has_the_performance_of_each_on_every_stratum():
    outputs, table = cohort(n=90)
    found = audit(outputs, table, confounds=["site"], labels=["dx"], **QUICK)
    part = found.to_card().split("## Performance by stratum")[1].split("##")[0].strip().splitlines()
    sites = sorted(set(table["site"]))
    assert [line.split(" (")[0] for line in part] == [
        f"- **{model}: site = {site}" for model in outputs for site in sites
    ]
    assert all("rows)**: AUC 0." in line or "rows)**: AUC 1." in line for line in part)


def test_features_that_hold_a_confound_but_do_not_use_it_are_told_from_those_that_do():
    rng = np.random.default_rng(0)
    dx, site = rng.integers(0, 2, 200), rng.integers(0, 2, 200)
    signal = 2 * dx - 1 + rng.normal(size=200)
    hidden = np.column_stack([signal, site + 0.1 * rng.normal(size=200)])
    outputs = {"holds": hidden @ [1.0, 0.0], "uses": hidden @ [1.0, 3.0]}
    table = {"dx": dx, "site": np.array(["a", "b"])[site]}
    found = audit(outputs, table, confounds=["site"], labels=["dx"], features=dict.fromkeys(outputs, hidden), **QUICK)
    moved = {row.model: row.value for row in found.where(statistic="used_outputs")}
    assert moved["holds"] < 0.01 < 0.3 < moved["uses"]
    for model in outputs:
        assert found.where(model=model, space="features", statistic="linear_probe_auc")[0].value > 0.95
    dose = [row.value for row in found.where(model="uses", statistic="used_auc")]
    assert len(dose) == 5
    assert dose[0] < dose[2] < dose[4]
    assert "Encoded, or used?" in found.to_html()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"validation_losses": [0.7, 0.8, 0.9], "best_epoch": 0}, "best epoch is the first"),
        ({"best_epoch": 2, "validation_losses": [0.7, 0.6, 0.5]}, "best epoch is the last"),
        ({"chance_loss": 0.6}, "loss at chance"),
        ({"outputs": np.zeros((9, 2))}, "constant outputs"),
        ({"skipped_steps": 5, "steps": 100}, "skipped steps"),
        ({"validation_losses": [0.7, float("nan"), 0.5]}, "not finite"),
    ],
)
def test_a_training_that_failed_is_named(change, kind):
    good = {"fold": 2, "seed": 1, "validation_losses": [0.7, 0.6, 0.65], "best_epoch": 1, "outputs": np.eye(3)}
    assert training_problems(**good, chance_loss=0.69, skipped_steps=1, steps=1000) == []
    found = training_problems(**{**good, **change})
    assert [problem.kind for problem in found] == [kind]
    assert found[0].text.startswith("fold 2, seed 1: ")
