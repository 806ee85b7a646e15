"""MkDocs hook: generates pages from the sources, so that nothing is written twice.

Commands come from click, components from the registry, methods from the plugins' READMEs, and a few pages are files of
the repository. A new command, component or plugin gets its page without a line here. A tutorial is also a notebook.
"""

from __future__ import annotations

import html
import inspect
import json
import re
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import click

from retrievalkit import registry
from retrievalkit.cli.main import main
from retrievalkit.contracts import VERSION
from retrievalkit.registry.component_options import how_to_set

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
TUTORIALS = sorted(page for page in (ROOT / "docs" / "tutorials").glob("*.md") if page.stem != "index")
COMMANDS = main.with_all_commands().commands
REPOSITORY = "https://github.com/retrievalkit/retrievalkit"
PAGES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
PROMISES = "docs/reference/promises.md"
# Weights of folders in the site's search: a reader looks for a task first, then for a name.
BOOSTS = {"how-to": 4.0, "coming-from": 3.0, "tutorials": 2.0, "commands": 1.5, "reference": 0.5, "changelog.md": 0.1}
WITHOUT_OPTIONS = ("command", "check", "source", "reranker", "recipe", "workers", "backend")
PLURALS = {kind: hook.removeprefix("register_") for kind, hook in registry.HOOKS.items()}

_HEADED = r"""::: \1
    options:
      heading: rk.\2
      heading_level: 3
      show_root_heading: true
      show_root_toc_entry: true
"""

_COMMANDS = """# Commands

Every command has `--help`. Progress goes to standard error, results to standard output, and `--json` prints a
machine-readable result. Exit code 0: success; 1: the work failed; 2: wrong usage or bad input.

| command | what it does |
|---|---|"""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the generated pages into the navigation."""
    assert config.nav is not None
    for title, pages in (
        ("Commands", [{f"rkit {name}": _page_of(name)} for name in COMMANDS]),
        ("Components", [{name.capitalize(): f"components/{name}.md"} for name in PLURALS.values()]),
        ("Methods and plugins", [{folder.name: f"methods/{folder.name}.md"} for folder in _plugin_folders()]),
    ):
        _section(config.nav, title).extend(pages)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and a notebook for each tutorial."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=_for_site(text)))
    for page in TUTORIALS:
        files.append(
            File.generated(config, f"tutorials/{page.stem}.ipynb", content=json.dumps(notebook(page), indent=1))
        )
    return files


def notebook(page: Path) -> dict[str, Any]:
    """Convert a tutorial to a Jupyter notebook.

    A block of Bash becomes a `%%bash` cell, and a block after `<!-- file: NAME -->` a `%%writefile NAME` cell.
    """
    text, end, cells = page.read_text(), 0, []
    for block in re.finditer(
        r"^(?:<!-- file: (\S+) -->\n)?```(python|bash)\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE
    ):
        magic = f"%%writefile {block[1]}\n" if block[1] else "%%bash\n" if block[2] == "bash" else ""
        cells += [_cell("markdown", text[end : block.start()]), _cell("code", magic + block[3])]
        end = block.end()
    cells.append(_cell("markdown", text[end:]))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {
        "cells": [cell for cell in cells if cell["source"]],
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 4,
    }


def _cell(kind: str, source: str) -> dict[str, Any]:
    if kind == "code":
        return {"cell_type": kind, "metadata": {}, "source": source, "outputs": [], "execution_count": None}
    place = f"{REPOSITORY}/blob/main/docs/tutorials/"  # a downloaded notebook has no pages next to it
    linked = re.sub(r"\]\((?!http)([^)]+)\)", lambda link: f"]({urljoin(place, link[1])})", source.strip())
    return {"cell_type": kind, "metadata": {}, "source": linked}


def pages() -> dict[str, str]:
    """Return the generated pages: path below docs/ -> Markdown."""
    texts = {_page_of(name): _command(name, command) for name, command in COMMANDS.items()}
    texts["commands/index.md"] = _commands()
    texts |= {f"components/{plural}.md": _components(kind, plural) for kind, plural in PLURALS.items()}
    texts |= {f"methods/{folder.name}.md": (folder / "README.md").read_text() for folder in _plugin_folders()}
    return texts | {page: (ROOT / path).read_text() for page, path in PAGES.items()}


def promises() -> str:
    """Return the page of promises with the names that plugins may rely on, by module."""
    lines = (ROOT / "tests" / "contracts" / f"{VERSION}.txt").read_text().splitlines()
    modules: dict[str, list[str]] = {}
    for line in lines:
        parts = line.partition("(")[0].split(".")
        depth = 3 if parts[1] == "data" else 1 if parts[1] == "hookimpl" or parts[0] == "retrievalkit_testing" else 2
        modules.setdefault(".".join(parts[:depth]), []).append(line.split(".", depth)[depth])
    shown = [f"### {module}\n\n```text\n" + "\n".join(names) + "\n```\n" for module, names in modules.items()]
    written, heading, _ = (ROOT / PROMISES).read_text().partition("\n## Names\n")
    return "\n".join([f"{written}{heading}", f"Contract {VERSION}. Written by `python docs/_generate.py`.\n", *shown])


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Replace `<!-- from FILE: HEADING -->` by the section of that heading, and `<!-- from FILE -->` by the file.

    Links to docs/, which are right in files outside of it, lead there from the page. A tutorial links to its notebook.
    """
    if ROOT / "docs" / page.file.src_uri in TUTORIALS:
        title, _, rest = markdown.partition("\n")
        markdown = f"{title}\n\n[Download this page as a notebook]({Path(page.file.src_uri).stem}.ipynb)\n{rest}"
    if page.file.src_uri == "reference/python.md":  # the options of a command's function are on the command's page
        markdown = re.sub(
            r"(?m)^::: (\S+\.(\w+))\n(?=\nKeywords)",
            f"{_HEADED}      show_signature: false\n      separate_signature: false\n",
            markdown,
        )
        markdown = re.sub(r"(?m)^::: (\S+\.(\w+))\n(?!    )", _HEADED, markdown)
    text = re.sub(r"<!-- from (\S+?)(?:: (.+?))? -->", lambda match: _part(match[1], match[2]), markdown)
    return text.replace("(docs/", "(" + "../" * page.file.src_uri.count("/"))


