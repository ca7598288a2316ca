"""Data that are shipped with the package, for tutorials and first tries."""

from pathlib import Path

from deconfound.errors import OptionError

ASSETS = Path(__file__).parent / "assets"


def example(name: str) -> Path:
    """The file of a table that comes with the package.

    "heart" is UCI heart disease: 920 people of four hospitals (`dataset`), whether coronary disease was found
    (`HeartDisease`, 0 to 4), age, sex and eleven findings, with many empty cells. By A. Janosi, W. Steinbrunn,
    M. Pfisterer and R. Detrano (1989), under the licence CC BY 4.0.

    Args:
        name: Which table.

    Example:
        >>> import deconfound as dc
        >>> dc.example("heart").read_text().splitlines()[0][:23]
        'id,Age,sex,dataset,cp,t'
    """
    path = ASSETS / f"{name}.csv"
    known = sorted(each.stem for each in ASSETS.glob("*.csv"))
    if name not in known:
        raise OptionError(f"example must be one of {', '.join(known)}; got {name!r}.")
    return path
