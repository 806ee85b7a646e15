"""Options for encoding texts: model parts and vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from retrievalkit.contracts.declarations import Flag, Named

Count = Annotated[int, Ge(1)]
Precision = Literal["auto", "fp32", "bf16", "fp16", "int8"]
Backend = Annotated[str, Named("backend")]

SHARD_TEXTS = 8_192


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options for the parts of a pretrained model.

    Args:
        encoder: Encoder of a pretrained model (rkit plugins list); a checkpoint has its own.
        pooler: Pooler of a pretrained model; by default its own (modules.json), else cls.
        encoder_options: Options of that encoder; for a checkpoint, only `query_length` and `document_length`. An index
            of the vectors uses them for its queries.
        pooler_options: Options of that pooler.
        backend: Library that runs the encoder's layers: "auto" (the default) is OpenVINO on a CPU if it is installed,
            else "torch"; "openvino" or "onnx".
    """

    heading: ClassVar = "Model"

    encoder: Annotated[str | None, Named("encoder")] = None
    pooler: Annotated[str | None, Named("pooler")] = None
    encoder_options: Mapping[str, Any] | None = None
    pooler_options: Mapping[str, Any] | None = None
    backend: Backend = "auto"

    @property
    def parts(self) -> dict[str, Any]:
        """The parts, their options and the backend, by name."""
        names = ("encoder", "pooler", "encoder_options", "pooler_options", "backend")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class VectorOptions:
    """Options for vectors: number format, size, batches and shards.

    Args:
        precision: Number format for encoding: "auto" (the default) is bf16 if the hardware multiplies bf16, else fp32.
            "int8" (OpenVINO) is calibrated on the texts; it is faster on a CPU, and less exact.
        dimensions: Number of dimensions to keep of each vector (Matryoshka). Unit vectors are normalised again.
            An index of the vectors also truncates its queries.
        compressor: Compressor of the documents (rkit plugins list), with options as in "token_pooling(factor=2)". An
            index of the vectors also compresses added texts.
        stored: Number format of the vectors in the folder; None = fp32.
        batch_tokens: Maximum tokens in a batch, with padding; None = chosen by device.
        shard_texts: Texts per shard: the unit of memory and of resuming.
    """

    heading: ClassVar = "Encoding"

    precision: Precision | None = None
    dimensions: Count | None = None
    compressor: Annotated[str | None, Named("compressor"), Flag(metavar="NAME")] = None
    stored: Literal["fp32", "fp16"] | None = None
    batch_tokens: Count | None = None
    shard_texts: Count = SHARD_TEXTS


@dataclass(frozen=True, kw_only=True)
class EncodingOptions(ModelOptions, VectorOptions):
    """Options for encoding texts."""

    precision: Precision = "auto"
