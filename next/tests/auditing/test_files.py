"""Audits of files: what is read is joined safely or refused, and no damaged file is loaded."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from deconfound.auditing import Audit, audit, audit_files
from deconfound.errors import DeconfoundError
from deconfound.metrics import Resampling

N = 40
RANDOM = np.random.default_rng(0)
IS_AD = np.arange(N) % 2
SCORE = 2.0 * IS_AD - 1 + RANDOM.normal(scale=0.4, size=N)
IDS = np.array([f"{row:03d}" for row in range(N)])
PEOPLE = pd.DataFrame(
    {
        "id": IDS,
        "age": RANDOM.normal(70, 5, N).round(2),
        "site": np.array(["A", "B"])[RANDOM.integers(2, size=N)],
        "dx": np.array(["CN", "AD"])[IS_AD],
        "name": [f"Smith-{row}" for row in range(N)],
    }
)
FAST = {"resampling": Resampling(19, 0), "planted": None, "probes": False}
Write = Callable[[str, Any], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a table, arrays, a text or bytes in the format of the file's ending."""

    def write_file(name: str, content: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(content, str | bytes):
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        elif path.suffix == ".npy":
            np.save(path, content)
        elif path.suffix == ".npz":
            np.savez(path, **content)
        elif path.suffix == ".parquet":
            content.to_parquet(path)
        else:
            content.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
        return path

    return write_file


def run(paths: Any, **options: Any) -> Audit:
    return audit_files(paths, **({"confounds": ["age"], "labels": ["dx"]} | FAST | options))


def auc(report: Audit) -> float:
    return report.performance[0].honest.plain.value


EXPECTED = audit(SCORE, PEOPLE, confounds=["age"], labels=["dx"], positive="AD", **FAST)
PREDICTIONS = pd.DataFrame({"id": IDS, "score_AD": SCORE})


def test_the_score_is_good():
    """The control: rows that were joined wrongly would have an AUC near .5."""
    assert auc(EXPECTED) > 0.9


@pytest.mark.parametrize("name", ["model.csv", "model.tsv", "model.parquet"])
@pytest.mark.parametrize("people_name", ["people.csv", "people.parquet"])
def test_a_join_by_id_equals_the_audit_of_arrays(write, name, people_name):
    order = RANDOM.permutation(N)
    report = run(write(name, PREDICTIONS.iloc[order]), table=write(people_name, PEOPLE), id="id")
    assert report.about.models == ("model",)
    assert report.verdicts[0].effect.value == EXPECTED.verdicts[0].effect.value
    assert auc(report) == auc(EXPECTED)
    assert report.notes == EXPECTED.notes


def test_ids_keep_their_zeros(write):
    """Ids 1, 01 and 001 are three people."""
    people = PEOPLE.assign(id=["1", "01", "001", *IDS[3:]])
    order = RANDOM.permutation(N)
    predictions = pd.DataFrame({"id": people["id"], "score_AD": SCORE}).iloc[order]
    assert auc(run(write("m.csv", predictions), table=write("p.csv", people), id="id")) == auc(
        EXPECTED
    )


def test_ids_of_an_npz_file(write):
    order = RANDOM.permutation(N)
    path = write("m.npz", {"id": IDS[order], "logits": SCORE[order]})
    report = run(path, table=write("p.csv", PEOPLE), id="id", positive="AD")
    assert auc(report) == auc(EXPECTED)


def test_rows_without_a_partner_are_counted(write):
    table = write("people.csv", PEOPLE.iloc[:38])
    report = run(write("m.csv", PREDICTIONS.iloc[3:]), table=table, id="id")
    assert report.about.rows == 35
    texts = [note.text for note in report.notes]
    assert any("3 of 38 rows of 'people.csv'" in text for text in texts)
    assert any("2 of 37 rows of 'm.csv'" in text for text in texts)


def test_one_file_is_predictions_and_table(write):
    report = run(write("all.csv", PEOPLE.assign(prob_AD=1 / (1 + np.exp(-SCORE)))))
    assert auc(report) == auc(EXPECTED)
    assert report.notes == EXPECTED.notes


@pytest.mark.parametrize("content", [SCORE, SCORE.astype(np.float16)[:, None]])
def test_arrays_are_matched_by_position_with_a_note(write, content):
    report = run(write("m.npy", content), table=write("people.csv", PEOPLE), positive="AD")
    assert auc(report) > 0.9
    assert any("'people.csv', 'm.npy' were matched by position" in x.text for x in report.notes)


def test_several_files_are_several_models(write):
    paths = [write(f"{name}/out.csv", PREDICTIONS) for name in ("plain", "pmdn")]
    paths.append(write("third.csv", PREDICTIONS))
    report = run(paths, table=write("people.csv", PEOPLE), id="id")
    plain, pmdn, third = report.about.models
    assert plain.endswith("plain/out")
    assert pmdn.endswith("pmdn/out")
    assert third == "third"


def test_several_models_in_one_file(write):
    content = PEOPLE.assign(cnn=SCORE, forest=-SCORE)
    path = write("all.csv", content)
    report = run(path, models={"CNN": "cnn", "RF": ["forest"]}, positive="AD")
    assert report.about.models == ("CNN", "RF")
    first, second = (row.honest.plain.value for row in report.performance)
    assert second == pytest.approx(1 - first)


def test_outputs_choose_columns_and_arrays(write):
    path = write("all.csv", PEOPLE.assign(p=SCORE, other=1.0))
    assert auc(run(path, outputs=["p"], positive="AD")) == auc(EXPECTED)
    archive = write("m.npz", {"logits": SCORE, "features": np.eye(N)})
    report = run(archive, table=write("p.csv", PEOPLE), outputs=["logits"], positive="AD")
    assert auc(report) == auc(EXPECTED)


def test_columns_called_by_a_level_are_outputs(write):
    path = write("all.csv", PEOPLE.assign(AD=SCORE, CN=-SCORE))
    assert auc(run(path)) == auc(EXPECTED)


def test_features_are_joined_as_well(write):
    order = RANDOM.permutation(N)
    features = {"id": IDS[order], "fc1": np.c_[SCORE, SCORE][order]}
    options = {"table": write("p.csv", PEOPLE), "id": "id"}
    report = run(write("m.csv", PREDICTIONS), features=write("f.npz", features), **options)
    assert report.about.features == ("fc1",)
    table = pd.DataFrame({"id": IDS, "f0": SCORE, "f1": SCORE}).iloc[order]
    other = run(write("m.csv", PREDICTIONS), features=write("fc1.csv", table), **options)
    assert other.verdicts[1].effect.value == report.verdicts[1].effect.value


def test_equal_columns_may_be_written_otherwise(write):
    """63.20 in a CSV is 63.2 in Parquet, and the 0 and 1 of two models are no ids."""
    people = write("people.csv", PEOPLE.assign(age=[f"{age:.3f}" for age in PEOPLE["age"]]))
    columns = PEOPLE[["age"]].assign(score_AD=IS_AD)
    first = write("first.parquet", columns)
    second = write("second.csv", columns.assign(score_AD=1 - IS_AD))
    report = run([first, second], table=people, confounds=["site"], person="age")
    assert report.about.models == ("first", "second")


def test_markup_in_names_stays_text(write):
    people = PEOPLE.assign(dx=np.array(["<script>", "[red]"])[IS_AD])
    report = run(write("all.csv", people.assign(**{"score_[red]": SCORE})))
    assert "'[red]' is predicted" in report.about.reading[0]


# Refusals: each case is files, options, and what the message must contain.

SHIFTED = PEOPLE.assign(id=np.roll(IDS, 1))
Files = Mapping[str, Any]
REFUSED: dict[str, tuple[Files, dict[str, Any], list[str]]] = {
    "other order of the same ids": (
        {"m.csv": PREDICTIONS.iloc[::-1], "p.csv": PEOPLE},
        {},
        ["'id'", "differs", "id='participant_id'"],
    ),
    "other order of the label": (
        {"m.csv": PEOPLE[["dx"]].iloc[::-1].assign(score_AD=SCORE), "p.csv": PEOPLE},
        {},
        ["'dx'", "differs"],
    ),
    "another label of a joined person": (
        {"m.csv": PREDICTIONS.assign(dx="AD"), "p.csv": PEOPLE},
        {"id": "id"},
        ["'dx'", "differs in rows 0, 2"],
    ),
    "unequal rows": (
        {"m.csv": PREDICTIONS.iloc[:9], "p.csv": PEOPLE},
        {},
        ["'p.csv' has 40", "'m.csv' has 9", "id='participant_id'"],
    ),
    "an id twice": (
        {"m.csv": pd.concat([PREDICTIONS, PREDICTIONS[4:5]]), "p.csv": PEOPLE},
        {"id": "id"},
        ["'id' of 'm.csv'", "rows 4, 40"],
    ),
    "an empty id": (
        {"m.csv": PREDICTIONS.assign(id=[None, *IDS[1:]]), "p.csv": PEOPLE},
        {"id": "id"},
        ["empty or not unique in row 0"],
    ),
    "ids of other people": (
        {"m.csv": PREDICTIONS.assign(id="s" + pd.Series(IDS)), "p.csv": PEOPLE},
        {"id": "id"},
        ["No 'id' occurs in all of 'p.csv', 'm.csv'"],
    ),
    "no column of ids": (
        {"m.csv": PREDICTIONS, "p.csv": PEOPLE},
        {"id": "ids"},
        ["There is no column 'ids' in 'p.csv'", "'id'"],
    ),
    "an array has no ids": (
        {"m.npy": SCORE, "p.csv": PEOPLE},
        {"id": "id"},
        ["no column 'id' in 'm.npy'", ".npz"],
    ),
    "ids of two columns": (
        {"m.npz": {"id": np.eye(N), "x": SCORE}, "p.csv": PEOPLE},
        {"id": "id"},
        ["'id'", "(40, 40)"],
    ),
    "an array without a table": ({"m.npy": SCORE}, {}, ["'m.npy' has no named columns"]),
    "no outputs": ({"m.csv": PEOPLE}, {}, ["It is not clear", "'age'", "outputs=["]),
    "absent outputs": (
        {"m.csv": PEOPLE.assign(logit=SCORE)},
        {"outputs": ["logits"]},
        ["no column 'logits' in 'm.csv'", "'logit'"],
    ),
    "several arrays": (
        {"m.npz": {"a": SCORE, "b": SCORE}, "p.csv": PEOPLE},
        {},
        ["'a', 'b'", "outputs=['COLUMN']", "models={'plain': 'COLUMN'}"],
    ),
    "columns and a matrix": (
        {"m.npz": {"a": SCORE, "b": np.eye(N)}, "p.csv": PEOPLE},
        {"outputs": ["a", "b"]},
        ["arrays of several columns", "outputs=['a']"],
    ),
    "several models that are no classes": (
        {"m.csv": PEOPLE.assign(score_cnn=SCORE, score_rf=SCORE)},
        {},
        ["'score_cnn', 'score_rf'", "outputs={'score_cnn': …}"],
    ),
    "models and outputs": (
        {"m.csv": PEOPLE},
        {"models": {"a": "age"}, "outputs": ["age"]},
        ["models= and outputs= are both given"],
    ),
    "models of two files": (
        {"a.csv": PREDICTIONS, "b.csv": PREDICTIONS, "p.csv": PEOPLE},
        {"models": {"a": "score_AD"}},
        ["single file", "got 2"],
    ),
    "a column twice": (
        {"m.csv": "id,score_AD,score_AD\n1,2,3\n", "p.csv": PEOPLE},
        {},
        ["2 columns 'score_AD'"],
    ),
    "texts among outputs": (
        {"m.csv": PREDICTIONS.assign(score_AD=PEOPLE["name"]), "p.csv": PEOPLE},
        {"id": "id"},
        ["'score_AD' has other cells in rows 0, 1"],
    ),
    "people as outputs": ({"m.csv": PEOPLE}, {"outputs": ["name"]}, ["'name' has other cells"]),
    "gaps": (
        {"m.csv": PREDICTIONS.assign(score_AD=[np.nan, *SCORE[1:]]), "p.csv": PEOPLE},
        {"id": "id"},
        ["missing, NaN", "in the columns 'score_AD' in row 0"],
    ),
    "no line of names": ({"m.csv": "1,0.5\n2,0.7\n"}, {}, ["numbers instead of names"]),
    "only names": ({"m.csv": "id,score_AD\n"}, {}, ["no rows"]),
    "an empty table": ({"m.csv": ""}, {}, ["'m.csv' is empty"]),
    "Latin-1": ({"m.csv": "site\nKöln\n".encode("latin-1")}, {}, ["not UTF-8"]),
    "UTF-16": ({"m.csv": "id,score\n1,2\n".encode("utf-16")}, {}, ["not UTF-8"]),
    "NUL bytes": ({"m.csv": b"id,score\n\0\0,2\n"}, {}, ["'m.csv'"]),
    "a huge cell": ({"m.csv": "id,score\n1," + "9" * 200_000 + "\n"}, {}, ["damaged"]),
    "uneven lines": ({"m.csv": "id,score\n1,Smith,3\n"}, {}, ["line 2 has 3"]),
    "a pickle": ({"m.pkl": pickle.dumps(SCORE)}, {}, ["is no .csv"]),
    "no ending": ({"m": b"1,2\n"}, {}, ["is no .csv"]),
    "text called Parquet": ({"m.parquet": "id,score\n"}, {}, ["cannot be read"]),
    "rows of other shapes": (
        {"m.npz": {"a": SCORE, "b": SCORE[:3]}, "p.csv": PEOPLE},
        {},
        ["one row per person", "(40,), (3,)"],
    ),
    "a single number": ({"m.npy": np.array(3.0), "p.csv": PEOPLE}, {}, ["one row per person"]),
    "no numbers": ({"m.npy": np.zeros((0, 3)), "p.csv": PEOPLE}, {}, ["one row per person"]),
    "an empty archive": ({"m.npz": {}, "p.csv": PEOPLE}, {}, ["one row per person"]),
    "texts in an array": ({"m.npy": IDS.astype("U9") + "x", "p.csv": PEOPLE}, {}, ["numbers"]),
    "three axes": ({"m.npy": np.ones((N, 2, 2)), "p.csv": PEOPLE}, {}, ["(40, 2, 2)"]),
    "complex numbers": ({"m.npy": SCORE * 1j, "p.csv": PEOPLE}, {}, ["complex"]),
    "not an array": ({"m.npy": b"id,score\n", "p.csv": PEOPLE}, {}, ["'m.npy' cannot be read"]),
    "an empty array file": ({"m.npy": b"", "p.csv": PEOPLE}, {}, ["'m.npy' cannot be read"]),
    "text called npz": ({"m.npz": b"id,score\n", "p.csv": PEOPLE}, {}, ["cannot be read"]),
    "half an archive": ({"m.npz": b"PK\3\4" + bytes(90), "p.csv": PEOPLE}, {}, ["cannot be read"]),
}


def refusal(write: Write, files: Files, options: Mapping[str, Any]) -> str:
    """Return the message with which an audit of these files is refused."""
    paths = {name: write(name, content) for name, content in files.items()}
    table = paths.pop("p.csv", None)
    with pytest.raises(DeconfoundError) as error:
        run(list(paths.values()), table=table, **options)
    return str(error.value)


@pytest.mark.parametrize("case", REFUSED)
def test_files_that_are_refused(write, case):
    files, options, parts = REFUSED[case]
    message = refusal(write, files, options)
    for part in parts:
        assert part in message
    assert "Smith" not in message


def test_absent_files_are_named(tmp_path):
    for name in ("m.csv", "m.npy", "m.npz", "m.parquet"):
        with pytest.raises(DeconfoundError, match=f"no file .*{name}"):
            run(tmp_path / name)
    with pytest.raises(DeconfoundError, match="is a folder"):
        run(tmp_path)
    with pytest.raises(DeconfoundError, match="at least one file"):
        run([])


def test_one_file_twice_is_refused(write):
    path = write("m.csv", PREDICTIONS)
    with pytest.raises(DeconfoundError, match="given twice"):
        run([path, path], table=write("p.csv", PEOPLE), id="id")


# Files that would take memory or run code.


def header(description: str, version: tuple[int, int] = (1, 0)) -> bytes:
    """Return the start of an .npy file with any header."""
    size = struct.pack("<H" if version == (1, 0) else "<I", len(description))
    return b"\x93NUMPY" + bytes(version) + size + description.encode()


HUGE = "{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,), }"
HEADERS = {
    "numbers without end": HUGE,
    "an overflow": HUGE.replace("10000000000000", str(2**63)),
    "a negative shape": HUGE.replace("10000000000000", "-40"),
    "a shape of texts": HUGE.replace("(10000000000000,)", "'40'"),
    "objects": HUGE.replace("<f8", "|O"),
    "an unknown type": HUGE.replace("<f8", "<zz"),
    "no dictionary": "open('x', 'w')",
    "no shape": "{'descr': '<f8', 'fortran_order': False}",
    "nested brackets": "(" * 5000,
    "nothing": "",
}


@pytest.mark.parametrize("case", HEADERS)
@pytest.mark.parametrize("version", [(1, 0), (9, 9)])
@pytest.mark.parametrize("is_archive", [False, True])
def test_headers_are_checked_before_memory_is_taken(write, case, version, is_archive):
    content = header(HEADERS[case], version) + bytes(64)
    name = "m.npy"
    if is_archive:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("a.npy", content)
        name, content = "m.npz", buffer.getvalue()
    message = refusal(write, {name: content, "p.csv": PEOPLE}, {})
    assert message.startswith(f"'{name}' ")


def test_the_declared_size_is_stated(write):
    message = refusal(write, {"m.npy": header(HUGE) + bytes(64), "p.csv": PEOPLE}, {})
    assert "declares 10,000,000,000,000 cells of 8 bytes" in message


class _Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["m.npy", "m.npz"])
def test_pickles_are_never_loaded(write, tmp_path, name):
    bomb = np.array([_Bomb(tmp_path / "ran")] * N, dtype=object)
    content = bomb if name == "m.npy" else {"a": bomb}
    message = refusal(write, {name: content, "p.csv": PEOPLE}, {})
    assert "pickled objects, which are not loaded" in message
    assert not (tmp_path / "ran").exists()


def test_archives_that_unpack_too_far_are_refused_unread(write, tmp_path):
    with zipfile.ZipFile(tmp_path / "m.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", b"")
        archive.filelist[0].file_size = 3 * 10**9
    with pytest.raises(DeconfoundError, match=r"'m.npz' .* unpacks to more than 1 GB"):
        run(tmp_path / "m.npz", table=write("p.csv", PEOPLE))


def test_parquet_of_billions_of_equal_rows_is_refused_unread(tmp_path):
    """Kills a reader that unpacks before it looks at the number of rows."""
    rows = pa.table({"id": pa.array(np.zeros(10**6, dtype=np.int8))})
    path = tmp_path / "m.parquet"
    with pyarrow.parquet.ParquetWriter(path, rows.schema, compression="zstd") as writer:
        for _ in range(200):
            writer.write_table(rows)
    with pytest.raises(DeconfoundError, match="unpacks to more than 1 GB"):
        run(path)


def test_gzip_bombs_are_refused(tmp_path):
    """The table is 1.1 GB long, and its file 5 MB."""
    path = tmp_path / "m.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        line = b"0" * 2**20
        for _ in range(1100):
            file.write(line)
    with pytest.raises(DeconfoundError, match="unpacks to more than 1 GB"):
        run(path)
