"""Which file belongs to which row: by name, never by order, and everything left over is named."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from deconfound.data import open_samples
from deconfound.errors import OptionError, TableError
from tests.data.files import write_picture, write_scan, write_study


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Pictures 007, 008, 009 and 010, whose red is their number."""
    for number in (7, 8, 9, 10):
        write_picture(tmp_path / "pictures" / f"{number:03d}.png", number)
    return tmp_path / "pictures"


@pytest.mark.parametrize(
    "form", ["{}", "{}.png", "./{}.png", "pictures/{}.png", "pictures\\{}", "{folder}/{}.png"]
)
def test_rows_name_files_in_several_ways(pictures: Path, form: str) -> None:
    """The samples are in the order of the table, and 007 is not 7."""
    names = ["010", "007", "009", "008"]
    table = {"file": [form.format(name, folder=pictures) for name in names], "age": [1, 2, 3, 4]}
    samples = open_samples(pictures, table, id="file", roles=["age"])
    assert samples.x[:, 0, 0, 0].tolist() == [10, 7, 9, 8]
    assert samples.table["age"].tolist() == [1, 2, 3, 4]
    assert samples.ids.tolist() == table["file"]
    assert samples.notes == ()


def test_ids_of_files_keep_their_zeros(pictures: Path, tmp_path: Path) -> None:
    """From a text file with a byte order mark, of which another encoding would spoil the name."""
    (tmp_path / "people.csv").write_text("\ufeffid,site\n007,NA\n008,UCL\n009,NA\n010,UCL\n")
    samples = open_samples(pictures, tmp_path / "people.csv", id="id", roles=["site"])
    assert samples.ids.tolist() == ["007", "008", "009", "010"]
    assert samples.table["site"].tolist() == ["NA", "UCL", "NA", "UCL"]


def test_files_without_a_row_are_noted(pictures: Path) -> None:
    samples = open_samples(pictures, {"id": ["007", "009"]}, id="id")
    assert samples.x[:, 0, 0, 0].tolist() == [7, 9]
    (note,) = samples.notes
    assert "2 files have no row: '008.png', '010.png'" in note


def test_rows_without_a_file_are_an_error_or_left_out(pictures: Path) -> None:
    table = {"id": ["008", "7", "011"], "age": [1, 2, 3]}
    with pytest.raises(TableError) as caught:
        open_samples(pictures, table, id="id")
    for text in ("2 rows have no file: '7', '011'", "'007.png'", "skip_bad=True"):
        assert text in str(caught.value)
    samples = open_samples(pictures, table, id="id", skip_bad=True)
    assert samples.table["age"].tolist() == [1]
    assert "2 rows have no file: '7', '011'. They are left out." in samples.notes
    with pytest.raises(TableError) as caught:
        open_samples(pictures, {"id": ["a", "b"]}, id="id", skip_bad=True)
    assert "skip_bad" not in str(caught.value)


def test_names_that_several_files_have(pictures: Path) -> None:
    write_picture(pictures / "more" / "007.png", 77)
    write_picture(pictures / "other" / "008.png", 88)
    write_picture(pictures / "more" / "011.png", 11)
    ids = ["more/007.png", "011", "other/008"]
    samples = open_samples(pictures, {"id": ids}, id="id")
    assert samples.x[:, 0, 0, 0].tolist() == [77, 11, 88]
    # The path of one file within the folder means no other file.
    assert open_samples(pictures, {"id": ["007.png"]}, id="id").x[0, 0, 0, 0] == 7
    with pytest.raises(
        TableError, match=r"several files.*: '007'\. '007' means '007.png', 'more/007"
    ):
        open_samples(pictures, {"id": ["007", "009"]}, id="id")


def test_rows_that_name_one_file(pictures: Path) -> None:
    with pytest.raises(TableError, match=r"2 ids in more than one row: '007', '008'"):
        open_samples(pictures, {"id": ["007", "008", "007", "008"]}, id="id")
    with pytest.raises(TableError, match=r"one of another row: '007', '007\.png'\."):
        open_samples(pictures, {"id": ["007", "007.png"]}, id="id")
    with pytest.raises(TableError, match="is empty in row 1"):
        open_samples(pictures, {"id": ["007", ""]}, id="id")


