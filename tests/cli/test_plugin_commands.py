"""Commands and checks of plugins: listed without importing them, imported on use, isolated if broken."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest
from click.testing import CliRunner

import retrievalkit as rk
from retrievalkit import hookspecs, registry
from retrievalkit.cli.group import summary
from retrievalkit.cli.main import main
from retrievalkit.cli.plugins import group
from retrievalkit.contracts.cluster import ClusterOptions, workers
from retrievalkit.errors import MissingDependencyError, OptionError

COMMAND = """
    from dataclasses import dataclass
    from retrievalkit import hookimpl
    from retrievalkit.contracts.commands import CommandOptions, command

    @hookimpl
    def register_commands(register):
        text = (
            "Greet somebody, in a sentence that is longer than any terminal is wide, so that the help has to "
            "wrap it over two lines."
        )
        register("{name}", "{module}:greet", help=text, group="judge")

    @dataclass(frozen=True)
    class GreetOptions(CommandOptions):
        name: str
        times: int = 1

    class Greeting:
        def __init__(self, options):
            self.summary = " ".join([f"Hello {{options.name}}"] * options.times)
        def as_json(self):
            return {{"said": self.summary}}

    @command("{name}", GreetOptions)
    def greet(options):
        return Greeting(options)
"""
GREET = COMMAND.format(name="greet-me", module="acme")
CLICK_GREET = """
    import click
    from retrievalkit import hookimpl

    @hookimpl
    def register_commands(register):
        register("greet-me", "acme:greet", help="Greet somebody.")

    @click.command()
    @click.argument("name")
    def greet(name):
        click.echo(f"Hello {name}")
"""
CHECK = """
    from retrievalkit import hookimpl
    from retrievalkit.hookspecs import Finding

    @hookimpl
    def register_checks(register):
        register("weather", "acme:look")

    def look():
        {body}
