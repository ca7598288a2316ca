"""The pages on runs: their commands are given, and their tables are those of the results."""

import json
import re
from pathlib import Path

import pytest

from deconfound.auditing import comparison_page
from deconfound.methods import METHODS
from tests import balance_figure, balance_pilot, left_out_pilot, methods_pilot, new_site_pilot, prior_pilot

DOCS = Path(__file__).parents[2] / "docs"


def test_every_method_has_its_advice():
    page = (DOCS / "guides" / "which-method.md").read_text()
    for name in METHODS:
        assert f"`{name}`" in page


def interval(item, sign=""):
    return f"{item['mean']:{sign}.3f} ({item['low']:{sign}.3f} to {item['high']:{sign}.3f})".replace("-", "−")


def test_the_tables_of_abide_are_those_of_the_results():
    content = json.loads((DOCS / "results" / "abide" / "five-fold.json").read_text())
    page = (DOCS / "results" / "abide.md").read_text()
    assert content["provenance"]["data"]
    for line in content["lines"]:
        measures = line["measures"]
        change = "" if line["name"] == content["base"] else interval(measures["auc"]["difference"], "+")
        cells = [f"`{line['name']}`", interval(measures["auc"]), change]
        cells += [_left(measures.get(f"left/outputs/{name}")) for name in content["confounds"]]
        assert "| " + " | ".join(cells).replace("  ", " ") + " |" in page
        hidden = [_left(measures.get(f"left/features/{name}")) for name in content["confounds"]]
        assert "| " + " | ".join([f"`{line['name']}`", *hidden]) + " |" in page
    said = {(item["model"], item["confound"]): item["grade"] for item in content["audit"]["verdicts"]}
    assert "The plain network reaches AUC 0.632" in comparison_page(content)
    for line in content["lines"]:
        cells = [said[line["name"], name] for name in content["confounds"]]
        assert "| " + " | ".join([f"`{line['name']}`", *cells]) + " |" in page


def test_the_figures_on_refitting_are_those_of_the_results():
    content = json.loads((DOCS / "results" / "abide" / "pmdn-refit.json").read_text())
    page = (DOCS / "results" / "abide.md").read_text().replace("\n", " ")
    for space in ("outputs", "features"):
        key = f"left/{space}/site"
        without, refitted = (content[name][key]["mean"] for name in ("no_refit", "refit"))
        assert re.search(rf"{without:.3f} (with the site )?in the {space} instead of {refitted:.3f}", page)
        change = content["difference"][key]
        assert f"{change['mean']:+.3f}, {change['low']:+.3f} to {change['high']:+.3f}".replace("-", "−") in page


def _left(item):
    return "–" if not item or item["mean"] is None else interval(item)


def test_the_figure_of_balance_is_drawn_by_the_code():
    assert balance_figure.FIGURE.read_text() == balance_figure.draw(), "run `make figures`"


@pytest.mark.parametrize("name", balance_pilot.SETS)
def test_the_tables_of_balance_are_those_of_the_results(name):
    content = json.loads(balance_pilot.RESULTS.read_text())
    assert balance_pilot.markdown(content, name) in (DOCS / "guides" / "balance.md").read_text()
    assert content["sets"][name]["provenance"]["commit"]


def test_the_table_of_default_places_is_that_of_the_results():
    content = json.loads((DOCS / "results" / "balance" / "places.json").read_text())
    page = (DOCS / "decisions" / "0010-default-places.md").read_text()
    for name, found in content["cells"].items():
        network, weights = name.rsplit(", ", 1)
        means = [f"{sum(cell['loss'] for cell in found[place]) / 3:.3f}" for place in ("linear", "blocks")]
        change = interval(content["differences"][name], "+")
        assert f"| {network} | {weights} | {means[0]} | {means[1]} | {change} |" in page


@pytest.mark.parametrize("name", methods_pilot.CELLS)
def test_the_pilots_of_methods_are_those_of_the_results(name):
    content = json.loads(methods_pilot.RESULTS.read_text())
    assert methods_pilot.markdown(content, name) in (DOCS / "concepts" / "methods.md").read_text()
    assert len(content["sets"][name]["provenance"]["data"]) == 64


def test_the_tables_of_sites_that_were_left_out_are_those_of_the_results():
    page = (DOCS / "results" / "left-out.md").read_text()
    methods, adapting = (json.loads(file.read_text()) for file in (left_out_pilot.RESULTS, new_site_pilot.RESULTS))
    for name, found in methods["sets"].items():
        assert left_out_pilot.markdown(methods, name) in page
        assert len(found["provenance"]["data"]) == 64
    for part in ("abide", "cohort"):
        assert new_site_pilot.markdown(adapting[part]["lines"]) in page
        assert adapting[part]["provenance"]["commit"]


def test_the_table_of_priors_is_that_of_the_results():
    content = json.loads(prior_pilot.RESULTS.read_text())
    page = (DOCS / "decisions" / "0019-how-long-coefficients-count.md").read_text()
    assert prior_pilot.markdown(content) in page
    assert len(content["cells"]) == len(prior_pilot.SETS) * len(prior_pilot.EPOCHS) * len(prior_pilot.HELD_OUT)
    assert len(content["commit"]) == 40
