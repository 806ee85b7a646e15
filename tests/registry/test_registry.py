"""The registry: plugins are loaded, listed and isolated; names resolve to classes, values are converted to options."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pydantic import PositiveFloat, PositiveInt

from retrievalkit import __version__, registry
from retrievalkit.cli import main
from retrievalkit.errors import OptionError, UnknownNameError

POOLER = """
    from retrievalkit import hookimpl

    @hookimpl
    def register_poolers(register):
        register("{name}", "{module}:Component")

    class Component:
        def __init__(self, info, *, size: int = 3):
            self.info, self.size = info, size
"""


def write_module(folder, name, source):
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(source))
    return path


@pytest.fixture
def forgotten(tmp_path):
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


@pytest.fixture
def install(tmp_path, monkeypatch, fresh_registry, forgotten):
    """Install a distribution with one plugin module for a test."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name, source, *, version="1.0", entry_point=None):
        module = name.replace("-", "_")
        write_module(tmp_path, module, source)
        about = tmp_path / f"{module}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (about / "entry_points.txt").write_text(f"[retrievalkit.plugins]\n{entry_point or module} = {module}\n")
        fresh_registry()

    return install


@pytest.fixture
def use_files(monkeypatch, fresh_registry, forgotten):
    def use(*paths, separator=","):
        monkeypatch.setenv("RKIT_PLUGIN_FILES", separator.join(map(str, paths)))
        fresh_registry()

    return use


def hook(*registrations, kind="poolers", argument="register"):
    lines = ["from retrievalkit import hookimpl", "@hookimpl", f"def register_{kind}({argument}):"]
    return "\n".join([*lines, *(f"    {line}" for line in registrations or ("pass",))])


CONTRACT = "should be the text of a version"


def plugin_named(name):
    (found,) = [plugin for plugin in registry.plugins() if plugin.name == name]
    return found


def test_an_installed_plugin_is_loaded_and_its_output_goes_to_standard_error(install, capfd):
    source = "print('Hello')" + textwrap.dedent(POOLER.format(name="acme", module="acme_poolers"))
    install("acme-poolers", source, version="2.3")
    assert "acme" in registry.names("pooler")
    assert capfd.readouterr() == ("", "Hello\n")
    component = registry.component("pooler", "acme")
    assert (component.distribution, component.version, component.plugin) == ("acme-poolers", "2.3", "acme_poolers")
    assert registry.create("pooler", "acme", "info", size=7).size == 7
    assert registry.create("pooler", "acme", "info").info == "info"


@pytest.mark.parametrize(
    ("declared", "ours", "advice"),
    [
        *((version, "1.0.3", None) for version in ("1", "1.0", "1.0.0", None)),  # the third number does not count
        *((version, "0.2.3", None) for version in ("0.2", "0.2.0", "0.2.9", None)),
        *((version, "0.2.3", "a version of the plugin for contract 0.2") for version in ("0", "0.1")),
        ("0.3", "0.2.3", "a newer retrievalkit"),
        ("1", "2.0.0", "a version of the plugin for contract 2"),
        ("2.1", "1.4.0", "a newer retrievalkit"),
        ("1.5", "1.4.9", "a newer retrievalkit"),
    ],
)
def test_a_plugin_for_another_contract_is_listed_but_not_loaded(install, monkeypatch, declared, ours, advice):
    """The message has both versions; the plugin's hooks are not called, and other commands work."""
    monkeypatch.setattr("retrievalkit.hookspecs.VERSION", ours)
    line = "" if declared is None else f"retrievalkit_contract = {declared!r}\n"
    source = POOLER if advice is None else hook("raise SystemExit", kind="whats", argument="")
    install("acme-one", line + textwrap.dedent(source).replace("{name}", "acme").replace("{module}", "acme_one"))
    if advice is None:
        assert "acme" in registry.names("pooler")
        return
    expected = f"it was written for contract {declared}, but retrievalkit {__version__} has contract {ours}. Install "
    assert plugin_named("acme_one").error == f"{expected}{advice}."
    assert expected in " ".join(CliRunner().invoke(main, ["plugins", "list"]).output.split())
    with pytest.raises(UnknownNameError, match=f"could not be loaded: acme_one .*contract {declared}"):
        registry.get("pooler", "acme")


