"""The page and the sentences of an audit: one file, no markup from data, each number once."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from math import nan

import pytest

from deconfound.auditing import About, Audit, GroupLeak, Performance, Sensitivity, Verdict
from deconfound.metrics import Calibration, Estimate, HonestScore, ProbeScore, WorstGroup
from deconfound.table import Note

UNKNOWN = Estimate(nan)


def make_verdict(confound="site", model="cnn", **changes):
    verdict = Verdict(
        model=model,
        is_features=False,
        confound=confound,
        answer="found",
        grade="clear",
        effect=Estimate(0.1314, 0.0772, 0.1961, 0.002),
        holm=0.004,
        independent=0.0113,
        by_group=(
            GroupLeak("AD", Estimate(0.1517, 0.0612, 0.2575, 0.006)),
            GroupLeak("CN", Estimate(0.1226, 0.0433, 0.2048, 0.008)),
        ),
        sensitivity=(
            Sensitivity(None, 0.5, Estimate(0.84, 0.7563, 0.8987, n=100)),
            Sensitivity("AD", 0.5, Estimate(0.37, 0.2821, 0.4678, n=100)),
        ),
        probe=ProbeScore(0.7134, 0.7391),
        paper=0.3125,
        rows=412,
        reason="",
        collect="",
    )
    return replace(verdict, **changes)


def make_quiet(confound="age", model="cnn", **changes):
    quiet = {
        "answer": "not found",
        "grade": "none",
        "effect": Estimate(-0.0021, 0.0, 0.0088, 0.614),
        "holm": 0.614,
        "independent": 0.0102,
        "by_group": (),
        "probe": ProbeScore(-0.0312, 0.0071),
        "paper": 0.0467,
    }
    return make_verdict(confound, model, **quiet | changes)


def make_unanswered(confound="scanner", model="cnn", **changes):
    unanswered = {
        "answer": "no answer",
        "grade": "none",
        "effect": UNKNOWN,
        "holm": nan,
        "independent": nan,
        "by_group": (),
        "sensitivity": (),
        "probe": None,
        "paper": nan,
        "rows": 0,
        "reason": f"{confound} has the same value in every row.",
        "collect": f"Add people with another {confound}.",
    }
    return make_verdict(confound, model, **unanswered | changes)


def make_performance(label="dx", model="cnn", score="binary", **changes):
    is_numeric = score == "numeric"
    honest = HonestScore(
        label=score,
        plain=Estimate(0.8318, 0.7926, 0.8684, n=400),
        within_strata={
            "site": Estimate(0.6423, 0.5712, 0.7106, n=400),
            "age": Estimate(0.8037, 0.7541, 0.8469, n=400),
            "scanner": UNKNOWN,
        },
        balanced=Estimate(0.6542, 0.5836, 0.7215, n=400),
        effective=(201.4,) if is_numeric else (118.6, 97.3),
        worst_group=WorstGroup("site", "Bergen", Estimate(0.5614, 0.4729, 0.6613, n=63), 7),
    )
    return Performance(
        model=model,
        label=label,
        classes=() if is_numeric else ("AD", "CN"),
        positive="AD" if score == "binary" else "",
        honest=replace(honest, **changes.pop("honest", {})),
        confounds_alone=changes.pop("alone", Estimate(0.7648, 0.7161, 0.8082, n=400)),
        calibration=changes.pop("calibration", None),
        balance=changes.pop("balance", ""),
    )


def make_audit(verdicts=None, performance=None, notes=(), **about):
    verdicts = (make_verdict(), make_quiet()) if verdicts is None else tuple(verdicts)
    performance = (make_performance(),) if performance is None else tuple(performance)
    facts = About(
        rows=412,
        people=400,
        folds=5,
        models=tuple(dict.fromkeys(one.model for one in verdicts if not one.is_features)),
        features=tuple(dict.fromkeys(one.model for one in verdicts if one.is_features)),
        labels=tuple(dict.fromkeys(row.label for row in performance)),
        confounds=tuple(dict.fromkeys(one.confound for one in verdicts)),
        groups={"AD": 171, "CN": 229},
        permutations=499,
        bootstraps=500,
        planted=0.5,
        has_people=True,
        has_weights=False,
        reading=("Model 'cnn': 'score_AD' is a score of AD.",),
        version="1.0.0",
    )
    return Audit(verdicts, performance, tuple(notes), replace(facts, **about))


def without_intervals(row):
    """Return a verdict or performance as `bootstraps=0` leaves it."""
    if isinstance(row, Verdict):
        return replace(row, effect=Estimate(row.effect.value, p=row.effect.p))
    honest = replace(
        row.honest,
        plain=Estimate(row.honest.plain.value),
        within_strata={name: Estimate(one.value) for name, one in row.honest.within_strata.items()},
        balanced=Estimate(row.honest.balanced.value),
        worst_group=None,
    )
    return replace(row, honest=honest, confounds_alone=Estimate(row.confounds_alone.value))


HOSTILE = "<script>alert('x')</script> & $x^2$ \"quoted\" 東京"
CALIBRATION = Calibration(
    0.0519, (0.1024, 0.4816, 0.8873), (0.1533, 0.5267, 0.9218), (137, 138, 137)
)

AUDITS = {
    "one model": make_audit(notes=[Note("stratum", "site", "Site C has no case.", "Compare.")]),
    "several models and features": make_audit(
        verdicts=[
            *(make_verdict(model="cnn"), make_quiet(model="cnn"), make_unanswered(model="cnn")),
            *(make_quiet("site", "pmdn"), make_quiet("age", "pmdn"), make_unanswered(model="pmdn")),
            *(
                make_verdict(model="fc1", is_features=True),
                make_quiet("age", "fc1", is_features=True),
            ),
            make_unanswered(model="fc1", is_features=True),
        ],
        performance=[
            make_performance(calibration=CALIBRATION),
            make_performance(model="pmdn", honest={"balanced": Estimate(0.7134, 0.6508, 0.7719)}),
        ],
    ),
    "numeric label": make_audit(performance=[make_performance("mmse", score="numeric")]),
    "classes": make_audit(performance=[make_performance(score="classes")]),
    "several labels": make_audit(
        performance=[make_performance(name) for name in ("hiv", "mci", "sex", "apoe")]
    ),
    "features alone": make_audit([make_verdict(model="fc1", is_features=True)], []),
    "no label": make_audit(performance=[], groups={"all": 400}),
    "no planted leaks": make_audit([make_quiet(sensitivity=())], planted=None),
    "no intervals": make_audit(
        [without_intervals(make_verdict()), without_intervals(make_quiet())],
        [without_intervals(make_performance())],
        bootstraps=0,
    ),
    "no answer": make_audit(
        [make_unanswered("site"), make_unanswered("age")],
        [make_performance(honest={"balanced": UNKNOWN, "effective": ()}, balance="No overlap.")],
    ),
    "no score": make_audit(
        performance=[
            make_performance(
                alone=UNKNOWN,
                honest={
                    "plain": UNKNOWN,
                    "within_strata": {"site": UNKNOWN, "age": UNKNOWN},
                    "balanced": UNKNOWN,
                    "effective": (),
                    "worst_group": None,
                },
            )
        ]
    ),
}


@pytest.fixture(params=AUDITS)
def report(request):
    return AUDITS[request.param]


def page_of(report, folder):
    return report.save(folder / "audit.html").read_text(encoding="utf-8")


class PageText(HTMLParser):
    """The visible texts of a page, and the names of its elements."""

    def __init__(self, page):
        super().__init__()
        self.texts, self.tags, self._hidden = [], [], 0
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._hidden += tag == "style"

    def handle_endtag(self, tag):
        self._hidden -= tag == "style"

    def handle_data(self, data):
        if data.strip() and not self._hidden:
            self.texts.append(" ".join(data.split()))


def test_the_page_is_one_file_without_network_or_script(report, tmp_path):
    """Acceptance 26."""
    page = page_of(report, tmp_path)
    assert [*tmp_path.iterdir()] == [tmp_path / "audit.html"]
    outside = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert not re.search(r"https?:|url\((?!#)|@import|\b(src|srcset)=", outside)
    assert not re.search(r'href="(?!#)', outside)
    tags = PageText(page).tags
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(tags)
    assert (tags.count("h1"), tags.count("svg")) == (1, 1)
    assert not re.search(r"\son\w+=", page)
    assert page_of(report, tmp_path) == page


def test_names_from_data_are_text_and_never_markup(tmp_path):
    """Acceptance 26: names of models, columns, levels, groups and notes."""
    group = (GroupLeak(HOSTILE, Estimate(0.2, 0.1, 0.3, 0.01)),)
    worst = WorstGroup(HOSTILE, HOSTILE, Estimate(0.5), 2)
    report = make_audit(
        [make_verdict(HOSTILE, HOSTILE, by_group=group), make_unanswered(model=HOSTILE)],
        [
            make_performance(
                HOSTILE,
                HOSTILE,
                honest={
                    "worst_group": worst,
                    "within_strata": {HOSTILE: UNKNOWN, "scanner": UNKNOWN},
                },
            )
        ],
        [Note("stratum", HOSTILE, HOSTILE, HOSTILE)],
        reading=(HOSTILE,),
    )
    for page in (page_of(report, tmp_path), report._repr_html_()):
        assert "script" not in PageText(page).tags
        assert "<script" not in page
        assert HOSTILE in html.unescape(page)


def test_special_cases_show_no_nan_and_no_none(report, tmp_path):
    texts = PageText(page_of(report, tmp_path)).texts + PageText(report._repr_html_()).texts
    texts += [*report.summary, report.methods_paragraph]
    texts += [str(report)]
    unfit = [text for text in texts if re.search(r"\b(nan|None|inf)\b|\(\)|  | \.|\.\.", text)]
    assert not unfit


def test_no_sentence_is_read_twice(report, tmp_path):
    """Sentences of 25 characters or more stand on the page once."""
    texts = PageText(page_of(report, tmp_path)).texts
    sentences = [one for text in texts for one in re.split(r"(?<=[.;:]) ", text)]
    long = [one for one in sentences if len(one) >= 25 and one.endswith(".")]
    assert len(long) == len(set(long))


def test_a_sentence_of_the_answer_holds_one_number_with_its_interval(report):
    for line in report.summary:
        for sentence in re.split(r"(?<=\.) ", line):
            numbers = re.findall(
                r"(?<![\w.])−?0?\.\d+(?! sd)", re.sub(r"\(.*? to .*?\)", "", sentence)
            )
            assert len(numbers) <= 1, sentence


def numbers_of(data):
    """Return all fractions in the rows of an audit's data, without list positions."""
    if isinstance(data, dict):
        return [number for item in data.values() for number in numbers_of(item)]
    if isinstance(data, list):
        return [number for item in data for number in numbers_of(item)]
    return [data] if isinstance(data, float) else []


