"""Fill the pages of the docs from the committed results: `python -m deconfound_lab`, in the repository's folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deconfound.data import read_json, write_text
from deconfound_lab.harness.experiment import RESULTS, remake
from deconfound_lab.harness.page import Page, Section, fill

if TYPE_CHECKING:
    from deconfound_lab.harness import Experiment

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "results"
# Pages elsewhere that show a table of an experiment.
ELSEWHERE = {"README.md": "synthetic", "docs/guides/which-method.md": "synthetic"}


def experiments() -> dict[str, type[Experiment]]:
    """The experiments that have a page of the docs, by its name."""
    from deconfound_lab.mri.experiment import MriExperiment
    from deconfound_lab.mri.robustness import RobustnessExperiment
    from deconfound_lab.oasis.experiment import OasisExperiment
    from deconfound_lab.synthetic.experiment import SyntheticExperiment

    return {
        "synthetic": SyntheticExperiment,
        "mri": MriExperiment,
        "mri-robustness": RobustnessExperiment,
        "oasis": OasisExperiment,
    }


def filled_page(name: str, page: Path | None = None) -> str:
    """A page with the tables of an experiment's committed results; the experiment's own, if none is named."""
    folder = PAGES / name
    shown = experiments()[name].page(read_json(folder / RESULTS), folder)
    return fill((page or PAGES / f"{name}.md").read_text(encoding="utf-8"), shown, name)


def searched_page() -> str:
    """The page on how the MRI experiment is made, with the table of its search."""
    from deconfound_lab.mri.results import Results
    from deconfound_lab.mri.tables import search_table

    content = Results.from_dict(read_json(PAGES / "mri" / "search.json"))
    shown = Page("", "", "", [Section("Search", "", search_table(content))], [])
    return fill((PAGES / "mri-setup.md").read_text(encoding="utf-8"), shown, "mri")


def main() -> None:
    """Make tables, figures and pages of all experiments and benchmarks again."""
    from deconfound_lab.benchmarks.page import write_performance
    from deconfound_lab.paper.page import paper_page

    for name, kind in experiments().items():
        folder = PAGES / name
        remake(kind, folder)
        (folder / "report.html").unlink()
        write_text(PAGES / f"{name}.md", filled_page(name))
    write_text(PAGES / "mri-setup.md", searched_page())
    for page, name in ELSEWHERE.items():
        write_text(ROOT / page, filled_page(name, ROOT / page))
    write_performance(PAGES)
    write_text(PAGES / "paper-claims.md", paper_page(PAGES))


if __name__ == "__main__":
    main()
