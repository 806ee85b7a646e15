"""ColBERT models go to PyLate and come back with equal vectors.

PyLate wants other releases than ours of the libraries below it: RKIT_PYLATE names the Python of its environment.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from peer_vectors import PARTS, TEXTS, assert_equal_vectors
from retrievalkit.model.retriever import open_retriever

PYTHON = os.environ.get("RKIT_PYLATE") or (sys.executable if importlib.util.find_spec("pylate") else "")
with_library = pytest.mark.skipif(not PYTHON, reason="PyLate is not installed; RKIT_PYLATE names a Python that has it")

_PROGRAM = """
import json, sys
import numpy as np
import torch
from pylate import models

texts, folder, make = json.load(sys.stdin)
if make is not None:
    torch.manual_seed(0)
    model = models.ColBERT(make["model"], device="cpu", embedding_size=16, **make["options"])
    if make["second"]:
        model.append(models.Dense(16, 8, bias=False))
    model.save(folder)
model = models.ColBERT(folder, device="cpu")
found = {side: model.encode(some, is_query=side == "query") for side, some in texts.items()}
np.savez(folder + "/found.npz", **{f"{side}{row}": one for side, rows in found.items() for row, one in enumerate(rows)})
"""


def by_pylate(folder, make=None):
    """The vectors of a folder in PyLate, which may make it before."""
    given = json.dumps([TEXTS, str(folder), make])
    ended = subprocess.run([PYTHON, "-c", _PROGRAM], input=given, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found = np.load(folder / "found.npz")
    vectors = {side: [found[f"{side}{row}"] for row in range(len(texts))] for side, texts in TEXTS.items()}
    (folder / "found.npz").unlink()
    return vectors


SETTINGS = {
    "the paper's": {},
    "nothing but vectors": {
        "dimension": None, "markers": False, "query_filled": False, "skip_punctuation": False
    },
    "with a bias, attended masks and other markers": {
        "dimension": 8, "bias": True, "fill_attended": True, "marker_tokens": ("[unused5]", "")
    },
}  # fmt: skip


@with_library
@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_pylate_opens_the_folder_with_equal_vectors(checkpoint, export, name):
    source = checkpoint("colbert", **SETTINGS[name])
    assert_equal_vectors(source, by_pylate(export(source, "pylate")))


@pytest.mark.parametrize("name", SETTINGS)
def test_what_was_exported_is_read_again(checkpoint, export, name):
    source = checkpoint("colbert", **SETTINGS[name])
    folder, ours = export(source, "pylate"), open_retriever(source).to("cpu")
    found = {}
    for side, texts in PARTS.items():
        made = ours.encode(texts, side)
        masks = [slice(None)] * len(texts) if made.vector_mask is None else made.vector_mask
        found[side] = [made.vectors[row][masks[row]].numpy() for row in range(len(texts))]
    assert_equal_vectors(folder, found)


@with_library
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "second"),
    [
        ({}, True),
        ({"bias": True, "query_length": 12}, True),
        ({"do_query_expansion": False, "query_prefix": "", "document_prefix": "[unused1]"}, False),
        ({"attend_to_expansion_tokens": True, "skiplist_words": ["the"]}, False),
    ],
)
def test_a_model_of_pylate_is_taken(tiny_model, tmp_path, options, second):
    """Its markers, lengths, masks, skipped words, and linear layers one after the other."""
    folder = tmp_path / "published"
    make = {"model": str(tiny_model), "options": {"document_length": 100, **options}, "second": second}
    assert_equal_vectors(folder, by_pylate(folder, make))


@pytest.mark.parametrize(
    ("pooler", "options", "reason"),
    [
        ("mean", {}, "its pooler is 'mean'"),
        ("colbert", {"layer": 1}, "those of layer 1"),
        ("colbert", {"normalize": False}, "not scaled to length 1"),
    ],
)
def test_what_pylate_cannot_say_is_refused(checkpoint, export, pooler, options, reason):
    assert reason in export(checkpoint(pooler, **options), "pylate")


def test_a_multi_vector_encoder_is_taken(tiny_model, tmp_path):
    """sentence-transformers' own models of late interaction."""
    library = pytest.importorskip(
        "sentence_transformers", minversion="6", reason="sentence-transformers 6 is not installed"
    )
    model = library.MultiVectorEncoder(str(tiny_model), device="cpu")
    model.save(str(tmp_path / "published"))
    found = {"query": model.encode_query(TEXTS["query"]), "document": model.encode_document(TEXTS["document"])}
    assert_equal_vectors(tmp_path / "published", found)
