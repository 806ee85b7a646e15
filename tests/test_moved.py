"""Plugins that were written before modules moved still load, and are told the new names."""

from __future__ import annotations

import importlib
import sys

import pytest

from retrievalkit._moved import MOVED

OLD_PLUGIN = """
from retrievalkit import hookimpl
from retrievalkit.contracts import Needs, Pooler, Representation
from retrievalkit.data.csr import spread
from retrievalkit.data.garbage import uncollected
from retrievalkit.data.ids import Ids
from retrievalkit.data.postings import Postings
from retrievalkit.data.vectors import VectorBlock, VectorStore
from retrievalkit.lexical import text_mask
from retrievalkit.prediction import token_loss
from retrievalkit.score import check_k, scores
from retrievalkit.tiles import is_single


class Old(Pooler):
    needs = Needs()

    def __init__(self, info, *, scale: float = 1.0):
        super().__init__()
        assert callable(is_single) and callable(token_loss) and callable(spread)

    def forward(self, states, side):
        return Representation(states.last[:, :1])


@hookimpl
def register_poolers(register):
    register("old", "old_plugin:Old")
"""


def test_a_plugin_of_the_old_layout_loads_and_is_told_the_new_names(tmp_path, monkeypatch, fresh_registry):
    """The warning stands at the line of the plugin that imports."""
    from retrievalkit import registry

    (tmp_path / "old_plugin.py").write_text(OLD_PLUGIN)
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(tmp_path / "old_plugin.py"))
    for name in MOVED:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.warns(DeprecationWarning, match="will be removed in retrievalkit") as caught:
        assert registry.get("pooler", "old").__name__ == "Old"
    ours = [one for one in caught if "will be removed in retrievalkit 0.3" in str(one.message)]
    told = [str(one.message).partition(". The old")[0] for one in ours]
    assert "'retrievalkit.tiles' is now 'retrievalkit.score'" in told
    assert "'retrievalkit.data.ids' is now 'retrievalkit.data.vectors'" in told
    assert {one.filename for one in ours} == {str(tmp_path / "old_plugin.py")}


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_gives_the_definitions_of_the_new_module(old, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=rf"'{old}' is now '"):
        alias = importlib.import_module(old)
    module = importlib.import_module(MOVED[old])
    public = [name for name in vars(module) if not name.startswith("_")]
    assert public
    assert all(getattr(alias, name) is getattr(module, name) for name in public)


def test_a_name_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"retrievalkit\.nowhere"):
        importlib.import_module("retrievalkit.nowhere")
