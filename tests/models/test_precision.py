"""The number format that models compute in."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from retrievalkit.cli import main
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import OptionError, UnsupportedError
from retrievalkit.models import precision
from retrievalkit.storage import read_manifest

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(("supported", "expected"), [(True, ["bf16", "bf16"]), (False, ["fp32", "fp16"])])
def test_auto_is_bf16_if_the_hardware_multiplies_in_bf16(monkeypatch, supported, expected):
    """GPUs that only emulate bf16 (V100, T4) compute in fp16."""
    monkeypatch.delenv(precision.AUTO, raising=False)
    for probe in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.setattr(torch.cpu, probe, lambda: supported, raising=False)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: supported or including_emulation
    )
    assert [precision.resolve_precision("auto", device) for device in (CPU, GPU)] == expected
    assert precision.resolve_precision("fp32", GPU, half=True) == expected[1]


@pytest.mark.parametrize(
    ("chosen", "device", "error", "message"),
    [
        ("fp16", CPU, UnsupportedError, "fp16 needs a GPU. Use auto, bf16 or fp32"),
        ("int8", GPU, UnsupportedError, "int8 is for processors.*Use auto"),
        ("auto", CPU, OptionError, "RKIT_PRECISION is 'fp8'.*fp32 or bf16"),
    ],
)
def test_unsupported_formats_are_refused(monkeypatch, chosen, device, error, message):
    monkeypatch.setenv(precision.AUTO, "fp8")
    with pytest.raises(error, match=message):
        precision.resolve_precision(chosen, device)


def test_auto_is_fp32_on_a_backend_that_computes_in_fp32_only(monkeypatch):
    monkeypatch.setenv(precision.AUTO, "bf16")
    assert precision.resolve_precision("auto", CPU, among=("fp32",)) == "fp32"
    assert precision.resolve_precision("auto", CPU, among=("fp32", "bf16", "int8")) == "bf16"
    with pytest.raises(UnsupportedError, match="computes in fp32 here, not in bf16"):
        precision.resolve_precision("bf16", CPU, among=("fp32",))


@pytest.mark.parametrize(
    ("exact", "scores", "shared"),
    [
        ([range(30)], [range(30)], 1.0),
        ([range(30)], [[*range(19), 40, *range(20, 30)]], 0.9),
        ([range(30)], [[*range(29, -1, -1)]], 0.0),
        ([range(4), range(4)], [[0, 1, 2, 3], [3, 2, 0, 1]], 0.5),  # the better two of four
        ([[5.0]], [[-1.0]], 1.0),
    ],
)
def test_the_share_of_the_best_texts_in_both_rankings(exact, scores, shared):
    rows = ([np.array(row, dtype=float) for row in lists] for lists in (exact, scores))
    assert precision.shared_best(*rows) == shared


@pytest.mark.parametrize(("chosen", "expected"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_autocast_multiplies_in_the_precision(chosen, expected):
    with precision.autocast(chosen, CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == expected
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.parametrize(("chosen", "device"), [("fp32", "cuda"), ("bf16", "cpu")])
def test_the_environment_sets_what_auto_means(monkeypatch, chosen, device):
    monkeypatch.setenv(precision.AUTO, chosen)
    assert precision.auto_precision(torch.device(device)) == (chosen, "set by RKIT_PRECISION")
    assert precision.resolve_precision("fp32", CPU) == "fp32"


@pytest.fixture(scope="module")
def vectors(tiny_model, tiny_collection, tmp_path_factory):
    """The corpus encoded in each format, and an index of the vectors in fp32."""
    folder = tmp_path_factory.mktemp("precision")
    for name in ("fp32", "bf16"):
        rkit("encode", tiny_model, tiny_collection.corpus, "--output", folder / name, "--precision", name)
    rkit("index", folder / "fp32", "--output", folder / "index")
    return folder


def test_the_manifest_records_the_precision(vectors, tiny_model, tiny_collection, tmp_path, monkeypatch):
    monkeypatch.setenv(precision.AUTO, "bf16")
    rkit("encode", tiny_model, tiny_collection.corpus, "--output", tmp_path / "auto")
    assert read_manifest(tmp_path / "auto", "vectors")["options"]["precision"] == "bf16"
    assert read_manifest(vectors / "fp32", "vectors")["options"]["precision"] == "fp32"
    folders = (tmp_path / "auto", vectors / "bf16", vectors / "fp32")
    auto, bf16, fp32 = (VectorStore(folder).fingerprint for folder in folders)
    assert auto == bf16 != fp32


def test_search_encodes_in_fp32_by_default(vectors, monkeypatch):
    monkeypatch.setenv(precision.AUTO, "bf16")
    plain, fp32, bf16, auto = (
        hits(vectors / "index", *options)
        for options in ((), ("--precision", "fp32"), ("--precision", "bf16"), ("--precision", "auto"))
    )
    assert plain == fp32 != bf16 == auto


def rkit(*words):
    ended = CliRunner().invoke(main, list(map(str, words)))
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def hits(index, *options):
    return json.loads(rkit("search", index, "--query", "the capital of peru", "--json", *options))["hits"]


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--model", "m", "--examples", "e", "--output", "o"),
        ("pretrain", "--model", "m", "--corpus", "c", "--output", "o"),
        ("rerank", "train", "--model", "m", "--examples", "e", "--output", "o"),
        ("search", "index", "--query", "q"),
    ],
)
def test_int8_is_only_for_encoding_and_reranking(words):
    ended = CliRunner().invoke(main, [*words, "--precision", "int8"])
    assert (ended.exit_code, "int8" in ended.output) == (2, True), ended.output
