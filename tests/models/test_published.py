"""The settings of published models, as the documentation lists them, give what the models' own pages compute."""

from __future__ import annotations

import itertools
import re
import shlex

import numpy as np
import pytest
import torch
import transformers

import retrievalkit as rk
from places import ROOT
from retrievalkit.recipes.settings import parse_set

TEXT = "A wheel at the river drives the mill"
INSTRUCTION = "Represent this sentence for searching relevant passages: "
PUBLISHED = {
    "coCondenser": ("cls", False, "", ""),
    "RetroMAE": ("cls", False, "", ""),
    "SimLM": ("cls", True, "", ""),
    "Contriever": ("mean", False, "", ""),
    "E5": ("mean", True, "query: ", "passage: "),
    "BGE": ("cls", True, INSTRUCTION, ""),
    "GTE": ("mean", True, "", ""),
}
"""Pooling, whether it is scaled to length 1, and what stands before queries and passages."""


def documented(name):
    """The settings of a line of the documentation's table, as options of Python."""
    text = (ROOT / "docs/how-to/export.md").read_text()
    (line,) = re.findall(rf"^\| {name}[^|]*\| `([^`]*)`", text, re.MULTILINE)
    words = shlex.split(line)
    settings = parse_set([word for flag, word in itertools.pairwise(words) if flag == "--set"])
    return {"pooler": words[words.index("--pooler") + 1], **rk.encode.settings(settings)}


def by_transformers(folder, text, pooling, normalised):
    """What a model's own page computes."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    given = tokenizer([text], return_tensors="pt", truncation=True, max_length=64)
    with torch.no_grad():
        states = model(**given).last_hidden_state
    vector = states[:, 0] if pooling == "cls" else states.mean(dim=1)
    return (torch.nn.functional.normalize(vector, dim=-1) if normalised else vector).numpy()


@pytest.mark.parametrize("name", PUBLISHED)
def test_documented_settings_give_the_published_vectors(name, tiny_model):
    pooling, normalised, before_query, before_passage = PUBLISHED[name]
    model = rk.Retriever.load(tiny_model, precision="fp32", **documented(name))
    for encode, before in ((model.encode_queries, before_query), (model.encode_documents, before_passage)):
        expected = by_transformers(tiny_model, before + TEXT, pooling, normalised)
        np.testing.assert_allclose(np.asarray(encode([TEXT])), expected, atol=1e-5)


@pytest.mark.parametrize("side", ["question", "context"])
def test_both_encoders_of_dpr_are_read(side, tiny_model, tmp_path):
    """Classes of their own in transformers, which give one vector and no states."""
    kind = transformers.DPRQuestionEncoder if side == "question" else transformers.DPRContextEncoder
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    dpr = kind(transformers.DPRConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)).eval()
    dpr.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = dpr(**tokenizer([TEXT], return_tensors="pt")).pooler_output.numpy()
    found = rk.Retriever.load(tmp_path, pooler="cls", precision="fp32").encode_documents([TEXT])
    np.testing.assert_allclose(np.asarray(found), expected, atol=1e-5)
