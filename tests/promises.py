"""Names and signatures promised to plugins; `python tests/promises.py` writes those of this version.

A module promises the names in its `__all__`, or else its definitions without a leading underscore; modules below
`retrievalkit.data` promise only the names listed here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import re
from pathlib import Path

from retrievalkit.hookspecs import VERSION

FOLDER = Path(__file__).parent / "contracts"
PROMISED = {
    "retrievalkit": ["hookimpl"],
    "retrievalkit.contracts.commands": None,
    "retrievalkit.contracts": None,
    "retrievalkit.contracts.backends": [
        "Entry", "Precision", "fingerprint_value", "full_disk_named", "model_input", "private_folder", "read_entry",
        "write_entry",
    ],
    "retrievalkit.data.convert": ["FieldOptions"],
    "retrievalkit.data.corpus": [
        "Columns", "Corpus", "Passage", "open_corpus", "open_own", "passage_of", "plain_passage", "write_corpus",
    ],
    "retrievalkit.data.examples": ["Example", "check_examples", "read_examples"],
    "retrievalkit.data.files": ["LONGEST_LINE", "existing", "fingerprint", "uncollected"],
    "retrievalkit.data.inputs": ["judgements", "model", "passages", "place", "queries"],
    "retrievalkit.data.tokenized_text": None,
    "retrievalkit.data.passage_parts": [
        "Document", "DocumentHit", "Part", "by_document", "open_document", "parts_of", "words_in",
    ],
    "retrievalkit.data.qrels": ["read_qrels"],
    "retrievalkit.data.queries": ["Query", "check_queries", "read_queries"],
    "retrievalkit.data.records": ["HALF_CHARACTER", "Record", "first_row"],
    "retrievalkit.data.same_text": ["FORMS", "PLAIN", "plain_fields", "plain_form"],
    "retrievalkit.data.snippets": ["matches"],
    "retrievalkit.data.runs": ["read_run", "write_run"],
    "retrievalkit.data.forms": ["PASSAGE_IDS"],
    "retrievalkit.data.sources": None,
    "retrievalkit.data.sentences": None,
    "retrievalkit.data.truncation": None,
    "retrievalkit.data.vectors": None,
    "retrievalkit.contracts.declarations": [
        "Argument", "Command", "CommandOptions", "Flag", "Place", "ReadingOptions", "Reads", "Rest",
        "WritingOptions", "command",
    ],
    "retrievalkit.errors": None,
    "retrievalkit.hookspecs": None,
    "retrievalkit.scoring.lexical": None,
    "retrievalkit.registry": [
        "HOOKS",
        "Component",
        "Option",
        "Plugin",
        "convert",
        "create",
        "get",
        "names",
        "options",
        "plugins",
    ],
    "retrievalkit.reporting.notices": ["gathered", "join", "note", "show"],
    "retrievalkit.scoring": None,
    "retrievalkit.search.public": None,
    "retrievalkit.training.public": None,
    "retrievalkit_pretrain.masking": None,
    "retrievalkit_pretrain.spans": None,
    "retrievalkit_testing": None,
}  # fmt: skip


def lines() -> list[str]:
    """Return a line for each promised name and member, sorted."""
    promised = []
    for module, chosen in PROMISED.items():
        loaded = importlib.import_module(module)
        for name in chosen or names_in(loaded):
            promised += [f"{module}.{line}" for line in _lines_of(name, getattr(loaded, name))]
    return sorted(promised)


def names_in(module) -> list[str]:
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and (name.isupper() or getattr(value, "__module__", None) == module.__name__)
    ]


def _lines_of(name, value) -> list[str]:
    if not inspect.isclass(value):
        return [name if name == "hookimpl" else f"{name}{_signature(value)}"]
    members = {}
    for base in reversed(value.__mro__):
        if base.__module__.startswith("retrievalkit"):
            own = vars(base)
            members |= {key: value for key, value in own.items() if not key.startswith("_") or key == "__call__"}
            members |= dict.fromkeys(key for key in own.get("__annotations__", {}) if not key.startswith("_"))
            members = dict.fromkeys(_documented_attributes(base)) | members
    # Constructors that other libraries define are not promised: torch's modules, enumerations, protocols.
    made_here = dataclasses.is_dataclass(value) or any(
        base.__module__.startswith("retrievalkit")
        and "__init__" in vars(base)
        and not getattr(base, "_is_protocol", False)
        for base in value.__mro__
    )
    options = _signature(value) if made_here else ""
    fields = {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
    return [
        f"{name}{options}",
        *(f"{name}.{key}{_of_member(member)}" for key, member in members.items() if key not in fields),
    ]


def _documented_attributes(value) -> list[str]:
    """Return the names in the section "Attributes" of a class."""
    section = inspect.cleandoc(vars(value).get("__doc__") or "").partition("\nAttributes:\n")[2]
    return re.findall(r"^    (\w+):", section.partition("\n\n")[0], re.MULTILINE)


def _of_member(value) -> str:
    value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    return _signature(value) if inspect.isroutine(value) else ""


def _signature(value) -> str:
    if not callable(value) or getattr(value, "__module__", "").startswith("typing"):
        return ""
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):
        return ""
    public = [parameter for parameter in signature.parameters.values() if not parameter.name.startswith("_")]
    # Defaults that are functions have an address; whether annotations are quoted depends on the version of Python.
    text = re.sub(r"<function .*? at 0x[0-9a-f]+>", "...", str(signature.replace(parameters=public)))
    return _without_metadata(re.sub(r"['\"]|typing\.(?=Annotated)", "", text))


def _without_metadata(text: str) -> str:
    """Replace annotations with metadata by their types: `Annotated[int, Ge(1)]` by `int`."""
    while (start := text.find("Annotated[")) >= 0:
        inner, depth, parts = start + len("Annotated["), 0, [""]
        for end in range(inner, len(text)):
            letter = text[end]
            if letter == "]" and not depth:
                break
            depth += (letter in "[(") - (letter in "])")
            if letter == "," and not depth:
                parts.append("")
            else:
                parts[-1] += letter
        text = text[:start] + parts[0] + text[end + 1 :]
    return text


def written(version: str) -> list[str]:
    return (FOLDER / f"{version}.txt").read_text(encoding="utf-8").splitlines()


def versions() -> list[str]:
    return sorted((path.stem for path in FOLDER.glob("*.txt")), key=numbers)


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def digest(promises: list[str]) -> str:
    """Return eight characters that change with the lines, recorded in CHANGELOG.md with the version."""
    return hashlib.blake2b("\n".join(promises).encode(), digest_size=4).hexdigest()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{VERSION}.txt").write_text("\n".join(lines()) + "\n", encoding="utf-8")
    print("Then: python docs/_generate.py")
    print(f"In CHANGELOG.md, with the names that changed: contract {VERSION} ({digest(lines())})")
