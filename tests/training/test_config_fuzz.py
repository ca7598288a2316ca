"""Whatever a config holds: it is read, or refused in our own words; never another error."""

import copy

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deconfound.errors import DeconfoundError
from deconfound.training import read_config
from deconfound.training.config import sections
from deconfound.training.dry_run import dry_run
from deconfound.training.problem import open_problem
from tests.training import tiny

KEYS = [f"{name}.{key}" for name, kind in sections().items() for key in kind.model_fields]
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**12),
    st.floats(),
    st.sampled_from(
        ["", "dx", "age", "site", "id", "f0", "none", "pmdn", "mean", "error", "1e400", "[/red]", "age:", "a" * 300]
    ),
    st.text(max_size=8),
    st.dates(),
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.just("age"), inner, max_size=2)
    ),
    max_leaves=6,
)
CHANGES = st.lists(st.tuples(st.sampled_from(KEYS), VALUES), min_size=1, max_size=3)
OPTIONS = {"deadline": None, "derandomize": True, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    return tiny.settings(tiny.write(folder, tiny.cohort(48)), folder / "run")


def changed(base, changes):
    content = copy.deepcopy(base)
    for key, value in changes:
        section, name = key.split(".")
        content.setdefault(section, {})[name] = value
    return content


@settings(max_examples=200, **OPTIONS)
@given(changes=CHANGES)
def test_values_of_any_kind_are_read_or_refused(base, changes):
    try:
        config = read_config(changed(base, changes))
    except DeconfoundError as error:
        assert " must " in str(error)  # noqa: PT017 - either way is right
        return
    assert read_config(config.to_dict()) == config


@settings(max_examples=120, **OPTIONS)
@given(changes=CHANGES)
def test_a_config_that_is_read_opens_its_data_or_is_refused(base, changes):
    try:
        dry_run(open_problem(read_config(changed(base, changes))))
    except DeconfoundError as error:
        assert str(error)  # noqa: PT017 - either way is right


@settings(max_examples=60, **OPTIONS)
@given(
    text=st.text(max_size=60) | st.binary(max_size=60).map(lambda b: b.decode("latin-1")) | VALUES.map(yaml.safe_dump)
)
def test_any_text_is_a_config_or_refused(base, tmp_path_factory, text):
    path = tmp_path_factory.mktemp("text") / "config.yaml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DeconfoundError, match=str(path)[-20:]):
        read_config(path)


@settings(max_examples=60, **OPTIONS)
@given(item=st.text(max_size=20) | st.builds("{}={}".format, st.sampled_from(KEYS), st.text(max_size=10)))
def test_any_override_is_taken_or_refused(base, item):
    try:
        read_config(base, [item])
    except DeconfoundError as error:
        assert str(error)  # noqa: PT017 - either way is right
