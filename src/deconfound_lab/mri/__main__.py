"""Fill the docs page from committed results: `python -m deconfound_lab.mri docs/mri.md docs/results/mri`."""

from __future__ import annotations

import sys
from pathlib import Path

from deconfound_lab.mri.page import fill_page

if __name__ == "__main__":
    fill_page(*map(Path, sys.argv[1:3]))