def on_page_content(content: str, page: Page, **_: Any) -> str:
    """Weight a page in the site's search by its folder, and mark short code, which lines do not break inside."""
    top = page.file.src_uri.partition("/")[0]
    page.meta["search"] = {"boost": BOOSTS.get(top, 1.0)}
    return re.sub(r"<code>(?=[^<]{1,30}</code>)", '<code class="short">', content)


def on_post_page(output: str, **_: Any) -> str:
    """Keep the theme's script from asking api.github.com for the repository's stars."""
    return output.replace(' data-md-component="source"', "")


def _part(path: str, heading: str | None) -> str:
    text = (ROOT / path).read_text()
    # Links start from the folder of the file.
    text = re.sub(r"\]\((?!\w+:|#|/)([^)\s]+)\)", lambda link: f"]({normpath(join(dirname(path), link[1]))})", text)
    if heading is None:
        return _for_site(text.partition("\n")[2])  # without its title
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert section, f"{path} has no section '{heading}', which a page of the documentation shows"
    return _for_site(section[1])


def _plugin_folders() -> list[Path]:
    return sorted(path for path in (ROOT / "plugins").iterdir() if (path / "README.md").is_file())


def _section(nav: list[Any], title: str) -> list[Any]:
    """Find the section with a title, at any depth."""
    for entry in nav:
        for name, below in entry.items() if isinstance(entry, dict) else ():
            if name == title:
                assert isinstance(below, list)
                return below
            if isinstance(below, list) and (found := _section(below, title)):
                return found
    return []


def _page_of(command: str) -> str:
    return f"commands/rkit-{command}.md"  # there is a command called index


def _command(name: str, command: click.Command, level: int = 1) -> str:
    """Return a command's usage, help and options, and those of its subcommands."""
    context = click.Context(command, info_name=f"rkit {name}")
    lines = [f"{'#' * level} rkit {name}", "", "```text", context.get_usage().removeprefix("Usage: "), "```", ""]
    lines += [_help(command), ""]
    if not isinstance(command, click.Group):
        options = [option for option in command.get_params(context) if isinstance(option, click.Option)]
        records = [option.get_help_record(context) for option in options]
        lines += ["| option | meaning |", "|---|---|", *(_row(*record) for record in records if record), ""]
    if isinstance(command, click.Group):
        lines += [_command(f"{name} {sub}", below, level + 1) for sub, below in command.commands.items()]
    return "\n".join(lines)


def _help(command: click.Command) -> str:
    """Return the help as Markdown; a paragraph after a backspace, whose lines click does not join, becomes code."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(re.sub(r"(?s)\A[\b]\n(.*)", r"```bash\n\1\n```", text) for text in paragraphs)


def _first_line(command: click.Command) -> str:
    return _help(command).splitlines()[0]


def _row(names: str, text: str) -> str:
    cells = (f"<code>{html.escape(names)}</code>", html.escape(text))
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _commands() -> str:
    rows = [f"| [`{name}`](rkit-{name}.md) | {_first_line(command)} |" for name, command in COMMANDS.items()]
    return "\n".join([_COMMANDS, *rows, ""])


def _components(kind: str, plural: str) -> str:
    """Return the components of a kind, with the options that their classes document."""
    lines = [f"# {plural.capitalize()}", "", f"Components of the kind `{kind}`, as in `rkit plugins list`.", ""]
    if kind not in WITHOUT_OPTIONS:
        lines[2] += f" Each parameter is an option: `{how_to_set(kind, 'COMPONENT')}`."
    for name in registry.names(kind):
        component = registry.component(kind, name)
        lines += [
            f"## {name}",
            "",
            f"*{component.distribution}*",
            "",
            f"::: {component.target.replace(':', '.')}",
            "    options:",
            "      members: false",
            "      show_bases: false",
            "      show_signature: false",
            "",
        ]
    return "\n".join(lines)


def _for_site(text: str) -> str:
    """Point links to files outside the site to the repository, and unescape pipes in a table's code (unlike GitHub)."""
    text = re.sub(r"`[^`\n]+`", lambda code: code[0].replace("\\|", "|"), text)
    text = re.sub(r"\((?:\.\./)*README\.md(#[\w-]+)?\)", rf"({REPOSITORY}\1)", text)
    text = text.replace(f"({REPOSITORY}/blob/main/docs/", "(docs/")
    return re.sub(
        r"\((plugins|recipes|benchmarks|examples|retrievalkit|tests|\.github)((?:/[^)\s]*)?)\)",
        rf"({REPOSITORY}/tree/main/\1\2)",
        text,
    )


if __name__ == "__main__":
    (ROOT / PROMISES).write_text(promises(), encoding="utf-8")
