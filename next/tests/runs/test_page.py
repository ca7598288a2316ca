"""Pages of runs and comparisons: their order, their numbers, and nothing from outside."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest

from deconfound.runs import Config, compare, fit, render_comparison, render_run
from tests.runs.people import FEATURES, make_people

HOSTILE = "<script>alert('x')</script> & \"B\""


def make_config(folder, **sections):
    people = make_people(200, 0.9)[["id", "dx", "site", *FEATURES]]
    people["site"] = people["site"].replace("B", HOSTILE)
    people.to_csv(folder / "people.csv", index=False)
    content = {
        "data": {"source": str(folder / "people.csv"), "labels": "dx", "id": "id"},
        "design": {"confounds": "site"},
        "method": "none",
        "training": {"epochs": 8, "batch_size": 16},
        "splits": {"folds": 2},
        "run": {"folder": str(folder / "run")},
        **sections,
    }
    return Config.load(content, "data.positive=AD")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return fit(make_config(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    short = {"training.epochs": 1}
    variants = {"plain": short, HOSTILE: {**short, "training.balance": "overlap"}}
    config = make_config(tmp_path_factory.mktemp("comparison"), compare={"variants": variants})
    return compare(config)


def places(page, words):
    """Return where each word first stands in the visible part of a page."""
    body = page[page.index("<body>") :]
    return [body.index(word) for word in words]


ORDER = (
    "What is left",
    "What the model is worth",
    "What cannot be known",
    "<h2>Honest performance",
    "<h2>Dependence on confounds",
    "<h2>Training",
    "<h2>As sampled",
    "<h2>For the methods section",
    "<h2>Provenance",
)


def test_a_run_reads_from_the_answer_to_the_pooled_score(run):
    page = render_run(run)
    order = places(page, ORDER)
    assert order == sorted(order)
    failed = render_run(replace(run, failures={"1": "no rows of AD"}))
    assert places(failed, ["no rows of AD"]) < places(failed, ["What is left"])
    assert (run.folder / "report.html").read_text(encoding="utf-8") == page


def test_a_comparison_begins_with_its_variants(comparison):
    page = render_comparison(comparison)
    words = ("What cannot be known", "<h2>Variants", *ORDER[3:5], *ORDER[6:])
    order = places(page, words)
    assert order == sorted(order)
    assert "Compared with plain" in page
    noted = replace(comparison, notes=("3 rows take no part.",))
    assert "<li>3 rows take no part.</li>" in render_comparison(noted)


def test_pages_need_no_network_and_take_no_markup_from_data(run, comparison):
    for page in (render_run(run), render_comparison(comparison)):
        outside = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
        assert not re.search(r"https?:|url\((?!#)|@import|<script|\b(src|srcset)=", outside)
        assert not re.search(r"\son\w+=", re.sub(r"<pre>.*?</pre>", "", page, flags=re.DOTALL))
        assert HOSTILE in unescape(page)


def test_a_page_states_the_numbers_of_its_run(run):
    """One number, one name: the page, `metrics` and the audit show the same."""
    page = render_run(run)
    honest, (row,) = run.metrics["dx"], run.audit.performance
    assert honest == row.honest
    numbers = [honest.plain, honest.balanced, honest.within_strata["site"], row.confounds_alone]
    for estimate in numbers:
        assert f"{estimate.value:.3f}" in page
    for text in run.summary:
        assert text in unescape(page)


def test_the_pooled_score_says_where_the_confounds_help(run):
    page = render_run(run)
    assert "<h2>As sampled (the confounds help)</h2>" in page
    assert run.metrics["dx"].balanced.value < run.metrics["dx"].plain.value
    # The control: a score that is the same without the confounds.
    honest = run.metrics["dx"]
    honest = replace(honest, balanced=honest.plain, within_strata={"site": honest.plain})
    performance = (replace(run.audit.performance[0], honest=honest),)
    other = render_run(replace(run, audit=replace(run.audit, performance=performance)))
    assert "<h2>As sampled</h2>" in other


def test_a_run_without_an_audit_has_its_performance(run):
    page = render_run(replace(run, audit=None))
    assert "This was not audited." in page
    assert f"{run.metrics['dx'].balanced.value:.3f}" in page
    assert "<h2>Dependence" not in page
    assert "permutations" not in page


def test_provenance_has_config_versions_and_rows(run):
    page = unescape(render_run(run))
    assert "batch_size: 16" in page
    assert page.count("batch_size") == 1
    for word in ("torch", "python", run.config.fingerprint()):
        assert word in page
    rows = re.findall(r'<th scope="row">[01]</th>\s*((?:<td class="n">\d+</td>\s*){3})', page)
    counts = [sum(map(int, re.findall(r"\d+", row))) for row in rows]
    assert counts == [200, 200]
