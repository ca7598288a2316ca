"""Faults of a config as sentences: what is wrong, what was given, and the nearest key."""

from __future__ import annotations

import difflib
import re
from typing import Any

from pydantic import BaseModel, ValidationError

Key = tuple[str, ...]

# What a value should have been, by the first word or words of the type that pydantic gives a fault.
RULES = {
    "string": "a text",
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "tuple": "a list",
    "dict": "a mapping",
    "model": "a section with keys",
    "literal": "{expected}",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "less_than": "below {lt:g}",
}


def describe_faults(error: ValidationError, config: type[BaseModel]) -> dict[Key, str]:
    """Return a sentence for each key that has a fault: `(section,)` or `(section, key)`.

    Args:
        error: The error of pydantic.
        config: The model of the whole config.
    """
    sentences: dict[Key, str] = {}
    for fault in error.errors(include_url=False):
        key = tuple(map(str, fault["loc"][:2]))
        is_unknown = fault["type"] == "extra_forbidden"
        sentence = _describe_key(key, config) if is_unknown else _describe_value(key, fault)
        sentences.setdefault(key, sentence)
    return sentences


def _describe_key(key: Key, config: type[BaseModel]) -> str:
    """Return the sentence on an unknown section or key, with the nearest one of any section."""
    fields = config.model_fields.items()
    keys_of: dict[str, Any] = {
        section: getattr(field.annotation, "model_fields", {}) for section, field in fields
    }
    *sections, name = key
    own = keys_of[sections[0]] if sections else keys_of
    full_names = {
        known: f"{section}.{known}" for section, keys in keys_of.items() for known in keys
    }
    # Several sections have a key such as "options": that of the given section is meant.
    full_names |= {known: ".".join([*sections, known]) for known in own}
    near = difflib.get_close_matches(name, full_names, n=1)
    advice = f"Did you mean {full_names[near[0]]!r}?" if near else f"There are {', '.join(own)}."
    return f"There is no key {'.'.join(key)!r}. {advice}"


def _describe_value(key: Key, fault: Any) -> str:
    """Return the sentence on the value of a key, or of one of its parts."""
    name, kind, context = ".".join(key), fault["type"], fault.get("ctx", {})
    if kind == "value_error":
        return f"{name}: {context['error']}"
    rule = RULES.get(kind) or RULES.get(kind.partition("_")[0], fault["msg"])
    expected, value = rule.format_map(context), fault["input"]
    near = difflib.get_close_matches(str(value), re.findall(r"'(.*?)'", expected), n=1)
    advice = f" Did you mean {near[0]!r}?" if near else ""
    return f"{name} must be {expected}; got {value!r}.{advice}"
