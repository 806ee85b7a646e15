"""The sides of sentence-transformers, on each of its backends at its fastest settings, and of fastembed."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worker import (
    PASSAGES,
    Side,
    Timed,
    among_themselves,
    clock,
    command,
    fastest_batch,
    head,
    int8_check,
    mined_from,
    multiplies_bf16,
    one_by_one,
    pairs,
    rows,
    serve,
    texts,
    trained,
)

# Number of texts for trying batch sizes, and maximum number for calibrating static int8.
_TRIED, _CALIBRATED = 128, 256

# From the folder of passages to a saved array, as the documentation of sentence-transformers encodes.
_ENCODE = """
import json, sys
import numpy as np
from sentence_transformers import SentenceTransformer

model, keywords, batch, corpus, output = sys.argv[1:]
with open(corpus, encoding="utf-8") as stream:
    texts = [json.loads(line)["text"] for line in stream]
np.save(output, SentenceTransformer(model, **json.loads(keywords)).encode(texts, batch_size=int(batch)))
"""


def _resolved(precision: str) -> str:
    """Resolve a precision; "auto" is bf16 if the hardware multiplies bf16, else fp32."""
    return ("bf16" if multiplies_bf16() else "fp32") if precision == "auto" else precision


def _prepared(
    kind: Any, model: Path, folder: Path, backend: str, precision: str, sample: list[str]
) -> tuple[str, dict[str, Any]]:
    """Return the folder and keywords for loading a model in a backend of sentence-transformers.

    int8 is static in OpenVINO, calibrated on the sample, and dynamic in ONNX. The other layers of an int8 model compute
    in bf16 in OpenVINO if the hardware multiplies bf16.
    """
    precision = _resolved(precision)
    if backend == "torch":
        return str(model), {"model_kwargs": {"dtype": {"bf16": "bfloat16", "fp32": "float32"}[precision]}}
    exported = folder / "exported"
    loaded = kind(str(model), backend=backend)
    loaded.save_pretrained(str(exported))
    hint = "f32" if precision == "fp32" or not multiplies_bf16() else "bf16"
    options: dict[str, Any] = {}
    if backend == "openvino":
        options["ov_config"] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": hint}
    if precision == "int8":
        export = _static_openvino if backend == "openvino" else _dynamic_onnx
        options["file_name"] = export(loaded, exported, sample)
    return str(exported), {"backend": backend, "model_kwargs": options}


def _static_openvino(loaded: Any, folder: Path, sample: list[str]) -> str:
    from sentence_transformers import export_static_quantized_openvino_model

    calibration = folder.parent / "calibration"
    calibration.mkdir()
    with (calibration / "train.jsonl").open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps({"text": text}) + "\n" for text in sample[:_CALIBRATED])
    export_static_quantized_openvino_model(
        loaded,
        quantization_config=None,
        model_name_or_path=str(folder),
        dataset_name=str(calibration),
        dataset_config_name="default",
        dataset_split="train",
        column_name="text",
    )
    return "openvino_model_qint8_quantized.xml"


def _dynamic_onnx(loaded: Any, folder: Path, sample: list[str]) -> str:
    from sentence_transformers import export_dynamic_quantized_onnx_model

    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    form = "avx512_vnni" if "avx512_vnni" in flags else "avx2"
    form = "arm64" if platform.machine() in ("arm64", "aarch64") else form
    export_dynamic_quantized_onnx_model(loaded, form, str(folder))
    return f"model_qint8_{form}.onnx"


def encode(
    data: Path, folder: Path, *, count: int, backend: str = "torch", precision: str = "auto", length: int | None = None
) -> Side:
    """Vectors of passages."""
    from sentence_transformers import SentenceTransformer

    passages = texts(data / "passages.jsonl", count)
    if length is not None:
        passages = [" ".join((text.split() * length)[:length]) for text in passages]
    model, keywords = _prepared(SentenceTransformer, data / "model", folder, backend, precision, passages)
    encoder = SentenceTransformer(model, **keywords)
    return _encoding(lambda some, batch: encoder.encode(some, batch_size=batch), passages, precision, data)


def _encoding(run: Callable[[list[str], int], Any], passages: list[str], precision: str, data: Path) -> Side:
    """Encode texts in batches of the fastest size; in int8, compare with the vectors in fp32."""
    batch = fastest_batch(lambda size: run(passages[:_TRIED], size))
    settings = {"precision": _resolved(precision), "batch": batch}
    check = int8_check(precision, lambda: among_themselves(run(passages, batch)), data / "exact.npy")
    return Side(lambda: run(passages, batch), check=check, settings=settings)


def fastembed(data: Path, folder: Path, *, count: int) -> Side:
    """Encode with fastembed and the ONNX int8 model of sentence-transformers, texts sorted by length."""
    import numpy as np
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType
    from sentence_transformers import SentenceTransformer

    passages = texts(data / "passages.jsonl", count)
    model, keywords = _prepared(SentenceTransformer, data / "model", folder, "onnx", "int8", passages)
    tokenizer = Path(model) / "tokenizer_config.json"  # where fastembed reads the maximum length
    tokenizer.write_text(json.dumps({**json.loads(tokenizer.read_text()), "model_max_length": 256, "max_length": 256}))
    TextEmbedding.add_custom_model(
        model="local/model",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="local/model"),
        dim=384,
        model_file=f"onnx/{keywords['model_kwargs']['file_name']}",
    )
    encoder = TextEmbedding("local/model", specific_model_path=model)

    def run(some: list[str], batch: int) -> Any:
        order = sorted(range(len(some)), key=lambda row: -len(some[row]))
        vectors = np.empty((len(some), 384), dtype=np.float32)
        vectors[order] = list(encoder.embed([some[row] for row in order], batch_size=batch))
        return vectors

    return _encoding(run, passages, "int8", data)


def encode_command(data: Path, folder: Path, *, count: int, backend: str = "torch", precision: str = "auto") -> Side:
    """A script that saves .npy, with a model exported beforehand."""
    from sentence_transformers import SentenceTransformer

    corpus, output = head(data / "passages.jsonl", folder, count), folder / "vectors.npy"
    passages = texts(corpus, _TRIED)
    model, keywords = _prepared(SentenceTransformer, data / "model", folder, backend, precision, passages)
    encoder = SentenceTransformer(model, **keywords)
    batch = fastest_batch(lambda size: encoder.encode(passages, batch_size=size))
    run = command(sys.executable, "-c", _ENCODE, model, json.dumps(keywords), batch, corpus, output)

    def encoded() -> Any:
        import numpy as np

        return np.load(output)[:1000]

    def round_() -> Callable[[], Any]:
        run()
        return encoded

    return Side(round_, settings={"precision": _resolved(precision), "batch": batch})


def query(data: Path, folder: Path, *, count: int, backend: str = "torch", precision: str = "fp32") -> Side:
    """Vectors of questions, one by one."""
    import numpy as np
    from sentence_transformers import SentenceTransformer

    questions = texts(data / "questions.jsonl", count)
    model, keywords = _prepared(SentenceTransformer, data / "model", folder, backend, precision, questions)
    encoder = SentenceTransformer(model, **keywords)

    def run() -> Timed:
        return one_by_one(
            questions, lambda question: encoder.encode(question, show_progress_bar=False)[None], np.concatenate
        )

    check = int8_check(precision, lambda: among_themselves(run().output), data / "exact.npy")
    return Side(run, check=check, settings={"precision": _resolved(precision)})


def train(
    data: Path,
    folder: Path,
    *,
    batch: int,
    steps: int,
    length: int,
    negatives: int = 1,
    micro: int | None = None,
) -> Side:
    """The trainer's loop with MultipleNegativesRankingLoss, or its cached form to bound memory."""
    import datasets
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
    )

    elapsed = clock()
    triples = rows(data / "triples.jsonl", batch * steps)
    names = ("anchor", "positive", "negative")[: 2 + negatives]
    columns = datasets.Dataset.from_dict({name: [row[name] for row in triples] for name in names})

    def run(name: str, count: int) -> Timed:
        encoder = SentenceTransformer(str(data / name))
        encoder.max_seq_length = length
        if micro is None:
            loss = losses.MultipleNegativesRankingLoss(encoder)
        else:
            loss = losses.CachedMultipleNegativesRankingLoss(encoder, mini_batch_size=micro)
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(folder / "trained"),
            num_train_epochs=1,
            per_device_train_batch_size=batch,
            learning_rate=2e-5,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            **_in_bf16(),
        )
        trainer = SentenceTransformerTrainer(
            model=encoder, args=arguments, train_dataset=columns.select(range(count)), loss=loss
        )
        done = trainer.train()
        return Timed(elapsed(), {"loss": done.training_loss})

    return trained(run, "model", batch, steps)


