"""What a user of release 0.1 could do, they can do now: each name, parameter, command, option, config key and method.

`capabilities_0_1.json` was written by release 0.1 itself; `deconfound.renamed` says what is called otherwise since.
"""

import importlib
import inspect
import json
from pathlib import Path

import pytest
import typer

from deconfound.cli import app
from deconfound.methods import METHODS, method
from deconfound.renamed import RENAMED
from deconfound.training.config import Config

# Objects that the library hands to users, who never call their constructor.
HANDED_OUT = {"NormalizedModel", "Audit", "Plan", "Place", "Diagnosis", "Column"}
# Public by its name alone: what a model calls on its layers, in no page and no example of 0.1.
UNDOCUMENTED = {"prepare"}
ONCE = json.loads((Path(__file__).parent / "capabilities_0_1.json").read_text())


def now(old):
    """The present name of something of 0.1; a class may be named by its room or by `deconfound` alone."""
    if old in RENAMED:
        return RENAMED[old]
    parts = old.split(".")
    short = ".".join([parts[0], *parts[2:]])
    return RENAMED.get(short, old) if len(parts) > 2 else old


def find(dotted):
    """The object of a dotted name: the longest part that is a module, then attributes."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AssertionError(dotted)


def names():
    for name, about in ONCE["names"].items():
        yield f"deconfound.{name}", about
    for room, content in ONCE["rooms"].items():
        for name, about in content.items():
            yield f"deconfound.{room}.{name}", about


@pytest.mark.parametrize(("name", "about"), list(names()), ids=lambda item: item if isinstance(item, str) else "")
def test_every_public_name_is_there_with_its_parameters_and_members(name, about):
    value = find(now(name))
    if about["parameters"] and name.rpartition(".")[2] not in HANDED_OUT:
        signature = inspect.signature(value).parameters
        flexible = any(item.kind is item.VAR_KEYWORD for item in signature.values())
        wanted = {now(f"{name}({parameter})").partition("(")[2].rstrip(")") for parameter in about["parameters"]}
        assert flexible or wanted - {"args", "kwargs", "options"} <= set(signature), wanted - set(signature)
    # A name that 0.1 merely inherited or exposed by accident has no entry; fields of dataclasses are instance members.
    fields = set(getattr(value, "__dataclass_fields__", ())) | set(getattr(value, "__annotations__", ()))
    for member in set(about["members"]) - UNDOCUMENTED:
        new = now(f"{name}.{member}").rpartition(".")[2]
        assert hasattr(value, new) or new in fields, f"{name}.{member}"


def commands(command, path):
    yield " ".join(path), command
    for name, sub in getattr(command, "commands", {}).items():
        yield from commands(sub, [*path, name])


@pytest.mark.parametrize("name", ONCE["commands"])
def test_every_command_is_there_with_its_options(name):
    present = dict(commands(typer.main.get_command(app), ["deconfound"]))
    assert now(name) in present
    given = present[now(name)].params
    have = {word for each in given for word in (each.opts if each.param_type_name == "option" else [each.name.upper()])}
    wanted = {now(f"{name} {option}").rpartition(" ")[2] for option in ONCE["commands"][name]}
    assert wanted <= have, wanted - have


def config_keys(kind, where=""):
    for name, field in kind.model_fields.items():
        inner = field.annotation
        if hasattr(inner, "model_fields"):
            yield from config_keys(inner, f"{where}{name}.")
        else:
            yield f"{where}{name}"


@pytest.mark.parametrize("key", ONCE["config"])
def test_every_key_of_a_config_is_there(key):
    assert now(f"config {key}").removeprefix("config ") in set(config_keys(Config))


@pytest.mark.parametrize("name", ONCE["methods"])
def test_every_method_is_there_with_its_options(name):
    assert name in METHODS
    wanted = {now(f"method {name} option {option}").rpartition(" ")[2] for option in ONCE["methods"][name]}
    assert wanted <= set(method(name).options())


@pytest.mark.parametrize("name", ONCE["networks"])
def test_every_built_in_network_is_there(name):
    from deconfound.networks import NETWORKS

    assert name in NETWORKS


@pytest.mark.parametrize("old", [name for name in RENAMED if name.startswith("deconfound.") and "(" not in name])
def test_an_old_name_gives_an_error_that_tells_the_new_one(old):
    owner, _, name = old.rpartition(".")
    holder = find(now(owner))
    if inspect.isclass(holder):
        holder = holder.__new__(holder)
    with pytest.raises(AttributeError, match=RENAMED[old].replace(".", r"\.")):
        getattr(holder, name)


def test_every_renamed_name_is_on_the_page_of_migrating():
    page = (Path(__file__).parent.parent / "docs" / "migrating.md").read_text()
    for old, new in RENAMED.items():
        assert f"`{old.removeprefix('deconfound.')}`" in page or f"`{old}`" in page, old
        assert new.removeprefix("deconfound.") in page, new
