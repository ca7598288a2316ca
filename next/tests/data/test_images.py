"""Pictures: what a viewer shows is what a network reads."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deconfound.data import open_samples, read_image
from deconfound.errors import OptionError, TableError
from tests.data.files import write_picture

GREY = np.arange(0, 240, 10, dtype=np.uint8).reshape(4, 6)


def save(folder: Path, picture: Image.Image, name: str = "a.png", **options: object) -> Path:
    picture.save(folder / name, **options)
    return folder / name


def test_8_bit_values_stay_as_they_are(tmp_path: Path) -> None:
    colour = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    for name in ("a.png", "a.tif", "a.bmp"):
        assert (read_image(save(tmp_path, Image.fromarray(GREY), name)) == GREY[None]).all()
        pixels = read_image(save(tmp_path, Image.fromarray(colour), name))
        assert (pixels == colour.transpose(2, 0, 1)).all()
    bits = read_image(save(tmp_path, Image.fromarray(GREY > 100)))
    assert (bits == 255 * (GREY > 100)).all()


def test_palettes_are_colours(tmp_path: Path) -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([200, 100, 50, 1, 2, 3])
    palette.putdata([0, 1])
    expected = [[[200, 1]], [[100, 2]], [[50, 3]]]
    assert read_image(save(tmp_path, palette)).tolist() == expected
    assert read_image(save(tmp_path, palette, "a.gif")).tolist() == expected


def test_transparent_parts_are_white(tmp_path: Path) -> None:
    """Kills the mutant that drops alpha, and shows the colour that lies under it."""
    colour = Image.new("RGBA", (3, 1), (200, 100, 50, 255))
    colour.putpixel((1, 0), (9, 9, 9, 0))
    colour.putpixel((2, 0), (0, 0, 0, 128))
    pixels = read_image(save(tmp_path, colour))
    assert pixels[:, 0, :2].tolist() == [[200, 255], [100, 255], [50, 255]]
    assert abs(pixels[:, 0, 2].astype(int) - 127).max() <= 1
    grey = Image.new("LA", (1, 1), (9, 0))
    assert read_image(save(tmp_path, grey)).tolist() == [[[255]]]
    palette = Image.new("P", (1, 1), 0)
    palette.putpalette([9, 9, 9])
    path = save(tmp_path, palette, transparency=0)
    assert read_image(path).ravel().tolist() == [255, 255, 255]


def scale_by_definition(values: np.ndarray) -> np.ndarray:
    """Return 0 for 0 and 255 for the 99.5th percentile of the values that are not 0."""
    high = np.percentile(values[values != 0], 99.5)
    return np.rint(255 * np.clip(values / high, 0, 1))


@pytest.mark.parametrize("highest", [1000, 4095, 65535])
def test_16_bits_keep_their_contrast(tmp_path: Path, highest: int) -> None:
    """Kills the mutants that cut at 255, or divide by 257: 12 bits would be nearly black."""
    values = np.linspace(0, highest, 2000).reshape(40, 50)
    deep = values.astype(np.uint16)
    for name in ("a.png", "a.tif"):
        pixels = read_image(save(tmp_path, Image.fromarray(deep), name))
        np.testing.assert_allclose(pixels[0], scale_by_definition(deep), atol=1)
        assert pixels.max() == 255
    floats = read_image(save(tmp_path, Image.fromarray(values.astype(np.float32)), "a.tif"))
    np.testing.assert_allclose(floats[0], scale_by_definition(values), atol=1)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_as_the_camera_noted(tmp_path: Path, orientation: int) -> None:
    """The oracle turns the array as the standard defines the eight numbers."""
    turn = {
        1: lambda a: a,
        2: np.fliplr,
        3: lambda a: np.rot90(a, 2),
        4: np.flipud,
        5: np.transpose,
        6: lambda a: np.rot90(a, -1),
        7: lambda a: np.rot90(a, 2).T,
        8: np.rot90,
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path, Image.fromarray(GREY), exif=exif)
    assert (read_image(path)[0] == turn(GREY)).all()
    # The size is known from the header alone.
    assert open_samples(tmp_path).shape == (1, *turn(GREY).shape)
    deep = save(tmp_path, Image.fromarray(GREY.astype(np.uint16)), exif=exif)
    assert read_image(deep)[0].shape == turn(GREY).shape


def test_smaller_pictures_are_averages(tmp_path: Path) -> None:
    """Kills the mutant without antialiasing: every second line would be all that is seen."""
    stripes = np.zeros((64, 64), np.uint8)
    stripes[::2] = 200
    path = save(tmp_path, Image.fromarray(stripes))
    pixels = read_image(path, size=(8, 4))
    assert pixels.shape == (1, 8, 4)
    assert abs(pixels.astype(int) - 100).max() < 10
    deep = save(tmp_path, Image.fromarray(stripes.astype(np.uint16) * 100), "deep.png")
    assert np.ptp(read_image(deep, size=8).astype(int)) < 100
    assert read_image(path, size=(3, 8, 4)).shape == (3, 8, 4)


def write_claim(path: Path, width: int, height: int) -> None:
    """Write a .png file that claims any size in 70 bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + data)


