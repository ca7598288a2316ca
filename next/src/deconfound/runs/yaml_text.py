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

# For each kind of value its pattern and the letters that it may start with. YAML 1.1, which pyyaml
# reads, takes the level `no` for False, 010 for 8, and 1e-3 for a text.
_VALUES = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    "float": (
        r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?",
        list("-+.0123456789"),
    ),
}


class _Loader(yaml.SafeLoader):
    """The safe loader with fewer guesses, which refuses repeated keys and many aliases."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[Any]]] = {}  # type: ignore[misc]
    aliases = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > MOST_ALIASES:
                raise yaml.YAMLError(
                    f"more than {MOST_ALIASES} aliases (*name). Write the values themselves"
                )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        repeated = [repr(key) for key, count in keys.items() if count > 1]
        if repeated:
            line = node.start_mark.line + 1
            raise yaml.YAMLError(
                f"{', '.join(repeated)} twice in the section that starts in line {line}. "
                "Write each key once"
            )
        return super().construct_mapping(node, deep)


for _kind, (_pattern, _first) in _VALUES.items():
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(rf"({_pattern})\Z"), _first
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
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise OptionError(f"{name} is no YAML: {error.problem}{where}.") from None
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"{name} cannot be used: {error}.") from None
    return content


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the sections of a config file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise OptionError(
            f"The config {str(path)!r} cannot be read: {reason}. "
            "Make one with `deconfound init`, or pass a mapping in Python."
        ) from None
    content = parse_yaml(text, f"The config {str(path)!r}")
    if not isinstance(content, dict):
        raise OptionError(
            f"The config {str(path)!r} must hold sections such as data: and design:; got "
            f"{type(content).__name__}. Make one with `deconfound init`."
        )
    return content
