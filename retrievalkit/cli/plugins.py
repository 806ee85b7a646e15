"""`rkit plugins`: lists what is registered, shows options, starts and checks a plugin."""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from retrievalkit import artifacts, registry
from retrievalkit.cli.options import json_option, output_option, parse, set_option
from retrievalkit.errors import InputError, UnknownNameError


def listing() -> str:
    """All components by kind with who brought them, then the plugins that are broken."""
    found = registry.plugins()
    lines: list[str] = []
    for kind in registry.HOOKS:
        components = sorted((one for plugin in found for one in plugin.components if one.kind == kind), key=_name)
        if not components:
            continue
        width = max(len(one.name) for one in components)
        lines += [f"{kind}s" if kind != "loss" else "losses"]
        lines += [f"  {one.name:<{width}}  {one.distribution} {one.version}" for one in components]
    broken = [plugin for plugin in found if plugin.error]
    if broken:
        lines += [
            "could not be loaded",
            *(f"  {one.name}  {one.distribution} {one.version}: {one.error}" for one in broken),
        ]
    return "\n".join(lines)


def listing_as_json() -> list[dict[str, Any]]:
    """Every plugin with its components, or the reason why it is broken."""
    return [
        {
            "plugin": plugin.name,
            "distribution": plugin.distribution,
            "version": plugin.version,
            "error": plugin.error,
            "components": [{"kind": one.kind, "name": one.name} for one in plugin.components],
        }
        for plugin in registry.plugins()
    ]


def show(name: str) -> str:
    """What a component is and its options; all of them, where several kinds use the name. Also options of trainings."""
    from retrievalkit.train.options import LISTED, list_options

    if name in LISTED:
        return list_options(name)
    texts = []
    for component in _named(name):
        component_class = component.load()
        summary = (inspect.getdoc(component_class) or "").split("\nArgs:")[0].strip()
        lines = [f"{component.kind} {component.name} ({component.distribution} {component.version})", "", summary]
        options = registry.options(component_class)
        if options:
            lines += ["", f"options (--set {component.kind}.NAME=VALUE)"]
        for option in options.values():
            default = "required" if option.required else f"default {option.default!r}"
            lines += [f"  {option.name}: {option.type_name}, {default}"]
            lines += [f"      {option.description}"] if option.description else []
        texts.append("\n".join(lines))
    return "\n\n".join(texts)


def check(name: str, *, model: str | None, options: Mapping[str, Any]) -> str:
    """Run the conformance checks of `retrievalkit.testing` on a component.

    Raises:
        InputError: A check failed; says which.
    """
    from retrievalkit import testing

    checked = []
    by_kind = set(options) <= {component.kind for component in _named(name)}
    for component in _named(name):
        own = options.get(component.kind, {}) if by_kind else options
        with tempfile.TemporaryDirectory() as folder:
            try:
                if component.kind == "pooler":
                    testing.check_pooler(name, model=model or testing.tiny_model(f"{folder}/model"), **own)
                elif component.kind == "loss":
                    testing.check_loss(name, kept=0, **own)
                elif component.kind == "pretrainer":
                    testing.check_pretrainer(name, model=model or testing.tiny_model(f"{folder}/model"), **own)
                elif component.kind == "indexer" and getattr(component.load(), "indexes", None) == "vectors":
                    testing.check_indexer(name, Path(folder) / "work", **own)
                else:
                    component.load()
            except AssertionError as error:
                msg = f"{component.kind} '{name}' does not keep the contract: {error}"
                raise InputError(msg) from error
        checked.append(f"{component.kind} '{name}': checked")
    return "\n".join(checked)


def new(name: str, kind: str, output: str | Path) -> str:
    """Write a package that brings one component called `name`, ready to install; returns what to do next."""
    if not name.isidentifier() or name != name.lower():
        msg = f"'{name}' is not snake_case, as names of components are. Choose a name such as 'first_token'."
        raise InputError(msg)
    if kind not in _TEMPLATES:
        raise UnknownNameError("template", kind, _TEMPLATES)
    class_name = "".join(part.capitalize() for part in name.split("_"))
    values = {
        "name": name,
        "class_name": class_name,
        "dashed": name.replace("_", "-"),
        "kind": kind,
        "shelf": _SHELF[kind],
    }
    module = f"retrievalkit_{name}"
    with artifacts.write_folder(output) as folder:
        (folder / module).mkdir()
        (folder / "tests").mkdir()
        files = {
            "pyproject.toml": _PYPROJECT,
            "README.md": _README,
            f"{module}/__init__.py": _HOOK,
            f"{module}/{_SHELF[kind]}.py": _TEMPLATES[kind],
            f"tests/test_{name}.py": _TESTS[kind],
        }
        for path, template in files.items():
            text = template.replace("MODULE", module)
            for key, value in values.items():
                text = text.replace(f"<{key}>", value)
            (folder / path).write_text(text, encoding="utf-8")
    return f"{output}: a plugin with the {kind} '{name}'. Next: pip install -e {output} && rkit plugins check {name}"


