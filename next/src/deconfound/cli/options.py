"""What commands share: their streams, tables and options, and errors that name these options."""

from __future__ import annotations

import csv
import os
import re
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from deconfound.errors import DeconfoundError, OptionError

# Codes with which a command ends.
CLEAN, FINDING, BAD_USE, UNKNOWN, CRASH = 0, 1, 2, 3, 70

Labels = Annotated[
    list[str] | None, typer.Option("--label", help="Column that the model predicts. Repeat it.")
]
Confounds = Annotated[
    list[str], typer.Option("--confound", help="Column that should not matter. Repeat it.")
]
Id = Annotated[str | None, typer.Option(help="Column that joins the table and other files.")]
Person = Annotated[str | None, typer.Option(help="Column of people with several rows.")]
Positive = Annotated[str | None, typer.Option(help="Level of a high score: AD")]
Types = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="COLUMN=KIND", help="KIND is numeric or categorical."),
]
Source = Annotated[
    Path | None, typer.Option("--images", help="Folder of images or scans, or an array file.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace what exists.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON alone.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print no progress and no table.")]

# Advice in Python that has another form on the command line, or none.
_REWRITES = (
    (r"\boutputs=\{'([^']*)': …\}", r"--model \1=\1"),
    (r": table\.dropna\([^)]*\)", ""),
    (r", as pandas\.to_numeric\(values, errors='coerce'\) does,", ","),
    (r"; pandas\.read_csv\(.*?\) makes them", ""),
    (r",\s*or (?:read it yourself and )?pass the DataFrame.*?(?=\.$)", ""),
    (r", or name another one, such as separator=';'", ""),
    (r"Write the one that separates the cells, such as separator=','", "Save it as a .tsv file"),
    (r", or keep the text: text=\[.*?\]", ""),
    (r"pass the DataFrame table\.T", "transpose the table"),
)
# Values as Python writes them: texts, lists and mappings of texts, numbers.
_VALUE = r"'[^']*'|\[[^\]]*\]|\{[^}]*\}|[\w.-]*\w"


class Command(TyperCommand):
    """A command that prints errors and warnings as sentences which name its options."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""

        def show_warning(message: Warning | str, *_: Any) -> None:
            echo(f"Note: {translate(str(message), ctx)}", is_error=True)

        with warnings.catch_warnings():
            warnings.showwarning = show_warning  # type: ignore[assignment]
            try:
                return super().invoke(ctx)
            except (DeconfoundError, OSError, MemoryError) as error:
                text = str(error) or "There is not enough memory."
                echo(f"Error: {translate(text, ctx)}", is_error=True)
                raise typer.Exit(BAD_USE) from None
            except (typer.Exit, typer.Abort):
                raise
            except Exception:
                # Python would end with 1, the code of a finding.
                traceback.print_exc()
                raise typer.Exit(CRASH) from None


def echo(text: str, is_error: bool = False) -> None:
    """Print a text; the end of its reader, such as `head -1`, does not end the command."""
    stream = sys.stderr if is_error else sys.stdout
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def translate(message: str, context: typer.Context) -> str:
    """Return a message with the options of a command instead of arguments in Python."""
    options = [one for one in context.command.params if one.opts[0].startswith("--")]
    return name_options(message, {str(one.name): one.opts[0] for one in options})


def name_options(message: str, names: Mapping[str, str]) -> str:
    """Return a message with options instead of arguments in Python, or of keys of a config.

    Args:
        message: The message.
        names: For each argument its option.

    Example:
        >>> advice = "Write types={'site': 'numeric'} or classes=['CN', 'AD']."
        >>> name_options(advice, {"types": "--type", "classes": "--classes"})
        'Write --type site=numeric or --classes CN,AD.'
        >>> name_options("Write data.types: {site: numeric}.", {"types": "--type"})
        'Write --type site=numeric.'
    """
    for pattern, replacement in _REWRITES:
        message = re.sub(pattern, replacement, message, flags=re.MULTILINE)
    name = rf"(?P<name>{'|'.join(names) or '(?!)'})"
    forms = (
        rf"(?<![\w.-]){name}=(?P<value>{_VALUE})?",
        rf"\b(?:data|design|splits)\.{name}: (?P<value>{_VALUE})",
        rf"(?<![\w.-]){name}\[(?P<value>'[^']*')\]",
        rf"`{name}`(?P<value>)",
        rf"(?<![\w.-]){name}(?P<value>)(?= must\b)",
        rf"(?<=\bin ){name}(?P<value>)(?= and in|\. Give)",
    )

    def write(match: re.Match[str]) -> str:
        value = (match["value"] or "").replace("'", "")
        if value.startswith("{"):
            value = value.strip("{}").split(",")[0].replace(": ", "=")
        value = "" if value == "True" else value.strip("[]").replace(", ", ",")
        return f"{names[match['name']]} {value}".strip()

    for form in forms:
        message = re.sub(form, write, message)
    return message


def format_table(rows: Sequence[Mapping[Any, Any]]) -> str:
    """Return a table of texts and numbers as lines of text, in which no cell is cut.

    Columns that do not fit the terminal go below, beside the first column again. In a pipe there
    is one line per row.
    """
    from deconfound.auditing import format_number

    columns = []
    for name in rows[0]:
        values = [row[name] for row in rows]
        texts = [format_number(one) if isinstance(one, float) else str(one) for one in values]
        cells = [" ".join(text.split()) for text in (str(name), *texts)]
        columns.append([cell.ljust(max(map(len, cells))) for cell in cells])
    limit = get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    first, *others = columns
    blocks = [[first]]
    for column in others:
        heads = [one[0] for one in (*blocks[-1], column)]
        if len("  ".join(heads)) > limit and len(blocks[-1]) > 1:
            blocks.append([first])
        blocks[-1].append(column)
    lines = []
    for block in blocks:
        lines += ["", *("  ".join(cells).rstrip() for cells in zip(*block, strict=True))]
    return "\n".join(lines[1:])


def split_list(text: str | None) -> list[str]:
    """Return the parts of a text between commas; a part with a comma stands in double quotes.

    Example:
        >>> split_list('CN, "AD, late"')
        ['CN', 'AD, late']
    """
    rows = csv.reader([text or ""], skipinitialspace=True)
    return [part.strip() for row in rows for part in row if part.strip()]


def parse_pairs(items: Sequence[str] | None, option: str) -> dict[str, str]:
    """Return the pairs of an option that is given as NAME=VALUE, once or several times.

    Example:
        >>> parse_pairs(["site=categorical", "stage=numeric"], "--type")
        {'site': 'categorical', 'stage': 'numeric'}
    """
    pairs: dict[str, str] = {}
    for item in items or ():
        name, mark, value = item.rpartition("=")
        if not (name and mark and value):
            raise OptionError(f"{option} must be NAME=VALUE; got {item!r}.")
        if name in pairs:
            raise OptionError(f"{option} gives {name!r} twice. Write each name once.")
        pairs[name] = value
    return pairs
