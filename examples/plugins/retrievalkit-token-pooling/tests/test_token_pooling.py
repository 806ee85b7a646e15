"""Token pooling: clusters by hand and by Ward's recurrence, conformance, and an index with added texts."""

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
    """Vectors at 0 and 10 degrees, and at 80 and 90 degrees, form clusters; the first vector is protected."""
    vectors = at(45, 0, 80, 10, 90)
    pooled = TokenPooling(factor=2).compress(Representation(vectors[None]))
    expected = torch.stack([vectors[0], (vectors[1] + vectors[3]) / 2, (vectors[2] + vectors[4]) / 2])
    own = pooled.vectors[0][pooled.vector_mask[0]]
    assert sorted(own.round(decimals=5).tolist()) == sorted(expected.round(decimals=5).tolist())
    torch.testing.assert_close(own[0], vectors[0])


def ward_clusters(distances, count):
    """The clusters, as sets, by the recurrence of Lance and Williams for Ward's linkage."""
    members = {number: {number} for number in range(len(distances))}
    squared = {(a, b): distances[a, b] ** 2 for a in members for b in members if a < b}
    while len(members) > count:
        (a, b), nearest = min(squared.items(), key=lambda item: item[1])
        sizes = {number: len(cluster) for number, cluster in members.items()}
        for other in set(members) - {a, b}:
            with_a, with_b = (tuple(sorted((other, merged))) for merged in (a, b))
            total = sizes[a] + sizes[b] + sizes[other]
            squared[with_a] = (
                (sizes[a] + sizes[other]) * squared[with_a]
                + (sizes[b] + sizes[other]) * squared[with_b]
                - sizes[other] * nearest
            ) / total
        members[a] |= members.pop(b)
        squared = {pair: value for pair, value in squared.items() if b not in pair}
    return {frozenset(cluster) for cluster in members.values()}


@pytest.mark.parametrize("seed", range(5))
def test_clusters_equal_those_of_wards_recurrence(seed):
    vectors = torch.from_numpy(np.random.default_rng(seed).standard_normal((25, 8), dtype=np.float32))
    unit = torch.nn.functional.normalize(vectors, dim=1)
    numbers = clusters(vectors, 9).tolist()
    sets = {frozenset(row for row, other in enumerate(numbers) if other == number) for number in numbers}
    assert sets == ward_clusters((1 - unit @ unit.T).clamp(min=0).double().numpy(), 9)


@pytest.mark.parametrize(("count", "options", "pooled"), [
    (9, {}, 1 + 4), (9, {"protected": 0}, 4), (9, {"factor": 4}, 1 + 2), (9, {"factor": 1}, 9), (1, {}, 1), (2, {}, 2),
    (3, {"protected": 0, "factor": 8}, 1),
])  # fmt: skip
def test_a_fraction_of_the_vectors_remains(count, options, pooled):
    vectors = torch.from_numpy(np.random.default_rng(0).standard_normal((1, count, 8), dtype=np.float32))
    assert TokenPooling(**options).compress(Representation(vectors)).vector_mask.sum() == pooled


def test_weights_alone_are_refused():
    with pytest.raises(UnsupportedError, match="Leave --compressor out"):
        TokenPooling().compress(Representation(weights=torch.ones(2, 4)))


def test_the_compressor_conforms(rkit):
    assert " failed" not in rkit("plugins", "check", "token_pooling")


def test_a_pooled_index_pools_added_texts(rkit, ndcg, tiny_model, tiny_collection, tmp_path):
    """It has half of the vectors, a high nDCG@10, and refuses vectors that are not pooled."""
    vectors, encode = {}, ["encode", tiny_model, tiny_collection.corpus, "--pooler", "colbert"]
    for name, options in (("plain", []), ("pooled", ["--compressor", "token_pooling(protected=0)"])):
        rkit(*encode, *options, "--output", tmp_path / name)
        rkit("index", tmp_path / name, "--output", tmp_path / f"{name}-index")
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        vectors[name] = manifest["counts"]["vectors"]
    assert manifest["checkpoint"]["compressor"] == "token_pooling(factor=2, protected=0)"
    assert vectors["pooled"] <= vectors["plain"] / 2
    index = tmp_path / "pooled-index"
    assert ndcg(index) > 0.7 * ndcg(tmp_path / "plain-index")
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
    encode = ["encode", tiny_model, tiny_collection.queries, "--side", "query", "--compressor", "token_pooling"]
    assert "these are queries" in rkit(*encode, "--output", tmp_path / "vectors", code=2)
