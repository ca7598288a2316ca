"""Folders of images: read once, in one size and scale, and refused by name where they are broken."""

import sys

import numpy as np
import pandas as pd
import pydicom
import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

from deconfound.cli import app
from deconfound.data import Source, open_images, open_source
from deconfound.errors import DeconfoundError, DeconfoundWarning, OptionError, ScanError, TableError


def write_image(path, seed=0, size=(12, 10), mode="RGB"):
    """A picture of random pixels; returns them, height first."""
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    pixels = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


@pytest.fixture
def folder(tmp_path):
    """Four PNGs and a table that names them without their ending."""
    for number in range(4):
        write_image(tmp_path / "pictures" / f"p{number}.png", number)
    frame = pd.DataFrame({"picture": [f"p{n}" for n in range(4)], "age": [50, 61, 72, 45], "dx": ["a", "b", "a", "b"]})
    frame.to_csv(tmp_path / "labels.csv", index=False)
    return tmp_path / "pictures"


def opened(folder, **options):
    options = {"table": folder.parent / "labels.csv", "size": (10, 12), "cache": folder.parent / "cache"} | options
    return open_images(folder, progress=False, jobs=1, **options)


def test_a_folder_of_images_is_a_source_and_pixels_are_kept_exactly(folder):
    images = opened(folder)
    assert isinstance(images, Source)
    assert (len(images), images.shape) == (4, (3, 10, 12))
    assert images.table["age"].tolist() == [50, 61, 72, 45]
    expected = write_image(folder / "p2.png", 2).transpose(2, 0, 1) / 255
    np.testing.assert_allclose(images.read(np.array([2]))[0], expected, atol=1e-6)


def test_a_name_that_two_files_have_is_refused(folder):
    write_image(folder / "p2.jpg", 7)
    with pytest.raises(TableError, match=r"'p2' must be the name of one file in .*; got p2\.png and p2\.jpg\. Write"):
        opened(folder)


def test_a_second_opening_decodes_nothing_and_a_changed_image_alone_is_decoded_again(folder):
    first = opened(folder)
    assert (first.made, opened(folder).made) == (4, 0)
    write_image(folder / "p1.png", 99)
    changed = opened(folder)
    assert changed.made == 1
    assert changed.fingerprint != first.fingerprint


@pytest.mark.parametrize("ending", ["png", "tif", "bmp", "jpg"])
def test_formats_and_grey_images(tmp_path, ending):
    pixels = write_image(tmp_path / "f" / f"x.{ending}", mode="L", size=(16, 16))
    images = open_images(
        tmp_path / "f", table={"file": [f"x.{ending}"]}, size=16, channels="grey", cache=tmp_path / "c"
    )
    assert images.shape == (1, 16, 16)
    assert np.abs(images.read([0])[0, 0] - pixels / 255).mean() < (0.03 if ending == "jpg" else 1e-6)
    colour = open_images(tmp_path / "f", table={"file": [f"x.{ending}"]}, size=16, cache=tmp_path / "c")
    assert np.array_equal(colour.read([0])[0, 0], colour.read([0])[0, 2])


def test_sixteen_bits_are_scaled_by_their_own_range(tmp_path):
    values = (np.arange(64, dtype=np.uint16) * 60).reshape(8, 8)
    (tmp_path / "f").mkdir()
    Image.fromarray(values).save(tmp_path / "f" / "x.png")
    images = open_images(
        tmp_path / "f", table={"file": ["x.png"]}, size=8, channels="grey", dtype="float16", cache=tmp_path / "c"
    )
    read = images.read([0])[0, 0]
    assert read.max() == 1
    assert read[0, 0] == 0
    assert np.corrcoef(read.ravel(), values.ravel())[0, 1] > 0.999


@pytest.mark.parametrize(("resize", "filled"), [("stretch", 1.0), ("crop", 1.0), ("pad", 0.5)])
def test_resizing_stretches_crops_or_pads(tmp_path, resize, filled):
    """A picture twice as wide as high, its left half dark."""
    pixels = np.full((20, 40), 200, np.uint8)
    pixels[:, :20] = 100
    (tmp_path / "f").mkdir()
    Image.fromarray(pixels).save(tmp_path / "f" / "x.png")
    read = open_images(
        tmp_path / "f", table={"file": ["x"]}, size=10, channels="grey", resize=resize, cache=tmp_path / "c"
    ).read([0])[0, 0]
    assert (read > 0).mean() == filled
    lit = read[read.any(1)]
    assert lit[:, 0] == pytest.approx(100 / 255, abs=0.01)
    assert lit[:, -1] == pytest.approx(200 / 255, abs=0.01)


