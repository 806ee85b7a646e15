"""English of pages, docstrings, comments and messages: the patterns of styles/Rkit (docs/contributing/style.md)."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from itertools import groupby
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
RULES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "styles/Rkit").glob("*.yml"))}
CODE_BLOCKS = re.compile(r"^```.*?^```|^ {4}.*?$", re.MULTILINE | re.DOTALL)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def pattern(rule):
    alternatives = "|".join(rule.get("tokens") or rule["swap"])
    bounded = alternatives if rule.get("nonword") else rf"\b(?:{alternatives})\b"
    return re.compile(bounded, re.IGNORECASE if rule.get("ignorecase") else 0)


PATTERNS = {name: pattern(rule) for name, rule in RULES.items()}


def prose(path):
    """Yield line, scope and text of a page, or of each docstring, block of comments and message of a module."""
    source = path.read_text()
    if path.suffix == ".md":
        yield 1, "text", CODE_BLOCKS.sub(lambda code: "\n" * code[0].count("\n"), source)
        return
    tree = ast.parse(source)
    documented = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED) and ast.get_docstring(node)]
    docstrings = {node.body[0].value for node in documented}
    for node in ast.walk(tree):
        if node in docstrings:
            yield node.lineno, "comment", node.value
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "tests" not in path.parts:
            yield node.lineno, "message", node.value if " " in node.value.strip() else ""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = enumerate(token for token in tokens if token.type == tokenize.COMMENT)
    for _, block in groupby(comments, lambda numbered: numbered[1].start[0] - numbered[0]):
        lines = [comment for _, comment in block]
        yield lines[0].start[0], "text", "\n".join(comment.string.lstrip("#: ") for comment in lines)


def hits(path):
    for start, scope, text in prose(path):
        for paragraph in re.finditer(r"(?:.*\S.*\n?)+", text):
            line = start + text.count("\n", 0, paragraph.start())
            plain = " ".join(re.sub(r'`[^`]+`|"[^"]+"', "`", paragraph[0]).split())  # without code and quotations
            for name, expression in PATTERNS.items():
                if RULES[name].get("scope", scope) == scope:
                    for hit in expression.finditer(plain):
                        around = plain[max(0, hit.start() - 40) : hit.end() + 40]
                        yield f"{path.relative_to(ROOT)}:{line} {name}: {around}"


def test_no_pattern_of_the_style_occurs():
    files = subprocess.run(["git", "ls-files", "*.md", "*.py"], capture_output=True, text=True, cwd=ROOT, check=True)
    assert [hit for name in files.stdout.split() for hit in hits(ROOT / name)] == []
