"""`rkit plugins new`: renders the template of a package.

The template is made of real files in plugin_template/: package/ holds the files that every kind has, and a folder for
each kind the rest. They are valid as they stand, for a component called `my_name`; rendering replaces that name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from retrievalkit import artifacts
from retrievalkit.errors import InputError, check_choice

KINDS = ("pooler", "loss")

_TEMPLATE = Path(__file__).with_name("plugin_template")


def new(name: str, kind: str, output: str | Path) -> str:
    """Write a package with one component called `name`, ready to install; returns what to do next."""
    if not name.isidentifier() or name != name.lower():
        msg = f"'{name}' is not snake_case, as names of components are. Choose a name such as 'first_token'."
        raise InputError(msg)
    check_choice("template", kind, KINDS)
    values = {
        "my_name": name,
        "my-name": name.replace("_", "-"),
        "MyName": "".join(part.capitalize() for part in name.split("_")),
        "KIND": kind,
    }
    with artifacts.write_folder(output) as folder:
        for path, text in _files(kind):
            target = folder / _render(str(path), values)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_render(text, values), encoding="utf-8")
    return f"{output}: a plugin with the {kind} '{name}'. Next: pip install -e {output} && rkit plugins check {name}"


def _files(kind: str) -> Iterator[tuple[Path, str]]:
    for part in ("package", kind):
        for path in sorted((_TEMPLATE / part).rglob("*")):
            # An installer may have compiled the modules.
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(_TEMPLATE / part), path.read_text(encoding="utf-8")


def _render(text: str, values: dict[str, str]) -> str:
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text