"""


def rkit(*words):
    return CliRunner().invoke(main, words)


@pytest.fixture
def use(tmp_path, monkeypatch, fresh_registry):
    """Use local files as plugins: `use(acme=source)`."""

    def use(**sources):
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        monkeypatch.setenv("RKIT_PLUGIN_FILES", ",".join(str(tmp_path / f"{name}.py") for name in sources))
        fresh_registry()

    return use


def listed(name):
    (entry,) = [one for one in json.loads(rkit("plugins", "list", "--json").output) if one["plugin"] == name]
    return entry


def shown(text):
    return " ".join(text.split())


# --- commands ------------------------------------------------------------------------------------------------------


def test_a_plugins_command_is_declared_by_a_dataclass(use):
    use(acme=GREET)
    assert rkit("greet-me", "--name", "Ada", "--times", "2").output == "Hello Ada Hello Ada\n"
    said = rkit("greet-me", "--name", "Ada", "--set", "times=2", "--json").output
    assert json.loads(said) == {"said": "Hello Ada Hello Ada"}
    assert "Missing option '--name'" in rkit("greet-me").stderr
    assert rk.command("greet-me", name="Ada").summary == "Hello Ada"
    with pytest.raises(OptionError, match="did you mean 'times'"):
        rk.command("greet-me", name="Ada", tmies=2)


@pytest.mark.parametrize(("source", "words"), [(GREET, ["--name", "Ada"]), (CLICK_GREET, ["Ada"])])
def test_a_recipe_may_run_a_declared_or_a_click_command_of_a_plugin(use, tmp_path, source, words):
    use(acme=source)
    assert rkit("greet-me", *words).output == "Hello Ada\n"
    recipe = "name: hello\nsteps:\n  - {name: hello, command: greet-me, with: {name: Ada}}\n"
    (tmp_path / "recipe.yaml").write_text(recipe)
    result = rkit("run", str(tmp_path / "recipe.yaml"), "--output", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert "Hello Ada" in (tmp_path / "out" / "logs" / "hello.log").read_text()


def test_the_help_lists_the_command_in_its_section_without_importing_it(use):
    use(acme=COMMAND.format(name="greet-me", module="no_such_module"))
    printed = rkit("--help").output
    judge = printed[printed.index("Evaluate:") : printed.index("Plugins and this machine:")]
    assert "greet-me" in judge
    assert "so that the help has to wrap it over two lines." in shown(judge)
    assert "..." not in printed.replace("rkit train ...", "").replace("[ARGS]...", "")
    places = [printed.index(f"{heading}:") for heading in hookspecs.COMMAND_GROUPS.values()]
    assert places == sorted(places)


NO_COMMAND = GREET.replace('@command("greet-me", GreetOptions)', "")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (COMMAND.format(name="greet-me", module="no_such_module"), "No module named 'no_such_module'"),
        (COMMAND.format(name="greet-me", module="no_such_module"), "command 'greet-me' of plugin 'acme'"),
        ("import no_such_package", "acme (ModuleNotFoundError: No module named 'no_such_package')"),
        (NO_COMMAND, "'acme:greet' is not a command"),
    ],
)
def test_a_command_that_cannot_be_used_is_an_error_with_the_reason(use, source, message):
    use(acme=source)
    result = rkit("greet-me", "--name", "Ada")
    assert result.exit_code == 2
    assert message in shown(result.stderr)


def test_the_error_for_a_missing_command_names_the_plugin_to_install(monkeypatch, fresh_registry):
    monkeypatch.setenv("RKIT_PLUGINS", "no_such_plugin")
    fresh_registry()
    assert "unknown plugin 'no_such_plugin'" in shown(rkit("--help").output)
    monkeypatch.setenv("RKIT_PLUGINS", "")
    fresh_registry()
    result = rkit("analyse-views", "model")
    assert result.exit_code == 2
    assert "pip install retrievalkit-mvr" in result.stderr
    for name in ("new", "package", "check"):
        monkeypatch.delitem(group.commands, name)
        missing = rkit("plugins", name, "peak")
        assert (missing.exit_code, missing.stderr.count("\n")) == (2, 1)
        assert "pip install retrievalkit-testing" in missing.stderr
    for name in ("export", "pretrain", "serve", "sync"):
        assert f"pip install {registry.DISTRIBUTIONS[name]}" in rkit(name, "index").stderr
    with pytest.raises(MissingDependencyError, match=r"pip install 'retrievalkit\[ray\]'"):
        workers(ClusterOptions(ray="auto"))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (COMMAND.format(name="train", module="acme"), "the command 'train', which is a command of retrievalkit itself"),
        (COMMAND.format(name="greet_me", module="acme"), "'greet_me' is not lower case with dashes"),
        (GREET.replace("help=", "hint="), "hint"),
        (GREET.replace("help=text, ", ""), "the command 'greet-me' has no help text"),
        (GREET.replace('"judge"', '"jugde"'), "did you mean 'judge'"),
    ],
)
def test_a_refused_registration_leaves_the_command_line_working(use, source, reason):
    use(acme=source)
    (broken,) = [plugin for plugin in registry.plugins() if plugin.name == "acme"]
    assert reason in broken.error
    assert "greet" not in rkit("--help").output
    assert rkit("train", "--help").exit_code == 0


def test_a_name_that_two_plugins_register_is_marked_and_refused(use, tmp_path):
    use(acme=GREET, other=COMMAND.format(name="greet-me", module="other"))
    result = rkit("greet-me", "--name", "Ada")
    assert result.exit_code == 2
    one, other = (f"{tmp_path / name} local file" for name in ("acme.py", "other.py"))
    assert f"registered by both {one} and {other}" in result.stderr
    assert "Unusable: registered by both" in shown(rkit("--help").output)
    assert rkit("plugins", "list").output.count("CLASH") == 2
    (component,) = listed("acme")["components"]
    assert component["clashes_with"] == [other]


def test_the_help_has_the_first_sentence_of_each_commands_own_help():
    assert set(main.built_in) == hookspecs.BUILT_IN_COMMANDS
    commands, printed = main.with_all_commands().commands, shown(rkit("--help").output)
    assert all(f" {name} {summary(commands[name])}" in printed for name in main.built_in)


# --- checks --------------------------------------------------------------------------------------------------------


def findings(*words):
    result = rkit("doctor", "--json", *words)
    return {one["name"]: one for one in json.loads(result.stdout)}, result.exit_code


def test_a_plugins_check_is_part_of_doctor(use):
    use(acme=CHECK.format(body='return [Finding("weather", "rain", ok=False, hint="take an umbrella")]'))
    found, code = findings()
    assert found["weather"] == {"name": "weather", "value": "rain", "ok": False, "hint": "take an umbrella"}
    assert code == 1
    assert "take an umbrella" in rkit("doctor").output


@pytest.mark.parametrize(("body", "reason"), [("1 / 0", "ZeroDivisionError"), ("return 3", "must return a list")])
def test_a_check_that_fails_is_a_finding(use, body, reason):
    use(acme=CHECK.format(body=body))
    found, code = findings()
    assert reason in found["check weather"]["value"]
    assert "acme.py" in found["check weather"]["hint"]
    assert code == 1
    assert found["Python"]["ok"]


# --- the list of plugins -------------------------------------------------------------------------------------------

WITHOUT_TORCH = """
    1 / 0

    class Component:
        \"\"\"Adds e.g. noise, as in
        Foo et al. 2020. The second sentence is left out.

        Args:
            size: Nothing.
        \"\"\"
"""
HOOK = """
    from retrievalkit import hookimpl

    @hookimpl
    def register_poolers(register):
        register("acme", "acme_parts.inner:Component")
        register("nowhere", "acme_parts.missing:Component")
        register("named", "acme_parts.missing:Component", help="Its own help.")
"""


def test_the_list_has_the_first_sentence_of_each_component_without_importing_it(use, tmp_path, monkeypatch):
    (tmp_path / "acme_parts").mkdir()
    (tmp_path / "acme_parts" / "__init__.py").write_text("1 / 0")
    (tmp_path / "acme_parts" / "inner.py").write_text(textwrap.dedent(WITHOUT_TORCH))
    monkeypatch.syspath_prepend(tmp_path)
    use(acme=HOOK)
    summaries = {one["name"]: one["summary"] for one in listed("acme")["components"]}
    assert summaries == {"acme": "Adds e.g. noise, as in Foo et al. 2020.", "nowhere": "", "named": "Its own help."}
    assert "acme_parts" not in sys.modules
    assert "Adds e.g. noise, as in Foo et al. 2020." in rkit("plugins", "list").output