def test_the_turn_that_a_camera_wrote_is_done(tmp_path):
    (tmp_path / "f").mkdir()
    pixels = np.zeros((4, 8), np.uint8)
    pixels[0] = 255
    tagged = Image.Exif()
    tagged[274] = 6  # to be turned by 90 degrees
    Image.fromarray(pixels).save(tmp_path / "f" / "x.png", exif=tagged)
    read = open_images(
        tmp_path / "f", table={"file": ["x.png"]}, size=(8, 4), channels="grey", cache=tmp_path / "c"
    ).read([0])
    assert read[0, 0, :, -1].tolist() == [1.0] * 8
    assert read[0, 0, :, 0].max() == 0


def broken(folder):
    (folder / "p0.png").write_bytes((folder / "p0.png").read_bytes()[:60])
    Image.new("RGB", (12, 10), "white").save(folder / "p1.png")
    frames = [Image.new("L", (12, 10), shade) for shade in (0, 200)]
    (folder / "p2.png").unlink()
    frames[0].save(folder / "p2.tif", save_all=True, append_images=frames[1:])
    with (folder.parent / "labels.csv").open("a") as file:
        file.write("gone,1,a\n")
    return folder


def test_every_fault_has_its_name_and_the_rest_goes_on_if_asked(folder):
    broken(folder)
    with pytest.raises(
        ScanError, match="every image must be readable and have one row of the table; got 4 faults"
    ) as got:
        opened(folder)
    assert got.match(r"p0.png: cannot be read \(")
    assert got.match(r"p1.png: is empty: every pixel is 1")
    assert got.match(r"p2.tif: must have one frame; got 2")
    assert got.match(r"gone: there is no such file")
    with pytest.warns(DeconfoundWarning, match="4 left out, 1 images remain"):
        assert len(opened(folder, skip_bad=True)) == 1


def test_an_image_that_claims_too_much_is_refused_unread(folder):
    with pytest.raises(
        ScanError, match=r"p0.png: claims 12 × 10 pixels, which is above the limit; raise it with max_gb"
    ):
        opened(folder, max_gb=1e-6)


@pytest.mark.parametrize(
    ("text", "error", "options"),
    [
        ("size must be a positive whole number, or two for height and width; got 0", OptionError, {"size": 0}),
        ("channels must be 'rgb' or 'grey'; got 'bgr'", OptionError, {"channels": "bgr"}),
        ("resize must be 'stretch', 'crop' or 'pad'; got 'fill'", OptionError, {"resize": "fill"}),
        ("a column of names of files in", TableError, {"table": {"age": [1, 2], "name": ["x", "y"]}}),
        ("Did you mean 'picture'", TableError, {"path_column": "pictures"}),
    ],
)
def test_options_and_columns_that_cannot_be_are_named(folder, text, error, options):
    with pytest.raises(error) as got:
        opened(folder, **options)
    assert text in str(got.value)


