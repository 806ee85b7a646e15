"""Viewers in real architectures: what the model is given, what comes out, and that it is saved."""

from __future__ import annotations

import pytest
import retrievalkit_testing as testing
import torch
from transformers import AutoModel

from retrievalkit import registry
from retrievalkit.contracts import Progress
from retrievalkit.errors import UnsupportedError
from retrievalkit.models.retriever import Retriever

# 6 tokens: [CLS] text [SEP], of which viewers replace the first.
DOCUMENT = [("", "lima is a city")]
QUERY = [("", "what is")]


@pytest.fixture(params=["bert", "roberta"])
def model(request):
    """A model of each architecture; RoBERTa numbers positions from behind its padding id."""
    return request.getfixturevalue(request.param)


def retriever(model, separate_towers=False, encoder_options=None, **options):
    made = Retriever.create(
        model,
        pooler="viewers",
        pooler_options=options,
        encoder_options=encoder_options,
        separate_towers=separate_towers,
    )
    return made.to("cpu").eval()


def encoded(made, texts, side):
    return made.encode(texts, side, precision="fp32").vectors


def seen_by_model(made, texts, side):
    """What the transformer is called with for these texts."""
    found = {}
    tower = made.tower(side)
    handle = tower.model.register_forward_pre_hook(lambda _, __, inputs: found.update(inputs), with_kwargs=True)
    with torch.no_grad():
        made(tower.collate(tower.tokenize(texts, side), side), side)
    handle.remove()
    return found


class TestInputs:
    """The layout of the paper: [CLS] gone, all viewers at position 0, the text's positions as they were."""

    def test_positions(self, model):
        """Golden: 3 viewers and 4 tokens are at 0, 0, 0, 1, 2, 3, 4; a query's viewer and 3 tokens at 0, 1, 2, 3."""
        made = retriever(model, viewers=3)
        first = made.tower("query").config.pad_token_id + 1 if "roberta" in made.tower("query").config.model_type else 0
        inputs = seen_by_model(made, [("", "a b c")], "document")
        assert (inputs["position_ids"] - first).tolist() == [[0, 0, 0, 1, 2, 3, 4]]
        assert inputs["attention_mask"].tolist() == [[1] * 7]
        assert not inputs.get("token_type_ids", torch.zeros(1)).any()
        inputs = seen_by_model(made, [("", "a b")], "query")
        assert (inputs["position_ids"] - first).tolist() == [[0, 1, 2, 3]]
        assert inputs["attention_mask"].tolist() == [[1] * 4]

    def test_tokens(self, model):
        """Viewers stand where [CLS] stood; a title is followed by [SEP] and the text."""
        made = retriever(model, viewers=3)
        tower = made.tower("document")
        batch = tower.collate(tower.tokenize([("peru", "a b")], "document"), "document")
        ids = tower.tokenizer("peru", "a b")["input_ids"]
        assert batch.input_ids[0, 3:].tolist() == ids[1:]
        assert tower.tokenizer.cls_token_id not in batch.input_ids
        assert batch.extra.tolist() == [[0, 1, 2]]
        assert batch.special_mask[0, :3].all()

    def test_behind_cls_with_ordinary_positions(self, model):
        """replace_first=false position=null, as others have it."""
        made = retriever(model, viewers=2, replace_first=False, position=None)
        tower = made.tower("document")
        batch = tower.collate(tower.tokenize(DOCUMENT, "document"), "document")
        assert batch.input_ids[0, 0] == tower.tokenizer.cls_token_id
        assert batch.extra.tolist() == [[1, 2]]
        assert "position_ids" not in seen_by_model(made, DOCUMENT, "document")

    def test_a_query_without_a_viewer_is_as_it_always_was(self, model):
        """query_viewer=false: the plain dual encoder's query."""
        made = retriever(model, viewers=2, query_viewer=False)
        plain = Retriever.create(model, pooler="cls").to("cpu").eval()
        torch.testing.assert_close(encoded(made, QUERY, "query"), encoded(plain, QUERY, "query"))

    def test_viewers_equal_to_cls_are_cls(self, model):
        """A viewer with [CLS]'s own embedding gives what [CLS] gives: positions, types, normalisation are the same."""
        made = retriever(model, viewers=1)
        tower = made.tower("document")
        cls_row = AutoModel.from_pretrained(model).get_input_embeddings().weight[tower.tokenizer.cls_token_id]
        with torch.no_grad():
            tower.extra.new.copy_(cls_row.expand_as(tower.extra.new))
        plain = Retriever.create(model, pooler="cls").to("cpu").eval()
        texts = [("peru", "lima is a city"), ("", "what is spoken most")]
        for side in ("document", "query"):
            torch.testing.assert_close(encoded(made, texts, side), encoded(plain, texts, side))


