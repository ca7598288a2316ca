"""Faults of a config as sentences: what is wrong, what was given, and the nearest key."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

Key = tuple[str, ...]

# What pydantic calls a fault, and what the value should have been.
RULES = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a section with keys",
    "literal_error": "{expected}",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "less_than": "below {lt:g}",
}


def describe_faults(error: ValidationError, config: type[BaseModel]) -> dict[Key, str]:
    """Return a sentence for each key that has a fault: `(section,)` or `(section, key)`.

    Args:
        error: What pydantic says.
        config: The model of the whole config.
    """
    by_key: dict[Key, list[Any]] = {}
    for fault in error.errors(include_url=False):
        by_key.setdefault(tuple(map(str, fault["loc"][:2])), []).append(fault)
    return {key: _describe(key, faults, config) for key, faults in by_key.items()}


def _describe(key: Key, faults: Sequence[Any], config: type[BaseModel]) -> str:
    """Return one sentence about a key, from all that pydantic says about it."""
    if faults[0]["type"] == "extra_forbidden":
        return _describe_unknown(key, config)
    own = next((fault for fault in faults if fault["type"] == "value_error"), None)
    if own is not None:
        return f"{'.'.join(key)}: {own['ctx']['error']}"
    rules = [RULES.get(fault["type"], "").format_map(fault.get("ctx", {})) for fault in faults]
    # The fault that lies highest: the list, not one of its parts.
    value = min(faults, key=lambda fault: len(fault["loc"]))["input"]
    choices = [
        choice.strip("' ") for rule in rules for choice in rule.replace(" or ", ",").split(",")
    ]
    near = difflib.get_close_matches(str(value), choices, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    expected = " or ".join(dict.fromkeys(filter(None, rules))) or faults[0]["msg"]
    return f"{'.'.join(key)} must be {expected}; got {value!r}.{hint}"


def _describe_unknown(key: Key, config: type[BaseModel]) -> str:
    """Return what an unknown section or key may have meant."""
    sections: dict[str, Any] = {}
    for name, field in config.model_fields.items():
        is_section = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        sections[name] = field.annotation.model_fields if is_section else {}  # type: ignore[union-attr]
    *section, name = key
    own = sections[section[0]] if section else sections
    # The same key may belong to another section: epochs stands in training.
    full_name = {known: f"{where}.{known}" for where, keys in sections.items() for known in keys}
    full_name |= {known: ".".join([*section, known]) for known in own}
    near = difflib.get_close_matches(name, own, n=1) or difflib.get_close_matches(
        name, full_name, n=1
    )
    hint = f"There are {', '.join(own)}."
    if near:
        hint = f"Did you mean {full_name[near[0]]!r}?"
    return f"There is no key {'.'.join(key)!r}. {hint}"
