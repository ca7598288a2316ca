"""What commands share: parsing of options, and errors as sentences that name options."""

from __future__ import annotations

import csv
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer

from deconfound.errors import DeconfoundError, OptionError

# Codes with which a command ends; 1 is left to findings.
BAD_USE, CRASHED, INTERRUPTED = 2, 70, 130

# Advice in Python, and the same on the command line.
_REWRITES = (
    (r"\bmodels=\{'([^']*)': '([^']*)'[^}]*\}", r"--model \1=\2"),
    (r"\boutputs=\{'([^']*)': …\}", r"--model \1=\1"),
    (r"\btypes=\{'([^']*)': '([^']*)'\}", r"--type \1=\2"),
    (r"\b(id|table|positive)='([^']*)'", r"--\1 \2"),
    (r"\b(classes|outputs)=\[([^\]]*)\]", r"--\1 \2"),
    (r"\b(id|table|models|outputs|classes|positive|planted)=(?=[\s.,;])", r"--\1"),
    (r"`(permutations|bootstraps|seed)`", r"--\1"),
    (r"\bplanted must be a number of sd, 0 or more, or None", "--planted must be 0 or more"),
    (r"\b(stands|and) in (confound|label)s\b", r"\1 in --\2"),
    (r"\b(stands|and) in (person|fold|weight)\b", r"\1 in --\2"),
    (r"\b(confound|label)s must", r"--\1 must"),
    (r"--models\b", "--model"),
    # Python alone can do these.
    (r": table\.dropna\([^)]*\)", ""),
    (r", as pandas\.to_numeric\(values, errors='coerce'\) does,", ","),
    (r"; pandas\.read_csv\(.*?\) makes them", ""),
    (r",\s*or (?:read it yourself and )?pass the DataFrame.*?(?=\.$)", ""),
    (r", or name another one, such as separator=';'", ""),
    (r"Write the one that separates the cells, such as separator=','", "Save it as a .tsv file"),
    (r", or keep the text: text=\[.*?\]", ""),
    (r"pass the DataFrame table\.T", "transpose the table"),
)


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Print errors of the library as sentences, and end the command with its code for them."""
    try:
        yield
    except DeconfoundError as error:
        echo(f"Error: {name_options(str(error))}", is_error=True)
        raise typer.Exit(BAD_USE) from None
    except KeyboardInterrupt:
        echo("Stopped.", is_error=True)
        raise typer.Exit(INTERRUPTED) from None
    except (OSError, MemoryError) as error:
        echo(f"Error: {error or 'There is not enough memory.'}", is_error=True)
        raise typer.Exit(BAD_USE) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception:
        # Python would end with 1, which `--check` has for a leak.
        traceback.print_exc()
        raise typer.Exit(CRASHED) from None


def echo(text: str, is_error: bool = False) -> None:
    """Print a text; the end of its reader, such as `head -1`, does not end the command."""
    stream = sys.stderr if is_error else sys.stdout
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def name_options(message: str) -> str:
    """Return a message with options of commands instead of arguments in Python.

    Example:
        >>> name_options("Write types={'site': 'numeric'} or classes=['CN', 'AD'].")
        'Write --type site=numeric or --classes CN,AD.'
    """
    for pattern, replacement in _REWRITES:
        message = re.sub(pattern, replacement, message, flags=re.MULTILINE)
    return re.sub(
        r"--(?:classes|outputs) '[^']*'(?:, '[^']*')*",
        lambda match: match[0].replace("', '", ",").replace("'", ""),
        message,
    )


def split_list(text: str | None) -> list[str]:
    """Return the parts of a text between commas; a part with a comma stands in double quotes.

    Example:
        >>> split_list('CN, "AD, late"')
        ['CN', 'AD, late']
    """
    if not text:
        return []
    parts = next(csv.reader([text], skipinitialspace=True), [])
    return [part.strip() for part in parts if part.strip()]


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