def test_the_error_for_an_unknown_name_has_the_package_of_the_nearest_name(install):
    install("acme-poolers", POOLER.format(name="acme", module="acme_poolers"), version="2.3")
    with pytest.raises(UnknownNameError, match=r"did you mean 'acme'\?.* 'acme' comes with acme-poolers 2\.3\."):
        registry.get("pooler", "acne")
    with pytest.raises(UnknownNameError, match=r"did you mean 'mean'\?") as raised:
        registry.get("pooler", "meen")
    assert "comes with" not in str(raised.value)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("1 / 0", "ZeroDivisionError"),
        *((f"retrievalkit_contract = {declared!r}", CONTRACT) for declared in (1, 1.0, "one", "1.0.0.0", "")),
        ("import sys\nsys.exit(3)", "SystemExit: 3"),
        ("def broken(:", "SyntaxError"),
        (hook(kind="pooler"), "unknown hook 'register_pooler'"),
        (hook(argument="registry"), "registry"),
        (hook('register("good", "b:C")', 'register("Not-Snake", "b:C")'), "'Not-Snake' is not snake_case"),
        (hook('register("a", "b.C")'), "not an import string"),
        (hook('register("a", dict)'), "not an import string"),
        (hook('register("a", "b:C")', 'register("a", "b:D")'), "it registers the pooler 'a' twice"),
    ],
)
def test_a_broken_plugin_is_listed_with_the_reason_and_breaks_nothing_else(install, source, reason):
    install("acme-broken", source)
    install("acme-good", POOLER.format(name="acme_good", module="acme_good"))
    assert reason in plugin_named("acme_broken").error
    assert "\n" not in plugin_named("acme_broken").error
    assert plugin_named("acme_broken").components == []
    assert plugin_named("acme_good").error is None
    assert "good" not in registry.names("pooler")
    with pytest.raises(UnknownNameError, match=r"could not be loaded: acme_broken \("):
        registry.get("pooler", "good")
    assert {"mean", "acme_good"} <= set(registry.names("pooler"))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import nowhere", "nowhere"),
        ("Component = print", "is not a class"),
        ("", "no attribute"),
        ("import sys\nsys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_component_that_cannot_be_imported_is_an_error_with_its_name(tmp_path, use_files, monkeypatch, body, reason):
    monkeypatch.syspath_prepend(tmp_path)
    write_module(tmp_path, "acme_inner", body)
    use_files(write_module(tmp_path, "acme_outer", POOLER.format(name="acme", module="acme_inner")))
    with pytest.raises(registry.PluginError, match=rf"pooler 'acme' of plugin 'acme_outer'.*{reason}") as caught:
        registry.get("pooler", "acme")
    assert caught.value.exit_code == 2


def test_a_duplicate_name_names_both_distributions(install):
    install("acme-one", POOLER.format(name="acme", module="acme_one"), version="1.1")
    install("acme-two", POOLER.format(name="acme", module="acme_two"), version="2.2")
    with pytest.raises(
        registry.PluginError, match=r"pooler 'acme' is registered by both acme-one 1\.1 and acme-two 2\.2"
    ):
        registry.get("pooler", "acme")
    assert registry.get("pooler", "mean"), "the others still work"


def test_two_distributions_may_use_one_entry_point_name(install):
    install("acme-one", POOLER.format(name="one", module="acme_one"), entry_point="acme")
    install("acme-two", POOLER.format(name="two", module="acme_two"), entry_point="acme")
    assert {"one", "two"} <= set(registry.names("pooler"))


def test_a_distribution_that_is_on_the_path_twice_counts_once(install, tmp_path, monkeypatch):
    install("acme-one", POOLER.format(name="one", module="acme_one"))
    (tmp_path / "copy").mkdir()
    (tmp_path / "acme_one-1.0.dist-info").rename(tmp_path / "copy" / "acme_one-1.0.dist-info")
    install("acme-one", POOLER.format(name="one", module="acme_one"), version="0.9")
    monkeypatch.syspath_prepend(tmp_path / "copy")
    assert registry.get("pooler", "one")
    assert registry.component("pooler", "one").version == "1.0", "the one that Python imports"


def test_rkit_plugins_limits_what_is_loaded(install, monkeypatch):
    install("acme-one", POOLER.format(name="one", module="acme_one"))
    install("acme-two", POOLER.format(name="two", module="acme_two"))
    monkeypatch.setenv("RKIT_PLUGINS", " acme_two, ")
    assert "two" in registry.names("pooler")
    assert "one" not in registry.names("pooler")
    assert "acme_one" not in sys.modules
    assert "mean" in registry.names("pooler"), "built-in components stay"
    monkeypatch.setenv("RKIT_PLUGINS", "acme_tow")
    registry.default_registry.cache_clear()
    with pytest.raises(UnknownNameError, match=r"unknown plugin 'acme_tow'; did you mean 'acme_two'.*RKIT_PLUGINS"):
        registry.plugins()


@pytest.mark.parametrize("separator", [",", ":", ", "])
def test_local_files_are_plugins(tmp_path, use_files, separator):
    one = write_module(tmp_path, "acme_local", POOLER.format(name="one", module="acme_local"))
    two = write_module(tmp_path, "acme_other", POOLER.format(name="two", module="acme_other"))
    use_files(one, two, one, separator=separator)
    assert registry.create("pooler", "one", None, size=4).size == 4
    assert registry.component("pooler", "two").distribution == str(two)
    assert all(plugin.error is None for plugin in registry.plugins())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere.py", "not a file"),
        ("my-pooler.py", "not a valid module name"),
        ("json.py", "has the module name 'json' too"),
        ("sys.py", "Python itself has the module name 'sys' too"),
    ],
)
def test_a_local_file_that_cannot_be_a_module_is_listed_with_the_reason(tmp_path, use_files, name, reason):
    if name != "nowhere.py":
        (tmp_path / name).write_text(textwrap.dedent(POOLER.format(name="acme", module="my_pooler")))
    use_files(tmp_path / name)
    assert reason in plugin_named(name.removesuffix(".py")).error
    assert hasattr(sys.modules["json"], "dumps"), "the real module is still there"
    assert "mean" in registry.names("pooler")