def test_the_page_states_the_numbers_of_its_data(tmp_path):
    """Acceptance 26; kills a number that is computed again, rounded otherwise or left out."""
    report = AUDITS["several models and features"]
    report.save(tmp_path / "audit.json")
    data = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    text = " ".join(PageText(page_of(report, tmp_path)).texts).replace("−", "-")
    shown = {float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)}
    rows = {name: data[name] for name in ("verdicts", "performance")}
    for number in numbers_of(rows):
        rounded = {round(number, digits) + 0.0 for digits in (0, 2, 3)}
        assert rounded & shown, number


def test_one_number_has_one_form_and_one_name(tmp_path):
    """Fault 16: .832 stood on one page as 71.8 % and .832."""
    report = make_audit()
    page = " ".join(PageText(page_of(report, tmp_path)).texts)
    for value in ("0.832", "0.642", "0.654"):
        assert value in page
    assert not re.search(r"\d %(?! (interval|bootstrap|quantile))", page)
    # 0.8318 would be 0.83 in another form, and 0.6423 would be 0.64.
    assert not re.search(r"\b0\.(83|8318|64|6423|65|6542)\b", page)


def test_hatched_rows_of_the_figure_have_no_answer(tmp_path):
    """Fault 14: what was not tested is drawn, and not left out."""
    page = page_of(AUDITS["several models and features"], tmp_path)
    figure = page[page.index("<svg") : page.index("</svg>")]
    texts = PageText(figure).texts
    assert "scanner, cnn: no answer" in texts
    assert "site, pmdn" in texts
    assert "<pattern" in figure
    assert set(re.findall(r"#[0-9a-f]{6}\b", figure)) <= {"#ffffff"}


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        ([make_verdict()], "Among people with the same value of dx, the outputs of cnn depend on "
         "site (a clear leak)."),
        ([make_verdict(), make_quiet()], "No other leak was found."),
        ([make_quiet()], "No leak of age was found in the outputs of cnn. A shift of 0.5 sd by age "
         "would have been found in 84 of 100 trials."),
        ([make_quiet(), make_quiet("sex")], "No leak of age or sex was found"),
        ([make_quiet(sensitivity=())], "No leak of age was found in the outputs of cnn."),
        ([make_quiet(), make_unanswered()], "There is no answer for scanner."),
        ([make_unanswered(), make_quiet("scanner", "pmdn")], "for scanner in the outputs of cnn."),
        ([make_unanswered()], "There is no answer for scanner."),
        ([make_verdict(model="model")], "the outputs depend on site"),
        ([make_verdict(model="fc1", is_features=True)], "the features fc1 depend on site"),
        (
            [make_verdict(effect=Estimate(0.004, 0.0, 0.01, 0.01))],
            "site (a clear leak in the groups AD and CN)",
        ),
        ([make_verdict(model=name) for name in "abcde"], "found in the outputs of d and the"),
    ],
)  # fmt: skip
def test_the_first_line_states_what_is_left(verdicts, words):
    assert words in make_audit(verdicts).summary[0]


