"""Mining with everything by name, as the command line has it."""

from __future__ import annotations

from pathlib import Path

from retrievalkit.mine.program import MiningFiles, mine, parse_settings


def mine_by_name(source, *, corpus, examples, output, merge_with=None, split=None, cluster=None, **settings):
    """`mine` from paths and settings."""
    names = [source] if isinstance(source, str | Path) else source
    sources, options = parse_settings(names, settings, cluster)
    files = MiningFiles(corpus=corpus, examples=examples, output=output, merge_with=merge_with, split=split)
    return mine(sources, files, options)
