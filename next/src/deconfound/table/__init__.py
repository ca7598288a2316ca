"""Tables of people: one reader, one rule for the kind of a column, and seven checks.

A table is a file, a DataFrame or a mapping from column names to values. `read_table` turns each of
them into a DataFrame whose dtype is the kind of the column: `float64` for numbers, `category` for
levels.
"""

from deconfound.table.checks import check_table
from deconfound.table.kinds import Kind, is_missing, level_text, to_levels, to_numbers
from deconfound.table.notes import Note, format_names, format_rows
from deconfound.table.read import Table, read_columns, read_table

__all__ = [
    "Kind",
    "Note",
    "Table",
    "check_table",
    "format_names",
    "format_rows",
    "is_missing",
    "level_text",
    "read_columns",
    "read_table",
    "to_levels",
    "to_numbers",
]
