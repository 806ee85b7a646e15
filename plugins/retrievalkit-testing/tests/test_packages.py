"""The conformance kit of packages: each fault is detected by its property, with the line."""

from __future__ import annotations

import json
import re
import sys

import pytest
from click.testing import CliRunner
from retrievalkit_testing.packages import PACKAGES
from test_new_plugin import install

from retrievalkit.cli import main

TOP = '''"""A plugin."""

from retrievalkit import hookimpl

__version__ = "0.1.0"


@hookimpl
def register_poolers(register):
    register("tried", "retrievalkit_tried.poolers:Tried")
'''
POOLER = '''"""A pooler."""

from retrievalkit.contracts import EncoderInfo, Pooler, Representation


class Tried(Pooler):
    """The first token.

    Args:
        scale: A factor.
    """

    def __init__(self, info: EncoderInfo, *, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, states, side):
        return Representation(self.scale * states.last[:, :1])
'''
PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "retrievalkit-tried"
version = "0.1.0"
dependencies = ["retrievalkit"]

[project.entry-points."retrievalkit.plugins"]
tried = "retrievalkit_tried"

[tool.hatch.build.targets.wheel]
packages = ["retrievalkit_tried"]
"""
FAULTS = {
    "torch_at_the_top": ("cold_import", "__init__.py", TOP, "import torch\n" + TOP),
    "heavy_by_a_module": ("cold_import", "__init__.py", TOP, TOP + "\nimport retrievalkit_tried.poolers\n"),
    "prints": ("cold_import", "__init__.py", TOP, TOP + '\nprint("hello")\n'),
    "raises": ("registered", "__init__.py", TOP, TOP + "\n1 / 0\n"),
    "name_with_a_dash": ("registered", "__init__.py", '"tried",', '"tri-ed",'),
    "no_such_class": ("targets", "__init__.py", ":Tried", ":Tired"),
    "no_pooler": ("targets", "poolers.py", "class Tried(Pooler)", "class Tried"),
    "no_forward": ("targets", "poolers.py", "def forward", "def backward"),
    "undocumented_option": ("documented", "poolers.py", "scale: A factor", "other: A factor"),
    "undocumented": (
        "documented",
        "poolers.py",
        POOLER[POOLER.index('    """The first') : POOLER.index("    def")],
        "",
    ),
    "requires_nothing": ("distribution", "__init__.py", '["retrievalkit"]', "[]"),
    "entry_point_in_capitals": ("distribution", "__init__.py", 'tried = "retr', 'Tried = "retr'),
}
SLOW = ("heavy_by_a_module",)


@pytest.fixture
def written(tmp_path, monkeypatch, fresh_registry):
    """Write the package with one text replaced, and register it as if installed from that folder."""

    def write(old, new):
        package = tmp_path / "retrievalkit_tried"
        package.mkdir()
        files = {package / "__init__.py": TOP, package / "poolers.py": POOLER, tmp_path / "pyproject.toml": PROJECT}
        for path, text in files.items():
            path.write_text(text.replace(old, new))
        name = install(tmp_path, tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(sys.path)}")
        monkeypatch.setenv("RKIT_PLUGINS", name)
        fresh_registry()

    yield write
    for module in [one for one in sys.modules if one.startswith("retrievalkit_tried")]:
        del sys.modules[module]


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] if one in SLOW else []) for one in FAULTS])
def test_a_fault_is_found_by_the_property_that_names_it(written, name):
    fault, file, old, new = FAULTS[name]
    written(old, new)
    failure = PACKAGES.report("retrievalkit-tried", only=[fault]).failures[0]
    assert failure.property == fault
    assert re.search(rf"{file.replace('.', '[.]')}:\d+", str(failure)), str(failure)


def test_a_package_that_keeps_the_contract_passes(written):
    written("nothing", "nothing")
    PACKAGES.check("retrievalkit-tried")


@pytest.mark.parametrize("name", ["aggretriever", "cotmae", "milvus", "mlr", "mvr", "pyserini"])
def test_the_packages_that_ship_pass(name):
    PACKAGES.check(f"retrievalkit-{name}")


def test_the_command_prints_a_table_or_json_and_exits_with_1_for_a_failure(written):
    written(*FAULTS["undocumented_option"][2:])
    words = ["plugins", "check", "tried", "--property", "targets"]
    failed = CliRunner().invoke(main, [*words, "--property", "documented"])
    assert failed.exit_code == 1, failed.output
    assert re.search(r"targets +passed", failed.output)
    assert re.search(r"documented +failed +the option 'scale'[\s\S]+look at[\s\S]+poolers\.py:\d+", failed.output)
    passed = CliRunner().invoke(main, [*words, "--json"])
    assert passed.exit_code == 0, passed.output
    (checked,) = json.loads(passed.output)
    assert [row["result"] for row in checked["properties"]] == ["passed"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import nothing_of_this_name\n", "No module named 'nothing_of_this_name'"),
        ("raise SystemExit('no licence')\n", "SystemExit: no licence"),
        ("retrievalkit_contract = '99.0'\n", "it was written for contract 99.0"),
        (
            "from retrievalkit import hookimpl\n\n@hookimpl\ndef register_pooler(register): ...\n",
            "unknown hook 'register_pooler'",
        ),
    ],
)
def test_a_plugin_that_could_not_be_loaded_is_checked_by_its_name(
    tmp_path, monkeypatch, fresh_registry, source, reason
):
    """And a name that it may have registered is unknown, with the reason."""
    (tmp_path / "unloadable.py").write_text(source)
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(tmp_path / "unloadable.py"))
    fresh_registry()
    checked, unknown, shown = (
        CliRunner().invoke(main, ["plugins", *words])
        for words in (("check", "unloadable"), ("check", "its_pooler"), ("show", "its_pooler"))
    )
    assert (checked.exit_code, unknown.exit_code, shown.exit_code) == (1, 2, 2)
    texts = [" ".join(output.split()) for output in (checked.stdout, unknown.stderr, shown.stderr)]
    assert "the plugin 'unloadable' could not be loaded" in texts[0]
    assert all(reason in text for text in texts)