def _name(component: registry.Component) -> str:
    return component.name


def _named(name: str) -> list[registry.Component]:
    found = [registry.component(kind, name) for kind in registry.HOOKS if name in registry.names(kind)]
    if not found:
        known = [one for kind in registry.HOOKS for one in registry.names(kind)]
        raise UnknownNameError("component", name, known, hint="See rkit plugins list.")
    return found


_SHELF = {"pooler": "poolers", "loss": "losses", "encoder": "encoders", "indexer": "indexers"}

_PYPROJECT = """[build-system]
requires = ["hatchling>=1.25"]
build-backend = "hatchling.build"

[project]
name = "retrievalkit-<dashed>"
version = "0.1.0"
description = "The <kind> <name> for retrievalkit."
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["retrievalkit"]

[project.entry-points."retrievalkit.plugins"]
<name> = "MODULE"
"""

_README = """# retrievalkit-<dashed>

Brings the <kind> `<name>` to retrievalkit.

    pip install retrievalkit-<dashed>
    rkit plugins show <name>
"""

_HOOK = '''"""Registers the <kind> `<name>`. Nothing heavy is imported here: this runs at every start of rkit."""

from retrievalkit import hookimpl


@hookimpl
def register_<shelf>(register):
    register("<name>", "MODULE.<shelf>:<class_name>")
'''

_TEMPLATES = {
    "pooler": '''"""The pooler `<name>`: from token states to a representation."""

from retrievalkit.contracts import EncoderInfo, Needs, Pooler, Representation, Side, TokenStates


class <class_name>(Pooler):
    """Takes the state of the first token as a text's one vector.

    Args:
        scale: The vector is multiplied by this.
    """

    needs = Needs(layers=(-1,))

    def __init__(self, info: EncoderInfo, *, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, states: TokenStates, side: Side) -> Representation:
        """The representation of a batch: vectors of (batch, 1, width)."""
        return Representation(vectors=self.scale * states.last[:, :1])
''',
    "loss": '''"""The loss `<name>`: from the representations of a batch to a number to minimise."""

import torch
from torch import Tensor, nn

from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.score.rule import scores


class <class_name>(Loss):
    """Cross-entropy of the positive among all documents of the batch.

    Args:
        temperature: Scores are divided by this.
    """

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(
        self,
        queries: Representation,
        documents: Representation,
        positives: Tensor,
        progress: Progress,
        ignore: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> LossValue:
        """The mean over the queries."""
        logits = scores(queries, documents).float() / self.temperature  # (Q, D)
        if ignore is not None:
            logits = logits.masked_fill(ignore, -torch.inf)
        return LossValue(nn.functional.cross_entropy(logits, positives))
''',
}

_TESTS = {
    "pooler": """from retrievalkit import testing


def test_the_pooler_keeps_the_contract(tmp_path):
    testing.check_pooler("<name>", model=testing.tiny_model(tmp_path / "model"))
""",
    "loss": """from retrievalkit import testing


def test_the_loss_keeps_the_contract():
    testing.check_loss("<name>")
""",
}


@click.group()
def plugins() -> None:
    """What is installed: encoders, poolers, losses, indexers, pretrainers."""


@plugins.command("list")
@json_option
def list_plugins(as_json: bool) -> None:
    """List plugins and what they bring; a broken one with its reason."""
    click.echo(json.dumps(listing_as_json(), indent=2) if as_json else listing())


@plugins.command("show")
@click.argument("name")
def show_plugin(name: str) -> None:
    """Show a component: what it is, and its options with types and defaults."""
    click.echo(show(name))


@plugins.command("new")
@click.argument("name")
@click.option("--kind", type=click.Choice(["pooler", "loss"]), default="pooler", show_default=True)
@output_option
def new_plugin(name: str, kind: str, output: str) -> None:
    """Write the start of a plugin package called NAME."""
    click.echo(new(name, kind, output))


@plugins.command("check")
@click.argument("name")
@click.option("--model", help="A model to check encoders and poolers with; a tiny one where not given.")
@set_option
def check_plugin(name: str, model: str | None, settings: tuple[str, ...]) -> None:
    """Check that a component keeps the contract."""
    click.echo(check(name, model=model, options=parse(settings)))
