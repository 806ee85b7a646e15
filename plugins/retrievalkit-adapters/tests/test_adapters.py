"""Adapters of toolkits that are not installed say what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("toolkit", "package"), [("langchain", "langchain_core"), ("haystack", "haystack")])
def test_a_toolkit_that_is_not_installed_is_named(toolkit, package):
    program = f"import sys; sys.modules['{package}'] = None; import retrievalkit_adapters.{toolkit}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"pip install 'retrievalkit[{toolkit}]'" in ended.stderr