def _in_bf16() -> dict[str, bool]:
    """Return the arguments of a trainer: bf16 if the hardware multiplies bf16."""
    import torch

    return {"bf16": multiplies_bf16(), "use_cpu": not torch.cuda.is_available()}  # else bf16 is refused


def splade_encode(data: Path, folder: Path, *, count: int, backend: str = "torch", precision: str = "auto") -> Side:
    """Weights of passages over the vocabulary, returned as a sparse tensor."""
    from sentence_transformers import SparseEncoder

    passages = texts(data / "passages.jsonl", count)
    model, keywords = _prepared(SparseEncoder, data / "splade", folder, backend, precision, passages)
    encoder = SparseEncoder(model, **keywords)
    encoder.max_seq_length = 256
    batch = fastest_batch(lambda size: encoder.encode(passages[:_TRIED], batch_size=size))

    def run() -> Callable[[], Any]:
        weights = encoder.encode(passages, batch_size=batch, show_progress_bar=False)
        return lambda: weights.float().to_dense().cpu().numpy()

    return Side(run, settings={"precision": _resolved(precision), "batch": batch})


def splade_train(data: Path, folder: Path, *, batch: int, steps: int, length: int, negatives: int = 1) -> Side:
    """The sparse trainer's loop with SpladeLoss."""
    import datasets
    from sentence_transformers import SparseEncoder, SparseEncoderTrainer, SparseEncoderTrainingArguments
    from sentence_transformers.sparse_encoder import losses

    elapsed = clock()
    triples = rows(data / "triples.jsonl", batch * steps)
    columns = datasets.Dataset.from_dict(
        {name: [row[name] for row in triples] for name in ("anchor", "positive", "negative")}
    )

    def run(name: str, count: int) -> Timed:
        encoder = SparseEncoder(str(data / name))
        encoder.max_seq_length = length
        loss = losses.SpladeLoss(
            model=encoder,
            loss=losses.SparseMultipleNegativesRankingLoss(model=encoder),
            query_regularizer_weight=5e-5,
            document_regularizer_weight=3e-5,
        )
        arguments = SparseEncoderTrainingArguments(
            output_dir=str(folder / "trained"),
            num_train_epochs=1,
            per_device_train_batch_size=batch,
            learning_rate=2e-5,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            **_in_bf16(),
        )
        done = SparseEncoderTrainer(
            model=encoder, args=arguments, train_dataset=columns.select(range(count)), loss=loss
        ).train()
        return Timed(elapsed(), {"loss": done.training_loss})

    return trained(run, "splade", batch, steps)


