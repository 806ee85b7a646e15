"""The conformance kit of encoders: one fault in each of these is found, by the property of its name, with the line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import retrievalkit_testing as testing
from retrievalkit_testing.encoders import ENCODERS

FAULTS = {
    "ignores_the_mask": "padding",
    "one_layer_below": "layer_numbers",
    "last_is_the_one_before": "layer_numbers",
    "all_layers": "shape_of_states",
    "embeds_too_much": "layer_numbers",
    "words_are_special": "special_tokens",
    "nothing_is_special": "special_tokens",
    "padding_is_special": "special_tokens",
    "mask_of_the_other_side": "batch_fields",
    "cuts_the_end_token": "truncation",
    "never_cuts": "truncation",
    "reads_no_title": "pairs",
    "reads_no_text_after_a_title": "pairs",
    "drops_out": "same_twice",
    "detached": "gradients",
    "unused_parameter": "gradients",
    "saves_the_start": "saved",
    "half_states": "shape_of_states",
    "extra_one_off": "extra_tokens",
    "extra_beyond_the_length": "extra_tokens",
    "fills_attended": "filled_with_masks",
    "not_a_number_in_bf16": "bf16",
    "lean_is_other": "lean",
    "fails_on_empty": "odd_texts",
    "order_matters": "padding",
    "names_too_few": "names_of_tokens",
}


@pytest.fixture(autouse=True)
def broken(monkeypatch, fresh_registry):
    """Encoders that are wrong in one way each."""
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(Path(__file__).parent / "broken_encoders.py"))
    fresh_registry()


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return testing.tiny_model(tmp_path_factory.mktemp("bert"), width=16)


@pytest.mark.parametrize(("name", "fault"), FAULTS.items())
def test_a_fault_is_found_by_the_property_that_names_it(name, fault, bert):
    (failure,) = ENCODERS.report(name, model=bert, only=[fault]).failures
    message = str(failure)
    assert f"encoder '{name}' lacks the property '{fault}'" in message
    assert re.search(r"broken_encoders\.py:\d+ ", message), message


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all_layers", "detached", "fails_on_empty", "saves_the_start"])
def test_a_fault_is_found_among_all_properties(name):
    """Others may fail with it; the one that names it does, unless it rests on one that fails."""
    outcomes = {one.property: one for one in ENCODERS.report(name).outcomes}
    own = outcomes[FAULTS[name]]
    assert own.failure or own.left_out.endswith("failed")


def test_an_encoder_that_keeps_the_contract_passes(bert):
    """The one that the others differ from in one way each."""
    testing.check_encoder("sound", model=bert)


def test_the_built_in_encoder_passes_with_each_model():
    testing.check_encoder("transformer")


def test_options_are_handed_on(bert):
    testing.check_encoder("transformer", model=bert, document_length=20, title="space")