class TestOptions:
    """Each changes the vectors of documents."""

    def test_viewers_differ(self, bert):
        """By their own embeddings alone, from the start."""
        vectors = encoded(retriever(bert, viewers=4), DOCUMENT, "document")[0]
        assert torch.pdist(vectors).min() > 1e-3

    def test_unused_rows_are_the_vocabularys(self, bert):
        """Documents get the first rows that are free, the query the next; no new embedding is made."""
        made = retriever(bert, viewers=3, source="unused")
        tower = made.tower("document")
        names = tower.tokenizer.convert_ids_to_tokens
        assert names(tower.tokenize(DOCUMENT, "document")[0][:3]) == ["[unused0]", "[unused1]", "[unused2]"]
        assert names(tower.tokenize(QUERY, "query")[0][:1]) == ["[unused3]"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"source": "unused"},
        {"query_viewer": False, "position": None, "replace_first": False},
        {"viewers": 1, "layers": "1,2", "keep": "last"},
        {"viewers": 2, "layers": "1,2", "normalize": True},
    ],
    ids=str,
)
def test_keeps_the_contract(options, model):
    """Padding, batch order, batch size, saving and loading change nothing; gradients reach the encoder."""
    testing.check_pooler("viewers", model=model, **{"viewers": 3} | options)


def test_viewers_are_trained(bert):
    """The gradient of the loss reaches the embeddings of all viewers, and the query's."""
    made = retriever(bert, viewers=3).train()
    tower = made.tower("document")
    texts = [("", "lima is a city"), ("", "what is spoken most")]

    def represent(side):
        return made(tower.collate(tower.tokenize(texts, side), side), side)

    loss = registry.create("loss", "global_local")
    progress = Progress(0, 0.0, 10)
    loss(represent("query"), represent("document"), torch.tensor([0, 1]), progress).total.backward()
    assert (tower.extra.new.grad.abs().sum(dim=1) > 0).all()


class TestRefused:
    """What cannot be is said when the retriever is made, before anything is trained."""

    @pytest.mark.parametrize("viewers", [127, 500])
    def test_more_viewers_than_the_length_allows(self, viewers, bert):
        """The model has 128 positions."""
        with pytest.raises(UnsupportedError, match=rf"{viewers} extra tokens leave no room .* document_length=128"):
            retriever(bert, viewers=viewers)

    def test_more_viewers_than_unused_rows(self, bert):
        with pytest.raises(
            UnsupportedError, match=r"unused rows of the vocabulary, and it has 16 of them .*source=new"
        ):
            retriever(bert, viewers=20, source="unused")

    def test_an_architecture_without_positions(self, tmp_path):
        """T5 has relative positions only, so that position=0 has no meaning; position=null works."""
        model = testing.tiny_model(tmp_path / "t5", architecture="t5")
        with pytest.raises(UnsupportedError, match="takes no position numbers"):
            retriever(model)
        assert encoded(retriever(model, viewers=3, position=None), DOCUMENT, "document").shape == (1, 3, 32)
        with pytest.raises(UnsupportedError, match=r"query_viewer=false takes a query's .CLS."):
            retriever(model, viewers=3, position=None, query_viewer=False)
