"""A config from YAML and `key=value` overrides; every fault is told at once, with the nearest valid name."""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, Union

from deconfound.errors import OptionError
from deconfound.training.config import Config
from deconfound.training.needs import need


def load_config(
    path: str | Path, overrides: Sequence[str] = (), look: Callable[[Config], list[str]] | None = None
) -> Config:
    """Read a YAML file and apply overrides such as `training.lr=0.01`; relative paths of data start at the file.

    Args:
        path: The file.
        overrides: `key=value` texts, the value being YAML.
        look: Called where something is wrong already, with what could be read, to add faults that only the data show.

    Raises:
        OptionError: With one line for each fault.
    """
    yaml = need("yaml", "train")
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"{path} must be a config that can be read; got {error.strerror}. Make one with `deconfound init`."
        ) from error
    except UnicodeDecodeError as error:
        raise OptionError(f"{path} must be a text in UTF-8; got {error}. Make one with `deconfound init`.") from error
    try:
        data = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise OptionError(f"{path} must be YAML; got {error}.") from error
    if not isinstance(data, dict):
        raise OptionError(f"{path} must hold sections such as data: and design:; got {type(data).__name__}.")
    faults: list[str] = []
    for item in overrides:
        _override(data, item, faults)
    config = _section(Config, data, "", faults)
    found: Config | None = None if config is None else _anchored(config, path.parent)
    if faults or found is None:
        raise OptionError(listed(str(path), [*faults, *(look(found) if look and found else [])]))
    return found


def config_from(data: Mapping[str, Any]) -> Config:
    """The config that `Config.to_dict` gave, or one written by hand as a mapping."""
    faults: list[str] = []
    config = _section(Config, data, "", faults)
    if faults or config is None:
        raise OptionError(listed("the config", faults))
    found: Config = config
    return found


def listed(what: str, faults: Sequence[str]) -> str:
    """One fault in a sentence, several in a list."""
    if len(faults) == 1:
        return f"{what}: {faults[0]}"
    return f"{what} has {len(faults)} faults:\n" + "\n".join(f"- {fault}" for fault in faults)


def _override(data: dict[str, Any], item: str, faults: list[str]) -> None:
    key, equals, text = item.partition("=")
    if not equals or not key:
        faults.append(f"an override must be key=value, such as training.lr=0.01; got {item!r}.")
        return
    yaml = need("yaml", "train")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    *parents, last = key.split(".")
    place = data
    for parent in parents:
        if not isinstance(place.get(parent), dict):
            place[parent] = {"name": place[parent]} if isinstance(place.get(parent), str) else {}
        place = place[parent]
    place[last] = value


def _section(kind: type, data: Any, where: str, faults: list[str]) -> Any:
    """A dataclass from a mapping, faulty keys left at their defaults; None where it cannot be made without them."""
    if isinstance(data, str) and any(item.name == "name" for item in fields(kind)):
        data = {"name": data}
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        faults.append(f"{where or 'the config'} must be a section with keys; got {data!r}.")
        return None
    known = {item.name: item for item in fields(kind)}
    for key in data:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            elsewhere = [f"{part}.{key}" for part in _places(str(key))] if not where else []
            close = near or elsewhere
            hint = f"Did you mean {close[0]!r}?" if close else f"It has: {', '.join(known)}."
            faults.append(f"{where or 'the config'} must hold known keys; got {key!r}. {hint}")
    hints = typing.get_type_hints(kind)
    values = {}
    for name, item in known.items():
        full = f"{where}.{name}" if where else name
        if name in data:
            before = len(faults)
            value = _value(hints[name], data[name], full, faults)
            if len(faults) == before or (is_dataclass(hints[name]) and value is not None):
                values[name] = value
        elif is_dataclass(hints[name]) and item.default_factory is MISSING:
            values[name] = _section(typing.cast(type, hints[name]), {}, full, faults)
        elif item.default is MISSING and item.default_factory is MISSING:
            faults.append(f"{full} must be given; got nothing.")
    needed = [name for name, item in known.items() if item.default is MISSING and item.default_factory is MISSING]
    return kind(**values) if all(values.get(name) is not None for name in needed) else None


def _places(key: str) -> list[str]:
    """The sections that have a key of this name."""
    hints = typing.get_type_hints(Config)
    return [name for name, kind in hints.items() if any(item.name == key for item in fields(kind))]


def _value(kind: Any, value: Any, where: str, faults: list[str]) -> Any:
    if is_dataclass(kind):
        return _section(typing.cast(type, kind), value, where, faults)
    done, read = _read(kind, value)
    if not done:
        faults.append(f"{where} must be {_words(kind)}; got {value!r}.{_near(kind, value)}")
    return read


def _read(kind: Any, value: Any) -> tuple[bool, Any]:
    """Whether a value is of a kind, and the value as that kind."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        for part in sorted(inner, key=lambda part: part is float):
            done, read = _read(part, value)
            if done:
                return True, read
        return False, None
    if origin is Literal:
        return value in inner, value
    if origin is tuple:
        items = [value] if isinstance(value, str | int | float) and not isinstance(value, bool) else value
        if not isinstance(items, list | tuple):
            return False, None
        parts = [_read(inner[0], item) for item in items]
        return all(done for done, _ in parts), tuple(read for _, read in parts)
    if origin is dict:
        return isinstance(value, dict) and all(_read(inner[1], item)[0] for item in value.values()), value
    if kind is Any:
        return True, value
    if kind is type(None):
        return value is None, None
    if kind is float:
        if isinstance(value, str):  # YAML reads 1e-3 as a text
            try:
                value = float(value)
            except ValueError:
                return False, None
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and math.isfinite(value), value
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    return isinstance(value, kind), value


def _words(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(part) for part in inner))
    if origin is Literal:
        return " or ".join(repr(item) for item in inner)
    if origin is tuple:
        return f"a list of {_words(inner[0])}"
    names = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", type(None): "empty"}
    return names.get(kind, "a mapping")


def _near(kind: Any, value: Any) -> str:
    options = [item for part in (kind, *typing.get_args(kind)) for item in typing.get_args(part)
               if typing.get_origin(part) is Literal]  # fmt: skip
    near = difflib.get_close_matches(str(value), [str(item) for item in options], n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _anchored(config: Config, folder: Path) -> Config:
    """Paths of the data seen from the working directory: beside the config if something lies there."""

    def resolve(given: str | None) -> str | None:
        beside = None if given is None else folder / given
        return str(beside) if beside is not None and beside.exists() else given

    source = resolve(config.data.source)
    assert source is not None
    return replace(config, data=replace(config.data, source=source, table=resolve(config.data.table)))
