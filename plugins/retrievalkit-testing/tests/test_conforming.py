"""One line in a package's tests: each property is a named test, and a failure names the property and the line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from forked_commands import pytest_in
from killed_processes import forks

TESTS = """
import retrievalkit_testing as testing

test_conforms = testing.conformance("double_scores")
"""
CONFTEST = """
from retrievalkit_testing import pytest_plugin

def pytest_configure(config):
    # If retrievalkit was installed before it had the plugin.
    if not config.pluginmanager.has_plugin("retrievalkit"):
        config.pluginmanager.register(pytest_plugin, "retrievalkit")
"""


@forks
def test_a_line_gives_a_test_for_each_property(tmp_path):
    (tmp_path / "test_mine.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    broken = Path(__file__).parent / "faults.py"
    words = ("-q", "-k", "brute_force or options_typed")
    done = pytest_in(tmp_path, *words, environment={"RKIT_PLUGIN_FILES": str(broken)})
    assert "1 failed, 1 passed" in done.out, done
    assert "test_conforms[indexer double_scores: brute_force]" in done.out
    assert "faults.py:" in done.out


def test_the_pytest_plugin_imports_nothing_heavy():
    heavy = "{'torch', 'numpy', 'pydantic'} & set(sys.modules)"
    subprocess.run(
        [sys.executable, "-c", f"import sys, retrievalkit_testing.pytest_plugin; assert not {heavy}"], check=True
    )
