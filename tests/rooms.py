"""The rooms of the house as the code has them: which file lies in which room, and which rooms it imports from."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "deconfound"
LAB = ROOT / "src" / "deconfound_lab"

# From the bottom up: a file imports only from its own room and from rooms before it.
ROOMS = [
    "renamed",
    "errors",
    "design",
    "layers",
    "surgery",
    "metrics",
    "data",
    "auditing",
    "methods",
    "networks",
    "training",
    "sklearn",
    "cli",
]


def python_files(folder: Path = SOURCE) -> list[Path]:
    """Every Python file of a package."""
    return sorted(folder.rglob("*.py"))


def room_of(path: Path) -> str:
    """The room a file of the library lies in; `__init__` for the public face itself."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def public_homes() -> dict[str, str]:
    """The room of each name of `deconfound`: what its lazy face says, and the rooms themselves."""
    import deconfound

    homes = {name: file.split(".")[0] for file, names in deconfound._FILES.items() for name in names.split()}
    return homes | {room: room for room in ROOMS}


def imported_rooms(code: str, homes: dict[str, str]) -> set[str]:
    """The rooms of `deconfound` that a source text imports from, however it writes the import."""
    tree = ast.parse(code)
    found: set[str] = set()
    faces: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            if node.module == "deconfound":
                found |= {homes[alias.name] for alias in node.names if alias.name in homes}
            elif (node.module or "").startswith("deconfound."):
                found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "deconfound":
                    faces.add(alias.asname or "deconfound")
                elif alias.name.startswith("deconfound."):
                    found.add(alias.name.split(".")[1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in faces:
            found |= {homes[node.attr]} if node.attr in homes else set()
    return found
