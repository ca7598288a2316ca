"""Makes a notebook of each tutorial and runs it: `python -m tests.notebooks FOLDER [NAME …]`.

The Markdown page is the source: text becomes Markdown cells, `python` and `sh` blocks become code cells.
"""

import os
import re
import sys
import tempfile
import time
from pathlib import Path

from tests.pages import DOCS, FENCE

TUTORIALS = DOCS / "tutorials"


def notebook(path: Path):
    """The cells of a page, without outputs."""
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

    text, cells, end = path.read_text(encoding="utf-8"), [], 0
    for found in FENCE.finditer(text):
        kind, code = found[2].strip(), found[3].rstrip()
        if kind not in ("python", "sh"):
            continue
        cells.append(new_markdown_cell(text[end : found.start()].strip()))
        commands = re.sub(r"^(?=deconfound )", "!", code, flags=re.MULTILINE)
        cells.append(new_code_cell(code if kind == "python" else commands))
        end = found.end()
    cells.append(new_markdown_cell(text[end:].strip()))
    made = new_notebook(cells=[cell for cell in cells if cell.source])
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return made


def main(folder: Path, names: list[str]) -> None:
    """Run the tutorials, each in an empty folder, and write the notebooks with what they printed."""
    import nbformat
    from nbclient import NotebookClient

    folder.mkdir(parents=True, exist_ok=True)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for path in sorted(TUTORIALS.glob("*.md")):
        if path.stem == "index" or (names and path.stem not in names):
            continue
        made, started = notebook(path), time.perf_counter()
        with tempfile.TemporaryDirectory() as empty:
            NotebookClient(made, timeout=600, resources={"metadata": {"path": empty}}).execute()
        nbformat.write(made, folder / f"{path.stem}.ipynb")
        print(f"{path.stem}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