def rerank(data: Path, folder: Path, *, count: int, backend: str = "torch", precision: str = "auto") -> Side:
    """Scores of pairs by CrossEncoder.predict; in int8, as (questions, passages)."""
    import torch
    from sentence_transformers import CrossEncoder

    question_passages = pairs(data, count)
    sample = [" ".join(pair) for pair in question_passages]
    model, keywords = _prepared(CrossEncoder, data / "reranker", folder, backend, precision, sample)
    reranker = CrossEncoder(model, **keywords)

    def run(some: list[tuple[str, str]], batch: int) -> Any:
        return reranker.predict(
            some, batch_size=batch, activation_fn=torch.nn.Identity(), show_progress_bar=False
        ).reshape(-1, PASSAGES)

    batch = fastest_batch(lambda size: run(question_passages[:_TRIED], size))
    check = int8_check(precision, lambda: run(question_passages, batch), data / "exact.npy")
    return Side(
        lambda: run(question_passages, batch), check=check, settings={"precision": _resolved(precision), "batch": batch}
    )


# A script that mines negatives.
_MINE = """
import json, sys
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import mine_hard_negatives

model, dtype, corpus, examples, depth, output = sys.argv[1:]
with open(corpus, encoding="utf-8") as stream:
    passages = {row["_id"]: row["text"] for row in map(json.loads, stream)}
with open(examples, encoding="utf-8") as stream:
    rows = list(map(json.loads, stream))
pairs = Dataset.from_dict(
    {"anchor": [row["query"] for row in rows], "positive": [passages[row["positives"][0]] for row in rows]}
)
encoder = SentenceTransformer(model, model_kwargs={"dtype": dtype})
encoder.max_seq_length = 256
mined = mine_hard_negatives(
    pairs, encoder, corpus=list(passages.values()), range_min=1, range_max=int(depth),
    relative_margin=0.05, num_negatives=10, output_format="n-tuple", verbose=False,
)
mined.to_json(output)
"""


def mine(data: Path, folder: Path, *, questions: int, depth: int, count: int) -> Callable[[], None]:
    """A script around mine_hard_negatives, which encodes and searches the corpus."""
    corpus, examples = mined_from(data, folder, questions, count)
    dtype = "bfloat16" if multiplies_bf16() else "float32"
    run = command(sys.executable, "-c", _MINE, data / "splade", dtype, corpus, examples, depth, folder / "mined.jsonl")

    def round_() -> None:
        run()

    return round_


if __name__ == "__main__":
    serve(globals())
