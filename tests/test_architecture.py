"""The page on the architecture says what the code is."""

import re

from tests.rooms import LAB, ROOMS, ROOT, SOURCE
from tests.rooms_figure import FIGURE, SHOWN, draw


def test_the_figure_of_the_rooms_is_that_of_the_code():
    assert FIGURE.read_text(encoding="utf-8") == draw(), "the imports have changed: run `make figures`"


def test_the_page_describes_every_room_and_no_other():
    page = (ROOT / "docs" / "architecture.md").read_text()
    described = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert set(described) == set(SHOWN)
    assert set(ROOMS) == {path.stem for path in SOURCE.iterdir() if path.stem not in ("__init__", "py", "__pycache__")}


def test_the_files_that_the_walks_name_exist():
    page = (ROOT / "docs" / "architecture.md").read_text()
    walks = page[page.index("## One batch") :]
    room = ""
    for name in re.findall(r"`([\w/]+\.py)`", walks):
        room = name.rpartition("/")[0] or room
        path = SOURCE / name if "/" in name else SOURCE / room / name
        assert path.exists(), name


def test_training_happens_in_two_drivers_and_nowhere_else():
    """Whoever calls backward trains; the alternating step of a user's own loop and the drivers are all there is."""
    callers = {
        str(path.relative_to(ROOT / "src"))
        for path in [*SOURCE.rglob("*.py"), *LAB.rglob("*.py")]
        if re.search(r"^(?!\s*(#|>>>|\.\.\.)).*\.backward\(\)", path.read_text(), flags=re.MULTILINE)
    }
    assert callers <= {
        "deconfound/layers/alternating.py",  # `alternating_step`, for a user's own loop
        "deconfound/methods/last_layer.py",  # fits one linear layer to features that stand still
        "deconfound/training/in_memory.py",  # the in-memory driver; Lightning calls backward by itself
        "deconfound_lab/benchmarks/layers.py",  # times passes through a layer
        "deconfound_lab/benchmarks/steps.py",  # times single steps
    }, callers
