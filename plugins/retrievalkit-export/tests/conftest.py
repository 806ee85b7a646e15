"""Fixtures: checkpoints of a tiny model, and the command."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from retrievalkit import registry
from retrievalkit.cli import main
from retrievalkit.models.retriever import Retriever

# Other libraries encode a passage as a single text.
AS_OTHERS = {"query_length": 32, "document_length": 100, "title": "space"}


@pytest.fixture
def checkpoint(tiny_model, tmp_path):
    """Function that saves an untrained retriever as a checkpoint."""

    def save(pooler, encoder=None, *, separate_towers=False, **options):
        if pooler not in registry.names("pooler"):
            pytest.skip(f"no installed plugin has the pooler {pooler}")
        folder = tmp_path / "checkpoint"
        folder.mkdir()
        Retriever.create(
            tiny_model,
            pooler=pooler,
            pooler_options=options,
            encoder_options={**AS_OTHERS, **(encoder or {})},
            separate_towers=separate_towers,
        ).save(folder)
        return folder

    return save


@pytest.fixture
def export(tmp_path):
    """Function that runs `rkit export` and returns the folder, or the error message."""

    def run(source, to, *options):
        output = tmp_path / "exported"
        result = CliRunner().invoke(main, ["export", str(source), str(output), "--to", to, *map(str, options)])
        if result.exit_code:
            assert result.exit_code == 2, result.output
            assert not output.exists()
            return result.stderr
        return output

    return run
