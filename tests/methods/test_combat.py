"""The combat method does to a row what combatlearn does, from what it keeps in its state."""

import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from combatlearn import ComBat, NestedComBat

import deconfound as dc
from deconfound.errors import DeconfoundError, OptionError, ShapeError, TableError
from deconfound.methods import method
from tests.methods.problem import make_network, make_problem, prepare


@pytest.fixture(scope="module")
def problem():
    return make_problem(150)


def without_keep(problem):
    design = dc.Design(confounds=["age", "sex", "site"]).fit(problem.table)
    return replace(problem, design=design, metadata=torch.from_numpy(design.encode(problem.table)))


def harmonise(x, table, labels=None):
    """combatlearn on the raw columns, with the site's own names."""
    known = pd.DataFrame({"age": table["age"], "sex": (table["sex"] == "M").astype(float)})
    if labels is not None:
        known["dx"] = labels
    return ComBat(pd.Series(table["site"]), continuous_covariates=known, method="fortin"), pd.DataFrame(x.numpy())


def test_without_keep_it_is_combatlearns_own_transform(problem):
    plain = without_keep(problem)
    model = prepare("combat", plain)
    ours = model.harmonised(plain.x, plain.metadata)
    combat, rows = harmonise(problem.x.double(), problem.table)
    np.testing.assert_allclose(ours.numpy(), np.asarray(combat.fit_transform(rows)), atol=1e-4)
    assert (ours - problem.x).abs().max() > 0.5


def test_with_keep_the_labels_part_stands_at_its_mean(problem):
    model = prepare("combat", problem)
    labels = problem.table["dx"].astype(float)
    combat, rows = harmonise(problem.x.double(), problem.table, labels)
    combat.fit(rows)
    combat.continuous_covariates = combat.continuous_covariates.assign(dx=labels.mean())
    ours = model.harmonised(problem.x, problem.metadata)
    np.testing.assert_allclose(ours.numpy(), np.asarray(combat.transform(rows)), atol=1e-4)


def covariates(table):
    return pd.DataFrame({"age": table["age"], "sex": (table["sex"] == "M").astype(float)})


@pytest.mark.parametrize(
    ("options", "kind"),
    [({"gam": True}, "gam"), ({"covbat": True}, "chen"), ({"gam": True, "covbat": True}, "covbat_gam")],
)
def test_curves_and_covariances_are_those_of_combatlearn(problem, options, kind):
    plain = without_keep(problem)
    model = prepare("combat", plain, **options)
    smooth = {"smooth_terms": ["age"]} if "gam" in options else {}
    new = make_problem(40, seed=4, like=plain)  # ages beyond the ends of training are among them
    table = {name: np.concatenate([problem.table[name], new.table[name]]) for name in ("age", "sex", "site")}
    known = covariates(table)
    combat = ComBat(pd.Series(table["site"]), continuous_covariates=known, method=kind, **smooth)
    rows = pd.DataFrame(torch.cat([problem.x, new.x]).double().numpy())
    combat.fit(rows.iloc[:150])
    expected = np.asarray(combat.transform(rows))
    for x, metadata, wanted in ((plain.x, plain.metadata, expected[:150]), (new.x, new.metadata, expected[150:])):
        np.testing.assert_allclose(model.harmonised(x, metadata).numpy(), wanted, atol=2e-3)
    linear = prepare("combat", plain).harmonised(plain.x, plain.metadata)
    assert np.abs(linear.numpy() - expected[:150]).max() > 0.02  # the control


def test_nested_batch_variables_are_harmonised_one_after_the_other(problem):
    table = {**problem.table, "scanner": np.random.default_rng(5).choice(["GE", "Siemens"], 150)}
    x = problem.x + torch.from_numpy(np.where(table["scanner"] == "GE", 2.0, 0.0))[:, None].float()
    design = dc.Design(confounds=["age", "sex", "site", "scanner"]).fit(table)
    given = replace(problem, table=table, design=design, x=x, metadata=torch.from_numpy(design.encode(table)))
    model = prepare("combat", given, nested=["scanner"])
    batch = pd.DataFrame({"site": table["site"], "scanner": table["scanner"]})
    theirs = NestedComBat(batch, continuous_covariates=covariates(table), optimize_order=False)
    expected = np.asarray(theirs.fit_transform(pd.DataFrame(x.double().numpy())))
    np.testing.assert_allclose(model.harmonised(x, given.metadata).numpy(), expected, atol=1e-3)
    with pytest.raises(OptionError, match=r"nested must name categorical confounds beside the site 'site'; got 'age'"):
        prepare("combat", given, nested=["age"])


