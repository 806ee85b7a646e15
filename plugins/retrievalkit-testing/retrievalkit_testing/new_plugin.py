"""`rkit plugins new` and `package`: write a plugin package from a template, or from a single-file plugin.

The template consists of real files in plugin_template/: package/ has the files of every package, and there is a folder
for each kind with a component and its test. They are valid code for a component `my_name`; rendering replaces the name.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal, get_args

from retrievalkit import hookspecs, registry
from retrievalkit.contracts.commands import write_folder
from retrievalkit.contracts.declarations import Argument, Flag, Place, command
from retrievalkit.errors import InputError, PluginError

Kind = Literal[
    "pooler", "compressor", "loss", "encoder", "indexer", "pretrainer", "source", "filter", "fusion", "metric",
    "reranker",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)

_TEMPLATE = Path(__file__).with_name("plugin_template")
_COMPARED = tuple(kind for kind in KINDS if kind not in ("compressor", "source", "metric"))
"""Kinds with a baseline that the recipe compares with."""

_CORE = '"retrievalkit>=0.1"'
_REQUIRED = {"pretrainer": {_CORE: f'{_CORE}, "retrievalkit-pretrain>=0.1"'}}
"""Kind -> replacements in pyproject.toml."""

_WIDTH = 120


@dataclass(frozen=True)
class NewOptions:
    """Options of `plugins new`.

    Args:
        name: The name of the component, in snake_case.
        output: The folder to write; if it is a plugin package, the component is added to it.
        kind: The kind of component.
    """

    name: Annotated[str, Argument()]
    output: Annotated[Place, Flag(("--output", "-o"))]
    _: KW_ONLY
    kind: Kind = "pooler"


@command("plugins new", NewOptions)
def new_plugin(options: NewOptions) -> str:
    """Write a plugin package with a component, or add a component to a package, and print the next steps."""
    name, kind = options.name, options.kind
    _check_name(name)
    class_name = "".join(part.capitalize() for part in name.split("_"))
    if (project := Path(options.output, "pyproject.toml")).is_file():
        return _add(name, kind, class_name, project)
    component = _component(kind, name, f"retrievalkit_{name}.{_plural(kind)}:{class_name}")
    return _write(
        [component], name, options.output, dict(_files(kind)), {"MyName": class_name, **_REQUIRED.get(kind, {})}
    )


def _component(kind: str, name: str, target: str, help: str = "") -> registry.Component:  # noqa: A002 - its field
    return registry.Component(kind, name, target, "", "", "", help)


def _add(name: str, kind: Kind, class_name: str, project: Path) -> str:
    """Add a component of a kind to the package of a project: its module, its hook and its tests."""
    points = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {}).get("entry-points", {})
    package = next(iter(points.get("retrievalkit.plugins", {}).values()), "")
    top = project.parent / package / "__init__.py"
    if not package or not top.is_file():
        msg = f"'{project}' names no package of plugins (entry point retrievalkit.plugins). Choose another --output."
        raise InputError(msg)
    file = top.with_name(f"{_plural(kind)}.py")
    file = top.with_name(f"{name}.py") if file.exists() else file
    target = f"{package}.{file.stem}:{class_name}"
    source, call = top.read_text(encoding="utf-8"), f'    register("{name}", "{target}")\n'
    if f'"{name}"' in source or file.exists():
        msg = f"'{top}' has the name '{name}' already. Choose another."
        raise InputError(msg)
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    if ends := [node.end_lineno for node in functions if node.name == registry.HOOKS[kind]]:
        lines = source.splitlines(keepends=True)
        source = "".join([*lines[: ends[0]], call, *lines[ends[0] :]])
    else:
        hook = _hooks([_component(kind, name, target)]).partition("@hookimpl")
        source = f"{source.rstrip()}\n\n\n{hook[1]}{hook[2]}"
    values = {f"retrievalkit_my_name.{_plural(kind)}": f"{package}.{file.stem}", "my_name": name, "MyName": class_name}
    for path, text in _files(kind):
        if path == f"retrievalkit_my_name/{_plural(kind)}.py":
            file.write_text(_render(text, values), encoding="utf-8")
        elif path in ("tests/test_my_name.py", "tests/test_conforms.py"):
            test = project.parent / "tests" / f"{path[6:-3].replace('my_name', '')}_{name}.py".replace("__", "_")
            test.parent.mkdir(exist_ok=True)
            test.write_text(_render(text, values), encoding="utf-8")
    top.write_text(source, encoding="utf-8")
    if "retrievalkit-pretrain" not in (text := project.read_text(encoding="utf-8")):
        project.write_text(_render(text, _REQUIRED.get(kind, {})), encoding="utf-8")
    return f"{file}: the {kind} '{name}', registered in {top}. Next: rkit plugins check {name}"


@dataclass(frozen=True)
class PackageOptions:
    """Options of `plugins package`.

    Args:
        file: A single-file plugin, as named in RKIT_PLUGIN_FILES.
        output: The folder to write.
    """

    file: Annotated[Place, Argument()]
    output: Annotated[Place, Flag(("--output", "-o"))]


@command("plugins package", PackageOptions)
def package_plugin(options: PackageOptions) -> str:
    """Write a plugin package with the components of a single-file plugin, and print the next steps."""
    path = Path(options.file)
    plugin = registry.read_file(path)
    if plugin.error or not plugin.components:
        problem = plugin.error or "it registers nothing"
        msg = f"'{path}' is not a plugin: {problem.rstrip('.')}. Correct it: RKIT_PLUGIN_FILES={path} rkit plugins list"
        raise PluginError(msg)
    stem, source = path.stem, path.read_text(encoding="utf-8")
    _check_name(stem)
    own, packaged = re.compile(rf"^{stem}:"), f"retrievalkit_{stem}.{stem}:"
    components = [replace(each, target=own.sub(packaged, each.target)) for each in plugin.components]
    # The template without its component, plus the existing components.
    files = {
        name: text
        for name, text in _files(_main(components).kind)
        if "/recipes/" in name or not name.startswith(("retrievalkit_my_name/", "tests/"))
    }
    names = [each.name for each in components if each.kind not in ("command", "check", "recipe")]
    names = list(dict.fromkeys(names or [components[0].name]))
    tests = [f'test_{name.replace("-", "_")} = conformance("{name}")' for name in names]
    files["tests/test_conforms.py"] = "\n".join(["from retrievalkit_testing import conformance", "", *tests, ""])
    files[f"retrievalkit_my_name/{stem}.py"] = _without_hooks(source)
    requirements = ["retrievalkit>=0.1", *_distributions(source)]
    values = {_CORE: ", ".join(f'"{requirement}"' for requirement in requirements)}
    text = _write(components, stem, options.output, files, values)
    return f"{text}. Unset RKIT_PLUGIN_FILES first: both have the name."


def _check_name(name: str) -> None:
    # It also names the recipe's prefix and the distribution.
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        msg = f"'{name}' is not snake_case, as names of components are. Choose a name such as 'first_token'."
        raise InputError(msg)


def _plural(kind: str) -> str:
    return registry.HOOKS[kind].removeprefix("register_")


def _files(kind: str) -> Iterator[tuple[str, str]]:
    """Path -> text of the template files of a kind, before names are filled in."""
    for part in ("package", kind):
        folder = _TEMPLATE / part
        for path in sorted(folder.rglob("*")):
            # An installer may have compiled the modules, and a linter may have left a cache.
            if path.is_file() and not re.search(r"_cache/|__pycache__/", path.as_posix()):
                name = path.relative_to(folder).as_posix()
                if kind in _COMPARED or "/recipes/" not in name:
                    yield name, path.read_text(encoding="utf-8")


def _main(components: Sequence[registry.Component]) -> registry.Component:
    """Return the component that the package and its recipe are named after."""
    return next((each for each in components if each.kind in _COMPARED), components[0])


def _write(
    components: Sequence[registry.Component],
    stem: str,
    output: Place,
    files: Mapping[str, str],
    values: Mapping[str, str],
) -> str:
    main = _main(components)
    distribution = f"retrievalkit-{stem.replace('_', '-')}"
    values = {
        "retrievalkit_my_name": f"retrievalkit_{stem}",
        "retrievalkit-my-name": distribution,
        "values: {KIND:": f"values: {{{main.kind}:",
        "KIND": " and ".join(dict.fromkeys(each.kind for each in components)),
        "my_name": main.name,
        **values,
    }
    files, registered = dict(files), list(components)
    if any(name.endswith("recipes/compare.yaml") for name in files):
        description = f"{main.name} and its baseline."
        registered.append(_component("recipe", distribution, f"retrievalkit_{stem}.recipes:FOLDER", description))
    else:
        files["README.md"] = re.sub(r"## Results\n.*?(?=## Develop\n)", "", files["README.md"], flags=re.DOTALL)
    files["retrievalkit_my_name/__init__.py"] = _hooks(registered)
    with write_folder(Path(output)) as folder:
        for path, text in files.items():
            target = folder / _render(path, values)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_render(text, values), encoding="utf-8")
    listed = ", ".join(f"the {each.kind} '{each.name}'" for each in components)
    return f"{output}: a plugin with {listed}. Next: pip install -e {output} && rkit plugins check {main.name}"


def _hooks(components: Sequence[registry.Component]) -> str:
    """Return the source of the module that registers the components."""
    lines = [
        f'"""Registers {", ".join(f"the {each.kind} `{each.name}`" for each in components)}.',
        "",
        "Nothing heavy is imported here: this module is imported at every start of rkit.",
        '"""',
        "",
        *_IMPORTS,
        "",
        f'retrievalkit_contract = "{hookspecs.VERSION.rpartition(".")[0]}"',
    ]
    for kind, group in groupby(components, key=lambda each: each.kind):
        some = list(group)
        lines += ["", "", "@hookimpl", f"def {registry.HOOKS[kind]}(register: Register) -> None:"]
        lines += [f'    """Register the {kind if len(some) == 1 else _plural(kind)}."""']
        for each in some:
            arguments = [f'"{each.name}"', f'"{each.target}"']
            arguments += [f"help={json.dumps(each.help)}"] if each.help else []
            arguments += [f'group="{each.group}"'] if each.kind == "command" else []
            # Formatted as ruff would.
            call, broken = f"    register({', '.join(arguments)})", ",\n        ".join(arguments)
            lines.append(call if len(call) <= _WIDTH else f"    register(\n        {broken},\n    )")
    return "\n".join([*lines, ""])


def _render(text: str, values: Mapping[str, str]) -> str:
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text


def _without_hooks(source: str) -> str:
    """Return the source without its register functions and the imports for them."""
    lines = source.splitlines()
    for node in reversed(ast.parse(source).body):
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
        if "hookimpl" in map(ast.unparse, decorators) or ast.unparse(node) in _IMPORTS:
            first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            del lines[first - 1 : node.end_lineno]
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)).strip() + "\n"


_IMPORTS = ("from retrievalkit import hookimpl", "from retrievalkit.hookspecs import Register")


def _distributions(source: str) -> list[str]:
    """Return the distributions that the source imports, other than Python and retrievalkit; sorted."""
    wanted = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            wanted |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            wanted.add(node.module.partition(".")[0])
    known = importlib.metadata.packages_distributions()
    return sorted({known.get(name, [name])[0] for name in wanted - set(sys.stdlib_module_names) - {"retrievalkit"}})
