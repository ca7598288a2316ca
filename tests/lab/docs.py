"""Pages of the docs as tests compare them."""

from deconfound_lab.harness.provenance import OLDER


def without_marks(page):
    """A page without the marks of older code, which come and go with any change of the code."""
    return page.replace(f" ({OLDER})", "")
