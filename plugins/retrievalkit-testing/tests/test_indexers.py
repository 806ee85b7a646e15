"""The conformance kit of indexers: one fault in each of these is found, by the property of its name, with the line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from retrievalkit_testing.indexers import INDEXERS, check_indexer

FAULTS = {
    "shifted_at_shards": "shards",
    "kept_in_memory": "state_is_saved",
    "points_to_the_source": "moved_folder",
    "absolute_path": "moved_folder",
    "first_vector_only": "brute_force",
    "cosine": "brute_force",
    "ties_by_id": "ties",
    "ties_backwards": "ties",
    "double_scores": "float32_scores",
    "cuts_k": "large_k",
    "not_a_number": "finite_scores",
    "worst_first": "best_first",
    "finds_twice": "large_k",
    "other_alone": "batch_of_queries",
    "unknown_is_zero": "given_scores",
    "other_scale": "given_scores",
    "lowers_ids": "odd_ids",
    "splits_ids": "odd_ids",
    "shared_by_the_class": "several_open",
    "writes_into_the_source": "source_untouched",
    "square_size": "size_of_folder",
    "remembers_answers": "memory",
    "counts_in_words": "build_open_search",
    "squeezes_one": "one_text",
    "needs_a_query": "no_queries",
    "writes_a_manifest": "manifest",
    "forgets_deleted": "segments",
    "nonsense": "sensible_texts",
    "without_titles": "sensible_texts",
    "needs_a_word": "odd_texts",
    "wrong_terms": "terms",
}
SLOW_FAULTS = {"kept_in_the_class": "other_process"}
PROCESSES = ("other_process", "killed_build")


@pytest.fixture(autouse=True)
def broken(monkeypatch, fresh_registry):
    """Indexers that are wrong in one way each."""
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(Path(__file__).parent / "broken_indexers.py"))
    fresh_registry()


def all_for(fault):
    """A property, with those that it rests on."""
    names = [fault]
    for one in names:
        names += [other for other in INDEXERS.properties[one].after if other not in names]
    return names


def assert_found(name, fault, only=None):
    failures = INDEXERS.report(name, only=only).failures
    assert [one.property for one in failures] == [fault], [str(one) for one in failures]
    message = str(failures[0])
    assert f"indexer '{name}' lacks the property '{fault}'" in message
    assert re.search(r"broken_indexers\.py:\d+ ", message), message


@pytest.mark.parametrize(("name", "fault"), FAULTS.items())
def test_a_fault_is_found_by_the_property_that_names_it(name, fault):
    assert_found(name, fault, only=all_for(fault))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fault"), SLOW_FAULTS.items())
def test_a_fault_of_processes_is_found(name, fault):
    assert_found(name, fault, only=all_for(fault))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first_vector_only", "square_size", "lowers_ids", "wrong_terms"])
def test_a_fault_is_found_among_all_properties(name):
    """Others may fail with it; the one that names it does."""
    assert FAULTS[name] in {one.property for one in INDEXERS.report(name, without=PROCESSES).failures}


@pytest.mark.parametrize("name", ["sound", "sound_texts"])
def test_an_indexer_that_keeps_the_contract_passes(name):
    INDEXERS.check(name, without=PROCESSES)


@pytest.mark.parametrize("name", ["flat", "faiss", "sparse", "small", "dense_sparse"])
def test_the_built_in_indexers_pass(name):
    INDEXERS.check(name, without=PROCESSES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flat", "faiss", "sparse", "small", "dense_sparse"])
def test_the_built_in_indexers_pass_in_several_processes_too(name, tmp_path):
    """Those of plugins do as they are installed, in tests/cli/test_plugin_installation.py."""
    check_indexer(name, tmp_path)


def test_an_approximate_indexer_states_its_recall():
    """Signs alone, with no more candidates than hits, find some of the best and not all."""
    options = {"kind": "binary", "rescored": 1, "only": ["brute_force"]}
    assert "see `recall`" in str(INDEXERS.report("small", **options).failures[0])
    assert "expected 0.99" in str(INDEXERS.report("small", recall=0.99, **options).failures[0])
    (outcome,) = INDEXERS.report("small", recall=0.1, **options).outcomes
    assert "recall@10 0." in outcome.measured