@pytest.mark.parametrize(
    ("performance", "words"),
    [
        (
            [make_performance()],
            [
                "Under weights that balance the confounds over dx cnn has an AUC for dx of 0.654",
                "Within strata of site it is 0.642 (0.57 to 0.71).",
                "As sampled, where the confounds help, it is 0.832 (0.79 to 0.87).",
            ],
        ),
        (
            [make_performance(honest={"within_strata": {"site": Estimate(0.5, 0.43, 0.56)}})],
            ["Within strata of site it is 0.500 (0.43 to 0.56), not above chance."],
        ),
        (
            [make_performance(alone=Estimate(0.8204, 0.78, 0.86))],
            ["The confounds alone reach 0.820 (0.78 to 0.86)."],
        ),
        (
            [make_performance(honest={"effective": (31.2, 140.0)})],
            ["0.654 (0.58 to 0.72), from too few effective people to be judged."],
        ),
        (
            [make_performance("mmse", score="numeric")],
            ["an R² for mmse of 0.654", "the correlation is 0.642", "the R² is 0.832"],
        ),
        ([make_performance(score="classes")], ["a mean AUC for dx of 0.654"]),
        (
            AUDITS["several models and features"].performance,
            ["For dx, pmdn does best, with an AUC of 0.713 (0.65 to 0.77) under weights that"],
        ),
        (
            AUDITS["several labels"].performance,
            ["For hiv, cnn has an AUC of 0.654", "Scores for apoe are in the table."],
        ),
        (
            [
                make_performance(alone=Estimate(0.8204)),
                make_performance(model="pmdn", honest={"plain": Estimate(0.71)}),
            ],
            ["As sampled, the confounds alone predict dx about as well as the best model does"],
        ),
        ([], ["No label was given, so performance was not measured."]),
        (AUDITS["no score"].performance, ["Performance could not be measured for dx."]),
    ],
)
def test_the_second_line_states_what_the_model_is_worth(performance, words):
    line = make_audit(performance=performance).summary[1]
    for part in words:
        assert part in line