# --- options -------------------------------------------------------------------------------------------------------


class Component:
    """A component.

    Args:
        layers: Layers,
            in their order.
        mode: Way (of pooling).
        rate: Speed.
        name: Name.
        flag: Switch.

    Raises:
        ValueError: Never.
    """

    def __init__(
        self,
        info: object,
        *,
        rate: float,
        layers: Sequence[int] = (-1,),
        mode: Literal["max", "mean"] = "max",
        name: str | None = None,
        flag: bool = False,
        tokens: int | Literal["all"] = 1,
    ) -> None:
        pass


def check(**values):
    return registry.check_options("pooler 'made_up'", Component, {"rate": 1.0} | values)


def test_options_are_the_keyword_only_arguments():
    options = registry.options(Component)
    assert {name: option.description for name, option in options.items()} == {
        "rate": "Speed.",
        "layers": "Layers, in their order.",
        "mode": "Way (of pooling).",
        "name": "Name.",
        "flag": "Switch.",
        "tokens": "",
    }
    assert [name for name, option in options.items() if option.required] == ["rate"]
    assert (options["flag"].type_name, options["name"].type_name) == ("bool", "str | None")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        *(({"layers": one}, [10, 12]) for one in ("10,12", "10, 12", "[10,12]", [10, 12], (10, 12))),
        *(({"layers": one}, [12]) for one in (12, "12")),
        ({"mode": "mean"}, "mean"),
        ({"rate": "1e-5"}, 1e-5),
        ({"rate": 2}, 2.0),
        ({"name": 12}, "12"),
        ({"name": None}, None),
        ({"flag": "true"}, True),
        ({"flag": False}, False),
        ({"tokens": "all"}, "all"),
        ({"tokens": "8"}, 8),
    ],
)
def test_a_value_is_converted_to_its_type(given, expected):
    (name,) = given
    value = check(**given)[name]
    assert value == expected or list(value) == expected
    assert not isinstance(expected, float | bool) or type(value) is type(expected)


