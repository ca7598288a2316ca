"""YAML as people read it: `no`, dates and 007 are texts, and 1e-3 is a number."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import yaml

from deconfound.errors import OptionError

# A few aliases share a list. Many aliases of each other make gigabytes from 300 bytes.
MOST_ALIASES = 10

# All other values are texts. YAML 1.1, which pyyaml reads, takes the level `no` for False, 010 for
# 8, and 1e-3 for a text.
_VALUES = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?",
}


class _Loader(yaml.SafeLoader):
    """The safe loader with fewer guesses, which refuses repeated keys and many aliases."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[Any]]] = {}  # type: ignore[misc]
    aliases = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.aliases += self.check_event(yaml.AliasEvent)
        if self.aliases > MOST_ALIASES:
            raise yaml.YAMLError(f"more than {MOST_ALIASES} aliases (*name). Write the values out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        repeated = [repr(key) for key, count in keys.items() if count > 1]
        if repeated:
            raise yaml.YAMLError(
                f"{', '.join(repeated)} twice in the section that starts in line "
                f"{node.start_mark.line + 1}. Write each key once"
            )
        return super().construct_mapping(node, deep)


for _kind, _pattern in _VALUES.items():
    # None: whatever the first letter is.
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(rf"({_pattern})\Z"), None
    )


def parse_yaml(text: str, name: str) -> Any:
    """Return the plain data of a text.

    Args:
        text: YAML.
        name: What the text is, for messages.

    Example:
        >>> parse_yaml("{lr: 1e-3, positive: no, id: 007}", "the config")
        {'lr': 0.001, 'positive': 'no', 'id': '007'}
    """
    try:
        content = yaml.load(text, _Loader)  # A subclass of the safe loader.
        json.dumps(content)  # Refuses a list that contains itself, which YAML can write.
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f" in line {mark.line + 1}"
        raise OptionError(f"{name} is no YAML: {error.problem}{where}.") from None
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"{name} cannot be used: {error}.") from None
    return content


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the sections of a config file."""
    name = f"The config {str(path)!r}"
    try:
        content = parse_yaml(path.read_text(encoding="utf-8-sig"), name)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", "it is not UTF-8 text")
        raise OptionError(
            f"{name} cannot be read: {reason}. Make one with `deconfound init`, or pass a mapping "
            "in Python."
        ) from None
    if not isinstance(content, dict):
        raise OptionError(
            f"{name} must hold sections such as data: and design:; got {type(content).__name__}. "
            "Make one with `deconfound init`."
        )
    return content
