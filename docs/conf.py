"""How `make docs` builds the site: MyST reads the pages, autodoc the docstrings."""

import re
from pathlib import Path

from sphinx.errors import ExtensionError

import deconfound

project = "deconfound"
author = copyright = "The deconfound developers"
version = release = deconfound.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
html_theme = "furo"
html_title = f"deconfound {release}"
html_static_path = ["assets"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False

# The anchors that repository hosts give to headings, so that one link serves both.
myst_heading_anchors = 4
# Tables of experiments begin at the second level.
suppress_warnings = ["myst.header"]

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_use_rtype = False

OUTSIDE = re.compile(
    r"(?:<(?:script|img|iframe)[^>]+src=|<link[^>]+href=|url\(|@import\s*)[\"']?https?:"
)
NOTEBOOK = """
```{{raw}} html
<p><a href="../notebooks/{name}.ipynb" download>This page as a notebook</a>,
with what its code printed.</p>
```
"""


def add_to_page(app, docname, source):
    """Give tables of experiments a title, and tutorials a link to the notebook."""
    if re.fullmatch(r"results/[\w-]+/tables", docname):
        title = docname.split("/")[1]
        source[0] = f"---\norphan: true\n---\n\n# All tables: {title}\n\n{source[0]}"
    folder, _, name = docname.partition("/")
    if folder == "tutorials" and name != "index":
        source[0] += NOTEBOOK.format(name=name)


def markdown_in_docstrings(app, what, name, obj, options, lines):
    """Docstrings mark code by single backticks, as Markdown does."""
    text = "\n".join(lines)
    text = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", text)
    text = re.sub(r"``(?=s\b)", r"``\\ ", text)  # `Spline`s
    lines[:] = re.sub(r"\|(?=[\w-]+\|)", r"\|", text).split("\n")


def left_out(app, what, name, obj, skip, options):
    """Names of the package itself stand on its page alone.

    scikit-learn writes the docstrings of `set_…_request`, in the terms of its site.
    """
    face = app.env.docname == "api/deconfound"
    elsewhere = what == "module" and name in deconfound.__all__ and not face
    return skip or elsewhere or bool(re.fullmatch(r"set_\w+_request", name))


def refuse_what_lies_elsewhere(app, error):
    """No page may need another machine: it must open on a train and tell nobody."""
    for page in [*Path(app.outdir).rglob("*.html"), *Path(app.outdir).rglob("*.css")]:
        if found := OUTSIDE.search(page.read_text(encoding="utf-8")):
            raise ExtensionError(f"{page}: {found[0]}")


def setup(app):
    app.connect("source-read", add_to_page)
    app.connect("autodoc-process-docstring", markdown_in_docstrings, priority=100)
    app.connect("autodoc-skip-member", left_out)
    app.connect("build-finished", refuse_what_lies_elsewhere)
