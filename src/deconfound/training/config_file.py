"""A config from YAML, a mapping and `key=value` overrides; every fault at once, with the nearest valid name."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deconfound.errors import OptionError, need
from deconfound.networks.packages import is_own, search_modules_in
from deconfound.training.checks import listed_faults, validate_config
from deconfound.training.config import Config, sections

if TYPE_CHECKING:
    from pydantic import ValidationError

# What pydantic calls a fault, and how a config should have been.
_RULES = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "literal_error": "{expected}",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}


def read_config(config: str | Path | Mapping[str, Any] | Config, overrides: Sequence[str] = ()) -> Config:
    """A config from a YAML file, a mapping or a `Config`, with overrides such as `training.lr=0.01`.

    Relative paths of data start at the file, and a network of your own (`module:callable`) may lie beside it.

    Args:
        config: Where it comes from.
        overrides: `key=value` texts, the value being YAML.

    Raises:
        OptionError: With one line for each fault of the config, and of its data where they can be opened.
    """
    if isinstance(config, Config):
        if not overrides:
            return config
        config = config.to_dict()
    if isinstance(config, Mapping):
        return _checked(dict(config), overrides, "the config", None)
    path = Path(config)
    return _checked(_read_yaml(path), overrides, str(path), path.parent)


def _checked(content: dict[str, Any], overrides: Sequence[str], name: str, folder: Path | None) -> Config:
    content = {"data": {}, "design": {}, **copy.deepcopy(content)}
    faults: list[str] = []
    for item in overrides:
        _override(content, item, faults)
    config = _validated(content, faults)
    if config is not None and folder is not None:
        config = _beside(config, folder)
    if faults or config is None:
        more = [] if config is None else validate_config(config)  # as far as the readable part shows it
        raise OptionError(listed_faults(name, [*faults, *more]))
    return config


def _read_yaml(path: Path) -> dict[str, Any]:
    yaml = need("yaml", "train")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise OptionError(
            f"{path} must be a config that can be read; got {error.strerror}. Make one with `deconfound init`."
        ) from error
    except UnicodeDecodeError as error:
        raise OptionError(f"{path} must be a text in UTF-8; got {error}. Make one with `deconfound init`.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise OptionError(f"{path} must be YAML; got {error}.") from error
    if not isinstance(content, dict):
        raise OptionError(f"{path} must hold sections such as data: and design:; got {type(content).__name__}.")
    return content


def _override(content: dict[str, Any], item: str, faults: list[str]) -> None:
    key, equals, text = item.partition("=")
    if not equals or not key:
        faults.append(f"an override must be key=value, such as training.lr=0.01; got {item!r}.")
        return
    yaml = need("yaml", "train")
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        value = text
    *parents, last = key.split(".")
    place = content
    for parent in parents:
        inner = place.get(parent)
        place[parent] = inner if isinstance(inner, dict) else {"name": inner} if isinstance(inner, str) else {}
        place = place[parent]
    place[last] = value


def _validated(content: dict[str, Any], faults: list[str]) -> Config | None:
    """The config, faulty keys left at their defaults; None where it cannot be made without them."""
    from pydantic import ValidationError

    try:
        return Config.model_validate(content)
    except ValidationError as error:
        found = error.errors(include_url=False)
    by_key: dict[tuple[str, ...], list[Any]] = {}
    for fault in found:
        by_key.setdefault(tuple(map(str, fault["loc"][:2])), []).append(fault)
    faults += [_sentence(key, group) for key, group in by_key.items()]
    left = copy.deepcopy(content)
    for section, *key in by_key:
        inner = left.get(section)
        if key and isinstance(inner, dict):
            inner.pop(key[0], None)
        else:
            left.pop(section, None)
    try:
        return Config.model_validate(left)
    except ValidationError:
        return None


def faults_of(error: ValidationError, section: str) -> list[str]:
    """A sentence for each key of a section that pydantic refuses."""
    by_key: dict[str, list[Any]] = {}
    for fault in error.errors(include_url=False):
        by_key.setdefault(str(fault["loc"][0]), []).append(fault)
    return [_sentence((section, key), group) for key, group in by_key.items()]


def _sentence(key: tuple[str, ...], group: Sequence[Any]) -> str:
    """One sentence about a key, from all that pydantic says about it."""
    where, first = ".".join(key), group[0]
    kinds = {fault["type"] for fault in group}
    if "missing" in kinds:
        return f"{where} must be given; got nothing."
    if "extra_forbidden" in kinds:
        return _unknown_key(key)
    if kinds & {"model_type", "model_attributes_type"}:
        return f"{where or 'the config'} must be a section with keys; got {first['input']!r}."
    rules = dict.fromkeys(
        _RULES.get(fault["type"], "as documented").format_map(fault.get("ctx", {})) for fault in group
    )
    value = min(group, key=lambda fault: len(fault["loc"]))["input"]  # of a list, not one of its parts
    expected = [part.strip("'") for rule in rules for part in rule.replace(" or ", ", ").split(", ")]
    near = difflib.get_close_matches(str(value), expected, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{where} must be {' or '.join(rules)}; got {value!r}.{hint}"


def _unknown_key(key: tuple[str, ...]) -> str:
    *parents, name = key
    known = list(sections()[parents[0]].model_fields) if parents else list(Config.model_fields)
    elsewhere = [f"{section}.{name}" for section, kind in sections().items() if name in kind.model_fields]
    close = difflib.get_close_matches(name, known, n=1) or ([] if parents else elsewhere)
    hint = f"Did you mean {close[0]!r}?" if close else f"It has: {', '.join(known)}."
    return f"{parents[0] if parents else 'the config'} must hold known keys; got {name!r}. {hint}"


def _beside(config: Config, folder: Path) -> Config:
    """Paths as seen from the working directory: beside the config if something lies there."""

    def resolve(given: str | None) -> str | None:
        beside = None if given is None else folder / given
        return str(beside) if beside is not None and beside.exists() else given

    data, network = config.data, config.network
    name = network.name
    if is_own(name):
        search_modules_in(folder)
    elif name.startswith("hf:"):
        name = f"hf:{resolve(name.removeprefix('hf:'))}"
    return config.updated(
        data={"source": resolve(data.source), "table": resolve(data.table)},
        network={"name": name, "weights": resolve(network.weights)},
    )
