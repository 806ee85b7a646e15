"""The pooler on states made by hand: which states become vectors, and that padding and order change nothing."""

from __future__ import annotations

import pytest
import torch

from retrievalkit import registry
from retrievalkit.contracts import ExtraTokens


def made(info, **options):
    return registry.create("pooler", "viewers", info, **options)


class TestNeeds:
    """What the encoder is asked for."""

    def test_the_papers_tokens_by_default(self, info):
        """Eight for a document, one for a query: new, of BERT's scale, in the place of [CLS], at position 0."""
        needs = made(info).needs
        expected = {"source": "new", "standard_deviation": 0.02, "replace_first": True, "position": 0}
        assert needs.extra_tokens == {"document": ExtraTokens(8, **expected), "query": ExtraTokens(1, **expected)}
        assert needs.layers_of("document", info) == needs.layers_of("query", info) == (4,)
        assert not needs.vocabulary_head

    def test_options_of_the_tokens_reach_the_encoder(self, info):
        tokens = made(info, viewers=3, source="unused", position=None, replace_first=False).needs.extra_tokens
        assert tokens["document"] == ExtraTokens(3, source="unused", position=None, replace_first=False)
        assert tokens["query"] == ExtraTokens(1, source="unused", position=None, replace_first=False)
        assert made(info, standard_deviation=1.0).needs.extra_tokens["query"].standard_deviation == 1.0

    def test_layers_are_for_documents(self, info):
        """Queries need the last layer alone; with keep=last so do documents, once it is an index that they go to."""
        pooler = made(info, layers="1,3,-1", viewers=1, keep="last")
        assert pooler.needs.layers_of("document", info) == (1, 3, 4)
        assert pooler.needs.layers_of("query", info) == (4,)
        assert pooler.eval().needs.layers_of("document", info) == (4,)
        assert made(info, layers="1,3").eval().needs.layers_of("document", info) == (1, 3)


class TestVectors:
    """The states at the viewers' positions."""

    @pytest.mark.parametrize("training", [True, False])
    def test_one_vector_a_viewer(self, training, info, make_states):
        states = make_states([5, 7], extra=3)
        found = made(info, viewers=3).train(training)(states, "document")
        assert torch.equal(found.vectors, states.layers[4][:, :3])
        assert found.vector_mask is None
        assert found.kept is None

    def test_positions_are_the_encoders(self, info, make_states):
        """Viewers behind [CLS]: their place is what the encoder says."""
        states = make_states([5, 7], extra=2, first=1)
        assert torch.equal(made(info, viewers=2)(states, "document").vectors, states.layers[4][:, 1:3])

    def test_a_query_has_one(self, info, make_states):
        states = make_states([5, 7], extra=1)
        assert torch.equal(made(info, layers="1,2")(states, "query").vectors, states.layers[4][:, :1])

    def test_layers_of_viewers(self, info, make_states):
        """Layer by layer, the highest first, each with all viewers; in whatever order the layers are named."""
        states = make_states([5, 7], extra=2)
        for layers in ("1,3,-1", "-1,1,3"):
            found = made(info, viewers=2, layers=layers)(states, "document")
            expected = torch.cat([states.layers[layer][:, :2] for layer in (4, 3, 1)], dim=1)
            assert torch.equal(found.vectors, expected)

    def test_keep_last(self, info, make_states):
        """All layers in training, the last alone in the index: what training has marked as kept."""
        states = make_states([5, 7], extra=1)
        pooler = made(info, viewers=1, layers="2,4", keep="last")
        training, indexed = pooler(states, "document"), pooler.eval()(states, "document")
        assert training.vectors.shape == (2, 2, 3)
        assert training.kept == indexed.kept == 0
        assert torch.equal(indexed.vectors, training.vectors[:, :1])

    @pytest.mark.parametrize("side", ["query", "document"])
    def test_normalized(self, side, info, make_states):
        states = make_states([5, 7], extra=1)
        plain = made(info, viewers=1, layers="2,4")(states, side).vectors
        unit = made(info, viewers=1, layers="2,4", normalize=True)(states, side).vectors
        torch.testing.assert_close(unit, plain / plain.square().sum(-1, keepdim=True).sqrt())


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"viewers": 3}, ["viewer 0", "viewer 1", "viewer 2"]),
        ({"viewers": 1, "layers": "1,4"}, ["layer 4", "layer 1"]),
        ({"viewers": 2, "layers": "1,4"}, [f"layer {layer}, viewer {viewer}" for layer in (4, 1) for viewer in (0, 1)]),
    ],
)
def test_names_of_views(options, names, info, make_states):
    """One name for each vector, in their order."""
    pooler = made(info, **options)
    states = make_states([5], extra=options["viewers"])
    assert pooler.view_names(pooler(states, "document").vectors.shape[1]) == names
