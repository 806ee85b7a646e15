"""The pooler `colbert`: vectors per token, markers, masks, late interaction."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from retrievalkit import registry
from retrievalkit.contracts import EncoderInfo, TokenStates
from retrievalkit.errors import UnsupportedError
from retrievalkit.models.retriever import Retriever
from retrievalkit.scoring import scores

INFO = EncoderInfo(width=4, layers=3, vocabulary_size=100)
PLAIN = {"dimension": None, "normalize": False, "markers": False, "query_filled": False, "skip_punctuation": False}
COMMA, STOP = 7, 8


class Vocabulary:
    """Stand-in for an encoder whose vocabulary has a comma and a full stop."""

    def token_ids(self, tokens):
        assert {",", ".", " ("} <= set(tokens)
        return [COMMA, STOP]


def colbert(info=INFO, **options):
    torch.manual_seed(0)
    pooler = registry.create("pooler", "colbert", info, **options)
    pooler.bind(Vocabulary())
    return pooler


def states_of(hidden, mask, ids=None):
    hidden, mask = torch.as_tensor(hidden), torch.as_tensor(mask)
    ids = torch.zeros_like(mask) if ids is None else torch.as_tensor(ids)
    return TokenStates({INFO.layers: hidden}, mask, ids, torch.zeros_like(mask, dtype=torch.bool))


def with_ids(states, *rows):
    """Set the ids of the real tokens."""
    for row, ids in enumerate(rows):
        states.input_ids[row, states.attention_mask[row].bool()] = torch.tensor(ids)
    return states


def test_the_score_of_a_document_by_hand():
    """Query [1, 1] with tokens [1, 0], [0, 2] and padding [5, 5]: the best real token counts."""
    pooler = colbert(EncoderInfo(2, 3, 100), **PLAIN)
    query = pooler(states_of([[[1.0, 1.0]]], [[1]]), "query")
    document = pooler(states_of([[[1.0, 0.0], [0.0, 2.0], [5.0, 5.0]]], [[1, 1, 0]]), "document")
    assert scores(query, document).tolist() == [[2.0]]


@given(
    seed=st.integers(0, 10_000),
    dimension=st.sampled_from([None, 3]),
    normalize=st.booleans(),
    query_filled=st.booleans(),
    skip_punctuation=st.booleans(),
)
def test_scores_equal_an_independent_reference(seed, dimension, normalize, query_filled, skip_punctuation):
    """The reference loops over texts and tokens in numpy."""
    random = np.random.default_rng(seed)
    options = {"dimension": dimension, "normalize": normalize, "query_filled": query_filled}
    pooler = colbert(skip_punctuation=skip_punctuation, **options).double()
    sides = {}
    for side, texts in (("query", 2), ("document", 3)):
        hidden, ids = random.normal(size=(texts, 5, 4)), random.integers(5, 10, size=(texts, 5))
        mask = np.arange(5) < random.integers(1, 6, size=texts)[:, None]
        ids[:, 0] = 1
        pooled = pooler(states_of(hidden, mask.astype(np.int64), ids), side)
        kept = []
        for row in range(texts):
            vectors = []
            for token in range(5):
                there = mask[row, token] or (side == "query" and query_filled)
                if side == "document" and skip_punctuation and ids[row, token] in (COMMA, STOP):
                    there = False
                if there:
                    vector = hidden[row, token]
                    vector = vector if dimension is None else pooler.projection.weight.detach().numpy() @ vector
                    vectors.append(vector / np.sqrt((vector**2).sum()) if normalize else vector)
            kept.append(np.array(vectors))
        sides[side] = pooled, kept
    expected = [[(q @ d.T).max(axis=1).sum() for d in sides["document"][1]] for q in sides["query"][1]]
    computed = scores(sides["query"][0], sides["document"][0]).detach().numpy()
    np.testing.assert_allclose(computed, expected, rtol=1e-9, atol=1e-12)


def test_skip_ids_replace_punctuation(make_states):
    states = with_ids(make_states([3, 5]), [1, COMMA, 2], [1, STOP, 5, COMMA, 2])
    mask = colbert(skip_ids=(2,))(states, "document").vector_mask
    assert mask.tolist() == [[True, True, False, False, False], [True, True, True, True, False]]


def test_the_projection_may_have_a_bias(make_states):
    biased = colbert(bias=True, normalize=False)
    vectors = biased(make_states([3]), "query").vectors
    with torch.no_grad():
        biased.projection.bias += 1
    torch.testing.assert_close(biased(make_states([3]), "query").vectors, vectors + 1)


def test_marker_tokens_by_name(tiny_model):
    """A side without a name has no marker, and an unknown name is refused."""
    options = {"pooler": "colbert", "encoder_options": {"query_length": 32}}
    named = Retriever.create(tiny_model, pooler_options={"marker_tokens": ("[unused3]", "")}, **options)
    tower = named.tower("query")
    usual = Retriever.create(tiny_model, **options).tower("query").tokenize([("", "peru")], "query")[0]
    marked = tower.tokenize([("", "peru")], "query")[0]
    assert marked == [usual[0], tower.tokenizer.get_vocab()["[unused3]"], *usual[2:]]
    assert tower.tokenize([("", "peru")], "document")[0] == [usual[0], *usual[2:]]
    without = Retriever.create(tiny_model, pooler_options={"markers": False}, **options).tower("query")
    assert without.tokenize([("", "peru")], "query")[0] == [usual[0], *usual[2:]]
    with pytest.raises(UnsupportedError, match=r"the token '\[D\]', and the vocabulary lacks it"):
        Retriever.create(tiny_model, pooler_options={"marker_tokens": ("", "[D]")}, **options)


def test_attention_to_the_masks_is_optional(tiny_model):
    """By default, as in the paper, no token of the query attends to them."""
    vectors = []
    for fill_attended in (False, True):
        retriever = Retriever.create(
            tiny_model, pooler="colbert", pooler_options={"fill_attended": fill_attended}
        ).eval()
        tower = retriever.tower("query")
        batch = tower.collate(tower.tokenize([("", "peru")], "query"), "query")
        assert bool(batch.attention_mask.all()) is fill_attended
        assert not tower.collate(
            tower.tokenize([("", "peru"), ("", "a city")], "document"), "document"
        ).attention_mask.all()
        vectors.append(retriever.encode([("", "peru")], "query").vectors)
    assert not torch.allclose(*vectors)


def test_values_at_padding_have_no_effect():
    """Not even infinity and NaN, neither in vectors nor in gradients."""
    hidden = torch.tensor([[[1.0, 2.0, 0.0, 1.0], [float("inf"), float("nan"), 0.0, 1.0]]], requires_grad=True)
    pooler = colbert()
    pooled = pooler(states_of(hidden, [[1, 0]]), "document")
    scores(pooled, pooled).sum().backward()
    assert pooled.vectors.isfinite().all()
    assert hidden.grad[0, 1].tolist() == [0.0] * 4
    assert hidden.grad.isfinite().all()
    assert pooler.projection.weight.grad.isfinite().all()


def test_a_text_of_only_punctuation_keeps_its_vectors(make_states):
    """Without [CLS] and markers, it would have no vector otherwise."""
    pooled = colbert()(with_ids(make_states([2, 3]), [COMMA, STOP], [5, STOP, 6]), "document")
    assert pooled.vector_mask.tolist() == [[True, True, False], [True, False, True]]


def test_a_text_without_tokens_has_one_vector():
    pooled = colbert(query_filled=False)(states_of(torch.randn(2, 2, 4), [[0, 0], [1, 1]]), "query")
    assert pooled.vector_mask.tolist() == [[True, False], [True, True]]


def tokens(retriever, text, side):
    tower = retriever.tower(side)
    batch = tower.collate(tower.tokenize([("", text)], side), side)
    return tower.tokenizer.convert_ids_to_tokens(batch.input_ids[0]), batch


def test_tokens_with_markers_and_masks(tiny_model):
    """Markers follow [CLS], and masks without attention fill the query."""
    retriever = Retriever.create(tiny_model, pooler="colbert", encoder_options={"query_length": 8})
    query, batch = tokens(retriever, "capital of france", "query")
    assert query == ["[CLS]", "[unused0]", "capital", "of", "france", "[SEP]", "[MASK]", "[MASK]"]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1, 1, 0, 0]]
    document, _ = tokens(retriever, "rome.", "document")
    assert document == ["[CLS]", "[unused1]", "rome", ".", "[SEP]"]
    assert retriever.encode([("", "capital of france")], "query").vectors.shape == (1, 8, 128)
    assert retriever.encode([("", "rome.")], "document").vector_mask.tolist() == [[True, True, True, False, True]]


def test_a_loaded_checkpoint_skips_punctuation(tiny_model, tmp_path):
    """Without storing the ids in the checkpoint."""
    retriever = Retriever.create(tiny_model, pooler="colbert").eval()
    retriever.save(tmp_path)
    loaded = Retriever.load(tmp_path, device="cpu")
    assert list(loaded.pooler.state_dict()) == ["projection.weight"]
    assert loaded.pooler.skipped.tolist() == retriever.pooler.skipped.tolist() != []
    texts = [("Peru", "lima, a city."), ("", "...")]
    before, after = (model.encode(texts, "document", precision="fp32") for model in (retriever, loaded))
    assert before.vector_mask.tolist() == after.vector_mask.tolist()
    assert torch.equal(before.vectors, after.vectors)