def test_folders_without_a_table_or_column(pictures: Path, tmp_path: Path) -> None:
    samples = open_samples(pictures)
    assert samples.ids.tolist() == ["007.png", "008.png", "009.png", "010.png"]
    assert samples.table.shape == (4, 0)
    with pytest.raises(OptionError, match="id= with one of 'file', 'age'"):
        open_samples(pictures, {"file": ["007"], "age": [1]})
    with pytest.raises(TableError, match=r"no column 'files'\. Did you mean 'file'"):
        open_samples(pictures, {"file": ["007"], "age": [1]}, id="files")
    with pytest.raises(TableError, match=r"no column 'agee'"):
        open_samples(pictures, {"file": ["007"], "age": [1]}, id="file", roles=["agee"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(TableError, match=r"no file with one of the endings \.png"):
        open_samples(tmp_path / "empty")


def test_files_are_selected_by_globs(pictures: Path) -> None:
    write_scan(pictures / "scan.nii.gz")
    write_picture(pictures / ".hidden" / "a.png")
    write_picture(pictures / "._007.png")
    with pytest.raises(OptionError, match=r"4 pictures and 1 scans.*features="):
        open_samples(pictures)
    assert open_samples(pictures, features=["*.nii*"]).kind == "scan"
    assert open_samples(pictures, features="00*").ids.tolist() == ["007.png", "008.png", "009.png"]
    several = open_samples(pictures, features=["*.png", "-*7*", "-010.png"])
    assert several.ids.tolist() == ["008.png", "009.png"]
    with pytest.raises(OptionError, match=r"no file 'x\*'"):
        open_samples(pictures, features=["x*", "0*"])


def test_a_study_has_one_row_per_scan(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", {"001": 1, "002": 2, "003": 1})
    write_scan(study / "sub-001" / "ses-1" / "anat" / "sub-001_ses-1_T2w.nii.gz")
    (study / "sub-001" / "ses-1" / "anat" / "sub-001_ses-1_T1w.json").write_text("{}")
    write_scan(study / "derivatives" / "sub-001" / "sub-001_ses-1_T1w.nii.gz")
    samples = open_samples(study, roles=["age", "participant_id"])
    people = ["sub-001", "sub-002", "sub-002", "sub-003"]
    assert samples.table["participant_id"].tolist() == people
    assert samples.table["session_id"].tolist() == ["ses-1", "ses-1", "ses-2", "ses-1"]
    assert samples.table["age"].tolist() == ["6001", "6002", "6002", "6003"]
    assert samples.ids.tolist()[:2] == ["sub-001_ses-1_T1w", "sub-002_ses-1_T1w"]
    assert (samples.kind, samples.shape, samples.notes) == ("scan", (1, 3, 4, 5), ())
    other = open_samples(study, features="*_T2w*", skip_bad=True, id="participant_id")
    assert other.ids.tolist() == ["sub-001_ses-1_T2w"]
    assert "2 rows have no scan: 'sub-002', 'sub-003'" in other.notes[0]


def test_cells_of_sessions_come_first(tmp_path: Path) -> None:
    """A person ages between sessions; an empty cell keeps what the table of people has."""
    study = write_study(tmp_path / "study", {"1": 2, "2": 1})
    sessions = "session_id\tage\tscanner\nses-1\t70\tA\nses-2\tn/a\tB\n"
    (study / "sub-1" / "sub-1_sessions.tsv").write_text(sessions)
    table = open_samples(study).table
    assert table["age"].tolist() == ["70", "61", "62"]
    assert table["scanner"].tolist()[:2] == ["A", "B"]
    assert table["scanner"].isna().tolist() == [False, False, True]


def test_a_table_of_sessions_and_people_without_prefix(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", {"07": 2, "7": 1})
    table = pd.DataFrame(
        {"participant_id": ["07", "07", "7"], "session_id": ["1", "2", "1"], "age": [1, 2, 3]}
    )
    samples = open_samples(study, table[::-1])
    assert samples.table["age"].tolist() == [3, 2, 1]
    assert samples.ids.tolist()[0] == "sub-7_ses-1_T1w"
    with pytest.raises(TableError, match="about one participant_id and session_id"):
        open_samples(study, pd.concat([table, table]))
    with pytest.raises(TableError, match="no column 'participant_id'"):
        open_samples(study, table.drop(columns="participant_id"))


def test_people_and_scans_without_a_partner(tmp_path: Path) -> None:
    rows = "participant_id\tage\nsub-1\t61\nsub-2\t62\nsub-4\t64\n"
    study = write_study(tmp_path / "study", {"1": 1, "2": 1, "3": 1}, rows)
    with pytest.raises(TableError) as caught:
        open_samples(study)
    for text in ("1 rows have no scan: 'sub-4'", "sub-3_ses-1_T1w.nii.gz", "skip_bad=True"):
        assert text in str(caught.value)
    samples = open_samples(study, skip_bad=True)
    assert samples.table["participant_id"].tolist() == ["sub-1", "sub-2"]
    assert len(samples.notes) == 2


def test_scans_that_a_table_names_by_path(tmp_path: Path) -> None:
    """An `id` that is not participant_id names files, in the BIDS layout as well."""
    study = write_study(tmp_path / "study", {"1": 2})
    names = ["sub-1_ses-2_T1w", "sub-1/ses-1/anat/sub-1_ses-1_T1w.nii.gz"]
    samples = open_samples(study, {"scan": names, "age": [2, 1]}, id="scan")
    assert samples.ids.tolist() == names
    assert samples.table["age"].tolist() == [2, 1]