def test_damaged_pictures_are_named(tmp_path: Path) -> None:
    good = write_picture(tmp_path / "good.jpg", size=(60, 60))
    (tmp_path / "cut.jpg").write_bytes(good.read_bytes()[:-300])
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "link.png").symlink_to(tmp_path / "nothing.png")
    write_claim(tmp_path / "bomb.png", 10_000, 8_500)
    write_claim(tmp_path / "larger_bomb.png", 60_000, 60_000)
    frames = [Image.new("L", (60, 60), value) for value in (0, 200)]
    frames[0].save(tmp_path / "frames.gif", save_all=True, append_images=frames[1:])
    bad = sorted(path.name for path in tmp_path.iterdir() if path.is_file() or path.is_symlink())
    bad.remove("good.jpg")
    for name in bad:
        with pytest.raises(TableError, match=name):
            read_image(tmp_path / name)
    with pytest.raises(TableError, match="10,000 × 8,500 pixels"):
        read_image(tmp_path / "bomb.png")
    with pytest.raises(TableError) as caught:
        open_samples(tmp_path)
    assert all(name in str(caught.value) for name in bad)
    assert "7 files cannot be read" in str(caught.value)
    assert "skip_bad=True" in str(caught.value)
    samples = open_samples(tmp_path, skip_bad=True)
    assert samples.ids.tolist() == ["good.jpg"]
    assert all(name in samples.notes[0] for name in bad)


def test_many_damaged_pictures_are_counted(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.png").touch()
    with pytest.raises(TableError) as caught:
        open_samples(tmp_path, skip_bad=True)
    assert "30 files cannot be read" in str(caught.value)
    assert "20 more" in str(caught.value)
    assert len(str(caught.value).splitlines()) < 15


def test_native_size_where_all_are_equal(tmp_path: Path) -> None:
    for number in range(3):
        write_picture(tmp_path / f"{number}.png", number, size=(8, 6))
    samples = open_samples(tmp_path)
    assert samples.x.shape == (3, 3, 6, 8)
    assert (samples.x.dtype, samples.kind, samples.notes) == (np.uint8, "image", ())
    assert samples.x[:, 0, 0, 0].tolist() == [0, 1, 2]
    write_picture(tmp_path / "tall.png", size=(6, 8))
    with pytest.raises(OptionError) as caught:
        open_samples(tmp_path)
    for text in ("2 sizes", "6 × 8 (3)", "8 × 6 (1)", "size=(6, 8)"):
        assert text in str(caught.value)
    resized = open_samples(tmp_path, size=4)
    assert resized.shape == (3, 4, 4)
    assert resized.notes == ("4 pictures of other sizes were resized to 4 × 4.",)


def test_grey_and_coloured_pictures_together(tmp_path: Path) -> None:
    save(tmp_path, Image.fromarray(GREY), "grey.png")
    assert open_samples(tmp_path).shape == (1, 4, 6)
    assert open_samples(tmp_path, size=(3, 4, 6)).shape == (3, 4, 6)
    write_picture(tmp_path / "red.png", 255, size=(6, 4))
    x = open_samples(tmp_path).x
    assert x.shape == (2, 3, 4, 6)
    assert (x[0] == GREY).all()
    assert open_samples(tmp_path, size=(1, 4, 6)).shape == (1, 4, 6)


@pytest.mark.parametrize("size", [0, -3, True, "64", (4,), (1, 2, 3, 4), (2, 8, 8), 6.5, (4, None)])
def test_sizes_that_cannot_be(tmp_path: Path, size: object) -> None:
    write_picture(tmp_path / "a.png")
    with pytest.raises(OptionError, match="size="):
        open_samples(tmp_path, size=size)
