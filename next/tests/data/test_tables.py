"""Tables as samples: which columns are features, how they become numbers, and joins by id."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars
import pytest

from deconfound.data import FeatureEncoder, Samples, open_samples
from deconfound.errors import OptionError, ShapeError, TableError

N = 40
RNG = np.random.default_rng(0)
PEOPLE = pd.DataFrame(
    {
        "id": [f"{number:03d}" for number in range(N)],
        "dx": np.where(np.arange(N) % 2, "AD", "CN"),
        "site": np.where(np.arange(N) % 3, "UCL", "NA"),
        "volume": RNG.normal(5, 1, N).round(3),
        "thickness": RNG.normal(2, 1, N).round(3),
        "hand": np.where(np.arange(N) % 5, "right", "left"),
        "scanner": np.array(["GE", "Philips", "Siemens"])[np.arange(N) % 3],
    }
)
ROLES = ["dx", "site"]


def open_people(source: object = PEOPLE, **options: object) -> Samples:
    return open_samples(source, **{"id": "id", "roles": ROLES, **options})


def encode_by_definition(table: pd.DataFrame) -> np.ndarray:
    return np.column_stack(
        [
            table["volume"],
            table["thickness"],
            table["hand"] == "right",
            *(table["scanner"] == level for level in ("GE", "Philips", "Siemens")),
        ]
    ).astype(np.float32)


def test_columns_without_a_role_are_features() -> None:
    samples = open_people()
    np.testing.assert_array_equal(samples.x, encode_by_definition(PEOPLE))
    assert samples.x.dtype == np.float32
    assert samples.features is not None
    assert samples.features.names == (
        *("volume", "thickness", "hand: right"),
        *("scanner: GE", "scanner: Philips", "scanner: Siemens"),
    )
    assert samples.ids.tolist() == PEOPLE["id"].tolist()
    assert (samples.kind, samples.shape, len(samples), samples.notes) == ("table", (6,), N, ())
    pd.testing.assert_frame_equal(samples.table, PEOPLE, check_dtype=False)


@pytest.mark.parametrize("form", ["csv", "bom", "tsv", "parquet", "xlsx", "dict", "polars"])
def test_samples_are_the_same_from_every_source(tmp_path: Path, form: str) -> None:
    """007 stays text and the site "NA" is a site, from every form."""
    path = tmp_path / f"people.{'csv' if form == 'bom' else form}"
    source: object = path
    if form in ("csv", "bom"):
        PEOPLE.to_csv(path, index=False, encoding="utf-8-sig" if form == "bom" else "utf-8")
    elif form == "tsv":
        PEOPLE.to_csv(path, index=False, sep="\t")
    elif form == "dict":
        source = {name: PEOPLE[name].tolist() for name in PEOPLE}
    elif form == "polars":
        source = polars.DataFrame({name: PEOPLE[name].tolist() for name in PEOPLE})
    else:
        getattr(PEOPLE, {"parquet": "to_parquet", "xlsx": "to_excel"}[form])(path, index=False)
    samples, expected = open_people(source), open_people()
    np.testing.assert_array_equal(samples.x, expected.x)
    assert samples.ids.tolist() == expected.ids.tolist()
    assert samples.table["site"].tolist() == PEOPLE["site"].tolist()
    assert samples.fingerprint == expected.fingerprint


def test_features_are_names_and_globs() -> None:
    def names(features: object) -> tuple[str, ...]:
        encoder = open_people(features=features).features
        assert encoder is not None
        return tuple(encoder.columns)

    assert names(["scanner", "volume"]) == ("volume", "scanner")
    assert names("volume") == ("volume",)
    assert names(["*i*"]) == ("thickness",)
    assert names(["-scanner", "-t*"]) == ("volume", "hand")
    assert names(["*n*", "-hand"]) == ("thickness", "scanner")
    # A name that is written out may have a role; a glob does not reach it.
    assert names(["site", "v*"]) == ("site", "volume")
    with pytest.raises(OptionError) as caught:
        names(["volum", "q*", "-no"])
    assert "'volum'. Did you mean 'volume'" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 3
    with pytest.raises(OptionError, match="leaves no"):
        names(["volume", "-v*"])


def test_a_role_that_is_absent_is_no_feature_by_accident() -> None:
    with pytest.raises(TableError, match=r"'dxx'.*'dx'(.|\n)*'sites'.*'site'"):
        open_people(roles=["dxx", "sites"])


def test_new_rows_become_the_same_columns() -> None:
    """In another order of columns, with unseen levels and empty cells.

    Kills the mutant that takes an empty or unseen cell of two levels for the first level.
    """
    encoder = open_people().features
    assert encoder is not None
    new = {"scanner": ["Canon", "GE", None], "hand": [None, "right", "both"]}
    new |= {"thickness": ["", "2.5", 1], "volume": [4, "n/a", 5], "id": ["x", "y", "z"]}
    expected = np.array(
        [[4, np.nan, np.nan, 0, 0, 0], [np.nan, 2.5, 1, 1, 0, 0], [5, 1, np.nan, 0, 0, 0]],
        dtype=np.float32,
    )
    for restored in (encoder, FeatureEncoder.from_dict(encoder.to_dict())):
        np.testing.assert_array_equal(open_samples(new, encoder=restored).x, expected)
        np.testing.assert_array_equal(restored.encode(pd.DataFrame(new)), expected)
    with pytest.raises(TableError) as caught:
        encoder.encode({**new, "volume": ["big", 1, 2], "thickness": ["thin", 1, 2]})
    assert all(name in str(caught.value) for name in ("volume", "thickness"))
    with pytest.raises(TableError, match="no column 'hand'"):
        open_samples({"volume": [1], "scanner": ["GE"], "thickness": [1]}, encoder=encoder)


def test_types_decide_what_the_rule_cannot() -> None:
    table = PEOPLE.assign(grade=np.arange(N) % 3, stage=np.where(np.arange(N) % 2, 1, 2))
    options = {"features": ["grade", "stage"], "roles": [*ROLES]}
    assert open_people(table, **options).x.shape == (N, 2)
    types = {"grade": "categorical", "stage": "numeric", "dx": "categorical"}
    samples = open_people(table, types=types, **options)
    assert samples.features is not None
    assert samples.features.names == ("grade: 0", "grade: 1", "grade: 2", "stage")
    np.testing.assert_array_equal(samples.x[:, 3], table["stage"])


def test_columns_in_doubt_can_be_left_out() -> None:
    """Advice that is followed works."""
    table = PEOPLE.assign(seen="2020-01-31", weight=["70", "heavy", *["71.5"] * (N - 2)])
    with pytest.raises(TableError) as caught:
        open_people(table)
    assert "features=['-seen', '-weight']" in str(caught.value)
    assert open_people(table, features=["-seen", "-weight"]).shape == (6,)


def test_tables_are_joined_by_id() -> None:
    """In the order of the second table, whose other columns are no features."""
    measures = PEOPLE[["id", "volume", "thickness"]]
    people = PEOPLE[["id", "dx", "site", "hand"]][::-1]
    samples = open_people(measures, table=people)
    assert samples.ids.tolist() == people["id"].tolist()
    np.testing.assert_allclose(samples.x, PEOPLE[["volume", "thickness"]][::-1], rtol=1e-6)
    assert samples.table["dx"].tolist() == people["dx"].tolist()
    samples = open_people(measures, table=people[5:], features=["volume", "hand"])
    assert samples.shape == (2,)
    assert "5 samples have no row" in samples.notes[0]
    few = measures[3:]
    with pytest.raises(TableError, match="3 rows have no sample: '002', '001', '000'"):
        open_people(few, table=people)
    assert len(open_people(few, table=people, skip_bad=True)) == N - 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"id": None}, "id='…'"),
        ({"table": PEOPLE[["id", "dx", "volume"]]}, "both have the columns 'volume'"),
        ({"table": PEOPLE[["dx"]]}, "no column 'id'"),
        ({"size": 64}, "size="),
        ({"reader": "a:b"}, "reader="),
    ],
)
def test_joins_that_cannot_be(options: dict[str, object], text: str) -> None:
    defaults = {"table": PEOPLE[["id", "dx", "site"]]}
    with pytest.raises((OptionError, TableError), match=text):
        open_people(PEOPLE[["id", "volume"]], **{**defaults, **options})


def test_ids_differ_and_are_there() -> None:
    table = PEOPLE.assign(id=["007", "", "007", *PEOPLE["id"][3:]])
    with pytest.raises(TableError) as caught:
        open_people(table)
    assert "empty in row 1" in str(caught.value)
    assert "'007'" in str(caught.value)
    numbered = open_samples(PEOPLE.drop(columns="id"), roles=ROLES)
    assert numbered.ids.tolist() == [str(row) for row in range(N)]


def test_the_fingerprint_covers_what_is_used() -> None:
    """Kills the mutants without labels, ids or values."""
    prints = {
        "as it is": open_people(),
        "label": open_people(PEOPLE.assign(dx=PEOPLE["dx"].replace("AD", "MCI"))),
        "one label": open_people(PEOPLE.assign(dx=["AD", *PEOPLE["dx"][1:]])),
        "value": open_people(PEOPLE.assign(volume=PEOPLE["volume"] + 1e-3)),
        "ids": open_people(PEOPLE.assign(id=PEOPLE["id"] + "a")),
        "order": open_people(PEOPLE[::-1]),
        "some": open_people().take(np.arange(5)),
        "others": open_people().take(np.arange(5) + 1),
    }
    assert len({samples.fingerprint for samples in prints.values()}) == len(prints)
    same = open_people(PEOPLE.assign(comment="x"), features=["-comment"])
    assert same.fingerprint == prints["as it is"].fingerprint


def test_rows_can_be_taken() -> None:
    samples = open_people()
    is_left = PEOPLE["hand"] == "left"
    for rows in (np.flatnonzero(is_left), is_left.to_numpy(), np.flatnonzero(is_left).tolist()):
        part = samples.take(rows)
        np.testing.assert_array_equal(part.x, samples.x[is_left])
        assert part.ids.tolist() == PEOPLE["id"][is_left].tolist()
        assert part.table.index.tolist() == list(range(len(part)))
        assert part.table["volume"].tolist() == PEOPLE["volume"][is_left].tolist()


def test_numbers_beyond_float32() -> None:
    with pytest.raises((ShapeError, TableError), match="volume"):
        open_people(PEOPLE.assign(volume=PEOPLE["volume"] * 1e40))


def test_errors_do_not_show_what_was_not_understood() -> None:
    """A table that is no table may hold the data of patients."""
    for source in ("Jane Doe\n1950\n" * 3, [{"name": "Jane Doe"}], b"Jane Doe"):
        with pytest.raises((OptionError, TableError, ShapeError)) as caught:
            open_samples(source)
        assert "Jane" not in str(caught.value)
