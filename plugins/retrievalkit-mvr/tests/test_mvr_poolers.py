"""The pooler: which states become vectors, and viewers in real architectures."""

from __future__ import annotations

import pytest
import retrievalkit_testing as testing
import torch
from transformers import AutoModel

from retrievalkit import registry
from retrievalkit.contracts import EncoderInfo, ExtraTokens, TokenStates
from retrievalkit.errors import OptionError, UnsupportedError
from retrievalkit.models.retriever import Retriever

INFO = EncoderInfo(width=3, layers=4, vocabulary_size=50)
QUERY = [("", "what is")]


def pooler_of(**options):
    return registry.create("pooler", "viewers", INFO, **options)


def states_of(*, extra=2, first=0):
    """Token states of two texts, `extra` viewers among them, of which the first stands at `first`."""
    generator, mask = torch.Generator().manual_seed(0), torch.tensor([[1] * 5 + [0] * 2, [1] * 7])
    layers = {layer: torch.randn(2, 7, 3, generator=generator) for layer in range(5)}
    positions = torch.arange(first, first + extra).repeat(2, 1)
    return TokenStates(layers, mask, torch.zeros_like(mask), torch.zeros_like(mask).bool(), positions)


def test_the_papers_tokens_by_default():
    """Eight for a document, one for a query: new, of BERT's scale, in the place of [CLS], at position 0."""
    expected = {"source": "new", "standard_deviation": 0.02, "replace_first": True, "position": 0}
    assert pooler_of().needs.extra_tokens == {
        "document": ExtraTokens(8, **expected),
        "query": ExtraTokens(1, **expected),
    }
    options = {"source": "unused", "position": None, "replace_first": False}
    assert pooler_of(viewers=3, **options).needs.extra_tokens["document"] == ExtraTokens(3, **options)
    assert pooler_of(query_viewer=False, standard_deviation=1.0).needs.extra_tokens == {
        "document": ExtraTokens(8, standard_deviation=1.0)
    }


@pytest.mark.parametrize("layers", ["1,3,-1", "-1,1,3"])
@pytest.mark.parametrize(("viewers", "first"), [(1, 0), (2, 1)])
def test_a_vector_of_each_viewer_in_each_layer(layers, viewers, first):
    states, pooler = states_of(extra=viewers, first=first), pooler_of(viewers=viewers, layers=layers)
    representation = pooler(states, "document")
    places = slice(first, first + viewers)
    assert torch.equal(
        representation.vectors, torch.cat([states.layers[layer][:, places] for layer in (4, 3, 1)], dim=1)
    )
    assert (representation.vector_mask, representation.kept) == (None, None)
    firsts = [f"layer {layer}" for layer in (4, 3, 1)]
    names = firsts if viewers == 1 else [f"{layer}, viewer {viewer}" for layer in firsts for viewer in range(viewers)]
    assert pooler.view_names(3 * viewers) == names


@pytest.mark.parametrize("query_viewer", [True, False])
def test_a_query_has_one_vector_of_the_last_layer(query_viewer):
    states = states_of(extra=1, first=2)
    vectors = pooler_of(layers="1,2", query_viewer=query_viewer)(states, "query").vectors
    assert torch.equal(vectors[:, 0], states.layers[4][:, 2 if query_viewer else 0])


def test_keep_last():
    states, pooler = states_of(extra=1), pooler_of(viewers=1, layers="1,3,-1", keep="last")
    training = pooler(states, "document")
    assert pooler.needs.layers_of("document", INFO) == (1, 3, 4)
    indexed = pooler.eval()(states, "document")
    assert (training.kept, indexed.kept, pooler(states, "query").kept) == (0, 0, None)
    assert torch.equal(indexed.vectors, training.vectors[:, :1])
    assert pooler.needs.layers_of("document", INFO) == pooler.needs.layers_of("query", INFO) == (4,)
    assert pooler.default_loss == "self_contrastive"
    assert pooler_of(layers="1,3").eval().needs.layers_of("document", INFO) == (1, 3)


@pytest.mark.parametrize("side", ["query", "document"])
def test_normalized(side):
    plain, unit = (
        pooler_of(viewers=1, layers="2,4", normalize=normalize)(states_of(extra=1), side).vectors
        for normalize in (0, 1)
    )
    torch.testing.assert_close(unit, plain / plain.square().sum(-1, keepdim=True).sqrt())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"standard_deviation": 1, "source": "unused"},
            OptionError,
            "standard_deviation=1.0 has no effect with source",
        ),
        ({"position": -1}, OptionError, "'position' .* cannot be -1"),
        ({"layers": "4,-1"}, OptionError, "layers=4,-1 names one layer twice"),
        ({"layers": "2,4", "keep": "last"}, OptionError, "not 8. Set viewers=1, or keep=all"),
        ({"layers": "2,1", "keep": "last", "viewers": 1}, UnsupportedError, r"last layer \(4\)"),
    ],
)
def test_wrong_options(options, error, message):
    with pytest.raises(error, match=message):
        pooler_of(**options)


@pytest.fixture(scope="module", params=["bert", "roberta"])
def model(request, tmp_path_factory):
    """A model of each architecture; RoBERTa numbers positions from behind its padding id."""
    return testing.tiny_model(tmp_path_factory.mktemp(request.param), architecture=request.param)


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"source": "unused"}, marks=pytest.mark.slow),
        pytest.param({"query_viewer": False, "position": None, "replace_first": False}, marks=pytest.mark.slow),
        pytest.param({"viewers": 1, "layers": "1,2", "keep": "last"}, marks=pytest.mark.slow),
        pytest.param({"viewers": 2, "layers": "1,2", "normalize": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_contract_is_kept(options, model):
    testing.check("pooler", "viewers", model=model, **{"viewers": 3} | options)


def retriever(model, **options):
    return Retriever.create(model, pooler="viewers", pooler_options=options).to("cpu").eval()


def encoded(retriever, texts, side):
    return retriever.encode(texts, side, precision="fp32").vectors


def test_a_query_without_viewer_keeps_its_tokens(model):
    of_viewers = retriever(model, viewers=2, query_viewer=False)
    plain = Retriever.create(model, pooler="cls").to("cpu").eval()
    torch.testing.assert_close(encoded(of_viewers, QUERY, "query"), encoded(plain, QUERY, "query"))


def test_viewers_equal_to_cls_are_cls(model):
    of_viewers = retriever(model, viewers=1)
    tower = of_viewers.tower("document")
    cls_row = AutoModel.from_pretrained(model).get_input_embeddings().weight[tower.tokenizer.cls_token_id]
    with torch.no_grad():
        tower.extra.new.copy_(cls_row.expand_as(tower.extra.new))
    plain = Retriever.create(model, pooler="cls").to("cpu").eval()
    texts = [("peru", "lima is a city"), ("", "what is spoken most")]
    for side in ("document", "query"):
        torch.testing.assert_close(encoded(of_viewers, texts, side), encoded(plain, texts, side))


def test_an_architecture_without_positions(tmp_path):
    """T5 has relative positions only, so that position=0 has no meaning; position=null works."""
    model = testing.tiny_model(tmp_path / "t5", architecture="t5")
    with pytest.raises(UnsupportedError, match="takes no position numbers"):
        retriever(model)
    assert encoded(retriever(model, viewers=3, position=None), QUERY, "document").shape == (1, 3, 32)
    with pytest.raises(UnsupportedError, match=r"query_viewer=false needs a .CLS."):
        retriever(model, viewers=3, position=None, query_viewer=False)
