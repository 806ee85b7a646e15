"""Token pooling: clusters by hand and against Ward's recurrence, the contract, and from encoding to added texts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from retrievalkit_token_pooling.compressors import TokenPooling, clusters

from retrievalkit.contracts import Representation
from retrievalkit.errors import UnsupportedError


def at(*degrees):
    """Unit vectors of two dimensions at these angles."""
    angles = torch.deg2rad(torch.tensor(degrees, dtype=torch.float32))
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def test_each_cluster_becomes_its_mean():
    """Vectors at 0 and 10 degrees, and at 80 and 90 degrees, are two clusters; the protected first vector stays."""
    vectors = at(45, 0, 80, 10, 90)
    pooled = TokenPooling(factor=2).compress(Representation(vectors[None]))
    expected = torch.stack([vectors[0], (vectors[1] + vectors[3]) / 2, (vectors[2] + vectors[4]) / 2])
    found = pooled.vectors[0][pooled.vector_mask[0]]
    assert sorted(found.round(decimals=5).tolist()) == sorted(expected.round(decimals=5).tolist())
    torch.testing.assert_close(found[0], vectors[0])


def wards(distances, count):
    """The clusters, as sets, by the recurrence of Lance and Williams for Ward's linkage."""
    members = {number: {number} for number in range(len(distances))}
    squared = {(a, b): distances[a, b] ** 2 for a in members for b in members if a < b}
    while len(members) > count:
        (a, b), nearest = min(squared.items(), key=lambda item: item[1])
        sizes = {number: len(one) for number, one in members.items()}
        for other in set(members) - {a, b}:
            with_a, with_b = (tuple(sorted((other, one))) for one in (a, b))
            total = sizes[a] + sizes[b] + sizes[other]
            squared[with_a] = (
                (sizes[a] + sizes[other]) * squared[with_a]
                + (sizes[b] + sizes[other]) * squared[with_b]
                - sizes[other] * nearest
            ) / total
        members[a] |= members.pop(b)
        squared = {pair: value for pair, value in squared.items() if b not in pair}
    return {frozenset(one) for one in members.values()}


@pytest.mark.parametrize("seed", range(5))
def test_clusters_are_those_of_wards_recurrence_on_cosine_distances(seed):
    vectors = torch.from_numpy(np.random.default_rng(seed).standard_normal((25, 8), dtype=np.float32))
    unit = torch.nn.functional.normalize(vectors, dim=1)
    numbers = clusters(vectors, 9).tolist()
    found = {frozenset(row for row, one in enumerate(numbers) if one == number) for number in numbers}
    assert found == wards((1 - unit @ unit.T).clamp(min=0).double().numpy(), 9)


@pytest.mark.parametrize(("count", "options", "left"), [
    (9, {}, 1 + 4), (9, {"protected": 0}, 4), (9, {"factor": 4}, 1 + 2), (9, {"factor": 1}, 9), (1, {}, 1), (2, {}, 2),
    (3, {"protected": 0, "factor": 8}, 1),
])  # fmt: skip
def test_a_fraction_of_the_vectors_is_left(count, options, left):
    vectors = torch.from_numpy(np.random.default_rng(0).standard_normal((1, count, 8), dtype=np.float32))
    assert TokenPooling(**options).compress(Representation(vectors)).vector_mask.sum() == left


def test_weights_alone_are_refused():
    with pytest.raises(UnsupportedError, match="Leave --compressor out"):
        TokenPooling().compress(Representation(weights=torch.ones(2, 4)))


def test_the_contract_is_kept(rkit):
    assert " failed" not in rkit("plugins", "check", "token_pooling")


def test_from_encoding_to_added_texts(rkit, tiny_model, tiny_collection, tmp_path):
    """The index has half of the vectors, still finds answers, and pools added texts; other vectors are refused."""
    vectors, encode = {}, ["encode", tiny_model, tiny_collection.corpus, "--pooler", "colbert"]
    for name, options in (("plain", []), ("pooled", ["--compressor", "token_pooling(protected=0)"])):
        rkit(*encode, *options, "--output", tmp_path / name)
        rkit("index", tmp_path / name, "--output", tmp_path / f"{name}-index")
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        vectors[name] = manifest["counts"]["vectors"]
    assert manifest["checkpoint"]["compressor"] == "token_pooling(factor=2, protected=0)"
    assert vectors["pooled"] <= vectors["plain"] / 2
    figures = []
    for name in vectors:
        run = tmp_path / f"{name}.trec"
        rkit("search", tmp_path / f"{name}-index", "--queries", tiny_collection.queries, "--k", 10, "--output", run)
        judged = rkit("evaluate", run, "--qrels", tiny_collection.qrels, "--metrics", "nDCG@10", "--json")
        figures.append(json.loads(judged)["metrics"]["nDCG@10"])
    assert figures[1] > 0.7 * figures[0]
    index = tmp_path / "pooled-index"
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps({"_id": "new", "text": "the capital of atlantis, where people pay with pearls"}))
    rkit("index", index, "--add", more)
    rkit("encode", tiny_model, more, "--pooler", "colbert", "--compressor", "token_pooling(protected=0)", "--output",
         tmp_path / "more")  # fmt: skip
    rkit("index", index, "--compact")
    own = json.loads((tmp_path / "more" / "manifest.json").read_text())["counts"]["vectors"]
    assert json.loads((index / "manifest.json").read_text())["counts"]["vectors"] == vectors["pooled"] + own
    assert "not comparable" in rkit("index", index, "--add", tmp_path / "plain", code=2)


def test_queries_are_not_compressed(rkit, tiny_model, tiny_collection, tmp_path):
    words = ["encode", tiny_model, tiny_collection.queries, "--side", "query", "--compressor", "token_pooling"]
    assert "these are queries" in rkit(*words, "--output", tmp_path / "vectors", code=2)