def test_curves_need_a_numeric_confound_with_enough_values(problem):
    flat = dc.Design(confounds=["sex", "site"]).fit(problem.table)
    with pytest.raises(OptionError, match="gam must have a numeric confound that can bend; got none"):
        prepare(
            "combat", replace(problem, design=flat, metadata=torch.from_numpy(flat.encode(problem.table))), gam=True
        )
    table = {**problem.table, "age": np.round(problem.table["age"], -1)}
    few = dc.Design(confounds=["age", "site"], types={"age": "numeric"}).fit(table)
    with pytest.raises(TableError, match=r"age must have at least 10 values with gam=True; got \d\. Leave gam out"):
        prepare("combat", replace(problem, design=few, metadata=torch.from_numpy(few.encode(table))), gam=True)


def test_new_rows_are_harmonised_by_what_the_training_rows_taught(problem):
    new = make_problem(40, seed=4, like=problem)
    model = prepare("combat", problem).eval()
    with torch.no_grad():
        together = model(new.x, new.metadata)
        alone = torch.cat([model(new.x[i : i + 1], new.metadata[i : i + 1]) for i in range(40)])
    torch.testing.assert_close(alone, together)


def test_the_sites_effect_goes_and_that_of_age_stays(problem):
    model = prepare("combat", problem)
    after = model.harmonised(problem.x, problem.metadata).numpy()
    regressors = np.column_stack([np.ones(150), problem.metadata.numpy()])

    def effects(x):
        return dict(zip(problem.design.names, np.linalg.lstsq(regressors, x, rcond=None)[0][1:, 2], strict=True))

    before, then = effects(problem.x.numpy()), effects(after)
    assert abs(then["site[B]"]) < 0.15 * abs(before["site[B]"])
    assert abs(then["age"]) > 0.8 * abs(before["age"])


def test_a_site_that_was_not_in_the_training_rows_is_refused(problem):
    forgiving = dc.Design(confounds=["age", "sex", "site"], keep=["dx"], unseen="mean").fit(problem.table)
    model = prepare("combat", replace(problem, design=forgiving))
    new = {"age": [70.0, 71.0], "sex": ["F", "M"], "site": ["A", "Mars"]}
    metadata = torch.from_numpy(forgiving.encode(new))
    with pytest.raises(
        TableError, match=r"site must be a level that method 'combat' was fitted on \(A, B, C\); got another in row 1"
    ):
        model.eval()(problem.x[:2], metadata)
    assert model(problem.x[:1], metadata[:1]).shape == (1, 1)


def test_the_site_must_be_known(problem):
    with pytest.raises(OptionError, match=r"site must be a categorical confound .* got 'sit'\. Did you mean 'site'\?"):
        method("combat").prepare(make_network(), problem.setting(site="sit"))
    with pytest.raises(OptionError, match=r"got None\. There are: sex, site"):
        method("combat").prepare(make_network(), problem.setting(site=None))
    with pytest.raises(ShapeError, match="metadata must be given to method 'combat'; got None"):
        prepare("combat", problem).eval()(problem.x)


def test_a_site_with_one_row_is_refused_by_name(problem):
    site = np.where(problem.table["site"] == "C", "A", problem.table["site"])
    site[7] = "C"
    table = {**problem.table, "site": site}
    design = dc.Design(confounds=["age", "sex", "site"], keep=["dx"]).fit(table)
    tiny = replace(problem, table=table, design=design, metadata=torch.from_numpy(design.encode(table)))
    with pytest.raises(TableError, match=r"every level of site must have at least 2 rows .* got C \(1\)"):
        prepare("combat", tiny)


def test_codes_of_sites_are_named_as_they_were_written(problem):
    site = np.where(problem.table["site"] == "A", 17.0, 3.0)
    table = {**problem.table, "site": site}
    types = {"site": "categorical"}
    design = dc.Design(confounds=["age", "sex", "site"], keep=["dx"], types=types, unseen="mean").fit(table)
    coded = replace(problem, table=table, design=design, metadata=torch.from_numpy(design.encode(table)))
    metadata = torch.from_numpy(design.encode({"age": [70.0], "sex": ["F"], "site": [4.0]}))
    with pytest.raises(TableError, match=r"site must be a level that method 'combat' was fitted on \(3, 17\); got"):
        prepare("combat", coded).eval()(problem.x[:1], metadata)


def test_images_are_refused(problem):
    with pytest.raises(ShapeError, match=r"inputs of method 'combat' must be features of a table, \(n, d\); got shape"):
        prepare("combat", replace(problem, x=torch.randn(150, 1, 4, 4)))


def test_an_absent_package_is_named_with_its_extra(problem, monkeypatch):
    monkeypatch.setitem(sys.modules, "combatlearn", None)
    with pytest.raises(DeconfoundError, match=r"pip install 'deconfound\[combat\]'"):
        prepare("combat", problem)
