"""Makes a notebook of each tutorial and runs it: `python -m tests.notebooks FOLDER [NAME …]`.

The Markdown page is the source: text becomes Markdown cells, `python` and `sh` blocks become code cells.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from tests.pages import DOCS, FENCE

TUTORIALS = DOCS / "tutorials"


def cells(text: str) -> list[tuple[str, str]]:
    """The cells of a page, each "markdown" or "code" with its source; commands are called by the shell."""
    found, end = [], 0
    for block in FENCE.finditer(text):
        kind, code = block[2].strip(), block[3].rstrip()
        if kind in ("python", "sh"):
            source = code if kind == "python" else f"%%sh\nset -e\n{code}"
            found += [("markdown", text[end : block.start()].strip()), ("code", source)]
            end = block.end()
    found.append(("markdown", text[end:].strip()))
    return [(kind, source) for kind, source in found if source]


def main(folder: Path, names: list[str]) -> None:
    """Run the tutorials, each in an empty folder, and write the notebooks with what they printed."""
    import nbformat
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

    make = {"markdown": new_markdown_cell, "code": new_code_cell}

    folder.mkdir(parents=True, exist_ok=True)
    # A kernel asks its commands for colours and for figures in the page, which they cannot give.
    os.environ |= {"COLUMNS": "100", "TTY_COMPATIBLE": "0", "MPLBACKEND": "agg"}
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for path in sorted(TUTORIALS.glob("*.md")):
        if path.stem == "index" or (names and path.stem not in names):
            continue
        made = new_notebook(cells=[make[kind](source) for kind, source in cells(path.read_text(encoding="utf-8"))])
        made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as empty:
            NotebookClient(made, timeout=600, resources={"metadata": {"path": empty}}).execute()
        nbformat.write(made, folder / f"{path.stem}.ipynb")
        print(f"{path.stem}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