@pytest.mark.parametrize(
    ("annotation", "text", "expected"),
    [
        *((one, "10,12", [10, 12]) for one in (list[int], tuple[int, ...], Sequence[int], set[int], list[int] | None)),
        (str, "a,b", "a,b"),
        (str | list[str], "a,b", "a,b"),
        (list[str], "a,b", ["a", "b"]),
    ],
)
def test_text_is_split_into_a_sequence_unless_the_type_is_text(annotation, text, expected):
    value = registry.convert("it", annotation, text)
    assert (value if isinstance(value, str) else list(value)) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"layers": "ten"}, r"option 'layers' of pooler 'made_up' cannot be 'ten': .*Sequence\[int\]"),
        ({"mode": "sum"}, r"option 'mode' .* 'sum': .*'max' or 'mean'"),
        ({"rate": "fast"}, r"cannot be 'fast': .*number.* Give a value of type float\."),
        ({"rate": None}, "cannot be None"),
        ({"flag": 3}, "cannot be 3"),
        ({"layers": {"a": 1}}, "cannot be"),
        ({"tokens": 1.5}, "cannot be 1.5"),
        ({"layer": 12}, r"pooler 'made_up' has no option 'layer'; did you mean 'layers'\? Its options: "),
        ({"zzz": 12}, r"has no option 'zzz'\. Its options: flag, layers, mode"),
        ({}, r"needs the option 'rate'\. Set it: --set pooler\.rate=\.\.\."),
    ],
)
def test_a_wrong_unknown_or_missing_option_is_refused(given, message):
    with pytest.raises(OptionError, match=message):
        registry.check_options("pooler 'made_up'", Component, {"rate": 1.0} | given if given else {})


def test_option_types_imported_under_type_checking_are_an_error_of_the_plugin(tmp_path, use_files):
    source = "from __future__ import annotations\n" + hook('register("acme", "acme_hidden:Component")', kind="losses")
    source += "\nclass Component:\n    def __init__(self, *, path: Path): ..."
    use_files(write_module(tmp_path, "acme_hidden", source))
    with pytest.raises(registry.PluginError, match=r"acme_hidden:Component.*'Path' is not defined.*TYPE_CHECKING"):
        registry.create("loss", "acme")


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("rate=1.0", "the option 'rate' of 'acme_untyped:Component' has no type"),
        ("rate: 'a number' = 1", "the options of 'acme_untyped:Component' cannot be read: .*a number"),
        ("rate: int | 'x' = 1", "the options of 'acme_untyped:Component' cannot be read"),
    ],
)
def test_an_option_without_a_readable_type_is_an_error_of_the_plugin(tmp_path, use_files, argument, problem):
    source = hook('register("acme", "acme_untyped:Component")', kind="losses")
    source = (
        f"from __future__ import annotations\n{source}\nclass Component:\n    def __init__(self, *, {argument}): ..."
    )
    use_files(write_module(tmp_path, "acme_untyped", source))
    with pytest.raises(registry.PluginError, match=problem):
        registry.create("loss", "acme")


def test_options_are_not_changed_by_their_readers():
    registry.options(Component).clear()
    assert "rate" in registry.options(Component)


@dataclass
class Size:
    """Size of a component in a test."""

    width: int = 1


def test_an_option_may_be_a_dataclass():
    class Sized:
        def __init__(self, *, size: Size): ...

    assert registry.check_options("made-up", Sized, {"size": {"width": 3}}) == {"size": Size(3)}


def test_a_type_may_have_a_bound():
    """Such as pydantic's PositiveFloat, which is shown as float."""

    class Bounded:
        def __init__(self, *, rate: PositiveFloat = 1.0, sizes: Sequence[PositiveInt] | None = None): ...

    assert registry.check_options("loss 'b'", Bounded, {"rate": "2", "sizes": "1,2"}) == {"rate": 2.0, "sizes": [1, 2]}
    assert registry.options(Bounded)["rate"].type_name == "float"
    for name, value in (("rate", 0), ("rate", float("nan")), ("sizes", [3, 0])):
        with pytest.raises(OptionError, match=rf"'{name}' of loss 'b' cannot be .*"):
            registry.check_options("loss 'b'", Bounded, {name: value})


SINGLE = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


@given(st.recursive(SINGLE, st.lists, max_leaves=5))
def test_any_value_is_converted_or_an_option_error(value):
    for annotation in (int, float, bool, str, list[int], Literal["a"], Mapping[str, int], int | None):
        with contextlib.suppress(OptionError):
            registry.convert("it", annotation, value)
