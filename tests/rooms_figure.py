"""Draws `docs/figures/rooms.svg` from the code: each room, what it is, and which rooms it imports from.

`make figures` writes it; a test compares the committed file with what the code gives.
"""

import ast
from html import escape

from tests.rooms import LAB, ROOMS, ROOT, SOURCE, imported_rooms, public_homes, python_files, room_of

FIGURE = ROOT / "docs" / "figures" / "rooms.svg"
ROW, LEFT, TOP, CELL = 34, 640, 108, 30
SHOWN = [room for room in ROOMS if room != "renamed"]


def sentence(room: str) -> str:
    """The first sentence of a room's docstring."""
    path = SOURCE / room / "__init__.py" if (SOURCE / room).is_dir() else SOURCE / f"{room}.py"
    text = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].replace("\n", " ")
    return text.split(". ")[0].rstrip(".")


def imports() -> dict[str, set[str]]:
    """The rooms that each room, and the lab, imports from."""
    homes = public_homes()
    found: dict[str, set[str]] = {room: set() for room in [*SHOWN, "deconfound_lab"]}
    for path in python_files():
        if room_of(path) in found:
            found[room_of(path)] |= imported_rooms(path.read_text(), homes) - {room_of(path)}
    for path in python_files(LAB):
        found["deconfound_lab"] |= imported_rooms(path.read_text(), homes)
    return found


def draw() -> str:
    """The figure: a row for each room from the bottom of the house up, a dot under each room that it imports."""
    found = imports()
    rows = [*SHOWN, "deconfound_lab"]
    width, height = LEFT + CELL * len(SHOWN) + 20, TOP + ROW * len(rows) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" '
        'font-size="13" role="img" aria-label="Which room imports from which">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for column, room in enumerate(SHOWN):
        x = LEFT + CELL * column + CELL // 2
        parts.append(f'<text transform="translate({x + 4},{TOP - 12}) rotate(-50)" fill="#333">{room}</text>')
    for number, room in enumerate(rows):
        y = TOP + ROW * number
        shade = "#f3f5f8" if number % 2 == 0 else "#ffffff"
        parts.append(f'<rect x="0" y="{y}" width="{width}" height="{ROW}" fill="{shade}"/>')
        about = sentence(room) if room in SHOWN else "The experiments, as a user of the library"
        short = about if len(about) <= 66 else about[:65].rsplit(" ", 1)[0] + " …"
        parts.append(f'<text x="12" y="{y + 21}" font-weight="600" fill="#111">{room}</text>')
        parts.append(f'<text x="140" y="{y + 21}" fill="#444">{escape(short)}</text>')
        for column, other in enumerate(SHOWN):
            x, middle = LEFT + CELL * column + CELL // 2, y + ROW // 2
            if other == room:
                parts.append(f'<rect x="{x - 6}" y="{middle - 6}" width="12" height="12" fill="#c9d3df"/>')
            elif other in found[room]:
                parts.append(f'<circle cx="{x}" cy="{middle}" r="6" fill="#2b6cb0"/>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    FIGURE.write_text(draw(), encoding="utf-8")
    print(f"wrote {FIGURE.relative_to(ROOT)}")