def write_dicom(path, values, **tags):
    """A DICOM file of one or several frames of 16-bit pixels."""
    meta = pydicom.dataset.FileMetaDataset()
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid()
    frame = pydicom.dataset.FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    frame.Rows, frame.Columns = values.shape[-2:]
    frame.SamplesPerPixel, frame.PhotometricInterpretation = 1, "MONOCHROME2"
    frame.BitsAllocated = frame.BitsStored = 16
    frame.HighBit, frame.PixelRepresentation = 15, 1
    frame.PixelData = values.astype(np.int16).tobytes()
    for name, value in tags.items():
        setattr(frame, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.save_as(path, enforce_file_format=True)


def test_dicom_frames_are_scaled_and_turned_dark_where_there_is_little_signal(tmp_path):
    values = np.arange(100).reshape(10, 10)
    write_dicom(tmp_path / "f" / "x.dcm", values, RescaleSlope=2, RescaleIntercept=-50)
    write_dicom(tmp_path / "f" / "y.dcm", values, PhotometricInterpretation="MONOCHROME1")
    options = {"size": 10, "channels": "grey", "progress": False}
    x, y = open_images(tmp_path / "f", table={"file": ["x.dcm", "y"]}, cache=tmp_path / "c", **options).read([0, 1])[
        :, 0
    ]
    assert (x[0, 0], x[-1, -1]) == (0, 1)
    assert (y[0, 0], y[-1, -1]) == (1, 0)
    write_dicom(tmp_path / "f" / "z.dcm", np.stack([values, values]), NumberOfFrames=2)
    with pytest.raises(ScanError, match=r"z.dcm: must have one frame; got pixels of shape \(2, 10, 10\)"):
        open_images(tmp_path / "f", table={"file": ["z"]}, cache=tmp_path / "c", **options)


def test_a_folder_of_png_jpeg_tiff_and_dicom_runs_from_init_to_predictions(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    rows = []
    for number in range(32):
        dx, age = number // 4 % 2, random.uniform(50, 70)
        pixels = random.integers(0, 100, (20, 16)) + (100 * dx if number % 2 else 0)
        name, kind = f"lesion-{number:02d}", ("png", "jpg", "tif", "dcm")[number % 4]
        if kind == "dcm":
            write_dicom(tmp_path / "photos" / f"{name}.dcm", pixels)
        else:
            (tmp_path / "photos").mkdir(exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "photos" / f"{name}.{kind}")
        rows.append({"image_id": name, "lesion": "mel" if dx else "nevus", "age": age})
    pd.DataFrame([*rows, {"image_id": "absent", "lesion": "mel", "age": 60}]).to_csv(
        tmp_path / "labels.csv", index=False
    )
    monkeypatch.setenv("DECONFOUND_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def said(*words):
        done = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    asked = ["labels.csv", "--images", "photos", "--label", "lesion", "--confounds", "age"]
    with pytest.raises(ScanError, match="absent: there is no such file"):
        said("init", *asked)
    assert "32 rows, samples of shape (3, 224, 224)" in said("init", *asked, "--skip-bad")
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config["network"]["name"] == "cnn2d"
    assert config["data"]["options"]["size"] == [224, 224]
    small = ["data.options={size: 12, skip_bad: true}", "training.epochs=1", "splits.folds=2"]
    assert "auc" in said("fit", "config.yaml", *small, "training.augment=[flip, crop]", "--no-audit")
    said("predict", "runs/run", "labels.csv", "--images", "photos")
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 33


def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pydicom", None)
    (tmp_path / "x.dcm").write_bytes(b"dicom")
    with pytest.raises(DeconfoundError, match=r"pydicom must be installed .* 'deconfound\[dicom\]'"):
        open_images(tmp_path, table={"file": ["x.dcm"]}, cache=tmp_path / "c", progress=False)


def test_one_opener_tells_images_scans_arrays_and_tables_apart(folder):
    table = folder.parent / "labels.csv"
    options = {"size": 8, "cache": folder.parent / "cache", "progress": False}
    assert open_source(folder, table=table, options=options).shape == (3, 8, 8)
    np.save(folder.parent / "x.npy", np.zeros((4, 5)))
    assert open_source(folder.parent / "x.npy", table=table).shape == (5,)
    assert open_source(table, roles=["dx", "picture"]).names == ("age",)
    with pytest.raises(ScanError, match=r"must hold participants\.tsv"):
        open_source(folder.parent / "cache")
    with pytest.raises(OptionError, match=r"data.options must be arguments of the reader of pictures; got .*'hue'"):
        open_source(folder, table=table, options={"hue": 1})
    with pytest.raises(OptionError, match=r"data.options must be arguments of the reader .* multiple values .*'table'"):
        open_source(folder, table=table, options={"table": "other.csv"})


def test_names_of_people_keep_their_zeros_beside_images_arrays_and_in_tables(folder):
    table = folder.parent / "people.csv"
    frame = pd.read_csv(folder.parent / "labels.csv").assign(subject=["0005", "0005", "0010", "0123"], visit="01")
    frame.to_csv(table, index=False)
    np.save(folder.parent / "x.npy", np.zeros((4, 5)))
    options = {"size": 8, "cache": folder.parent / "cache", "progress": False}
    opened = [
        open_source(folder, table=table, options=options, text=["subject"]),
        open_source(folder, table=table, options=options, id="subject"),
        open_source(folder.parent / "x.npy", table=table, text=["subject"]),
        open_source(table, roles=["dx", "picture", "subject"], text=["subject"]),
    ]
    for source in opened:
        assert source.table["subject"].tolist() == ["0005", "0005", "0010", "0123"]
        assert source.table["visit"].tolist() == [1, 1, 1, 1]