def test_a_model_that_the_confounds_do_not_help_is_not_accused():
    """The positive control stands above: "where the confounds help"."""
    equal = {"site": Estimate(0.83, 0.78, 0.87)}
    honest = {"within_strata": equal, "balanced": Estimate(0.825, 0.78, 0.86)}
    line = make_audit(performance=[make_performance(honest=honest)]).summary[1]
    assert "As sampled it is 0.832 (0.79 to 0.87)." in line
    assert "confounds alone" not in line
    # A second model that is worse than the confounds changes nothing for the best one.
    worse = make_performance(model="pmdn", honest={"plain": Estimate(0.51)})
    two = make_audit(performance=[make_performance(honest=honest), worse])
    assert "confounds alone" not in two.summary[1]


def test_the_third_line_states_what_to_collect():
    missed = (Sensitivity(None, 0.5, Estimate(0.41, 0.32, 0.51, n=100)),)
    report = make_audit(
        [make_quiet(sensitivity=missed), make_unanswered(), make_unanswered(model="pmdn")],
        [make_performance(honest={"effective": (31.2, 140.0)})],
        [Note("stratum", "site", "Site C has no case.", "Compare.")],
        has_people=False,
    )
    line = report.summary[2]
    reason = "scanner has the same value in every row. Add people with another scanner."
    assert line.count(reason) == 1
    for words in (
        "A leak of 0.5 sd by age could have been missed; collect more people.",
        "collect more people, best those in whom dx and the confounds do not go together.",
        "Strata of site that lack a class show nothing about performance.",
        "Rows were treated as different people.",
        "Confounds that are not in the table were not tested.",
    ):
        assert words in line
    assert "was not measured" in AUDITS["no planted leaks"].summary[2]
    assert "no balancing weights for dx. No overlap." in AUDITS["no answer"].summary[2]


def test_the_methods_paragraph_states_how_the_numbers_were_made():
    report = make_audit([make_verdict(rows=300), make_quiet()], has_weights=True)
    words = (
        "We tested the outputs of cnn for site and age with deconfound 1.0.0, on 412 rows of 400 "
        "people in 5 test folds.",
        "independence of each confound among people with the same value of dx.",
        "499 permutations",
        "same value of dx in the same test fold exchanged the confound of all their rows",
        "tests within label groups (Westfall and Young)",
        "(Holm)",
        "shifted the outputs by 0.5 sd",
        "100 times",
        "overlap weights",
        "500 samples of people",
        "Each row entered with its weight.",
    )
    for part in words:
        assert part in report.methods_paragraph
    numeric = AUDITS["numeric label"].methods_paragraph
    assert "entropy weights" in numeric
    assert "curves of the numeric labels" in numeric
    bare = make_audit([make_quiet(sensitivity=())], [], bootstraps=0, folds=1).methods_paragraph
    for absent in ("AUC", "intervals", " sd ", "test fold", "Westfall", "the same"):
        assert absent not in bare
