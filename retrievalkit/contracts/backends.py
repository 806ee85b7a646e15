"""The contract of backends: libraries that compute the layers of encoders and cross-encoders in inference, not torch.

    model --Function--> Backend.compile --Program: inputs -> outputs

`--backend NAME` selects a backend by its registered name. Its module is imported by searches that need no torch, so it
must not import torch at the top. `read_entry` and `write_entry` keep what it exports in the user's cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from retrievalkit.contracts.encoding import Precision, Text, model_input
from retrievalkit.errors import UnsupportedError
from retrievalkit.reporting import notices
from retrievalkit.storage import Entry, fingerprint_value, full_disk_named, private_folder, read_entry, write_entry

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from retrievalkit.contracts.models import Encoder, Side
    from retrievalkit.models.retriever import Retriever

__all__ = [
    "Backend", "Program", "Function", "ExportError", "QueryEncoder", "Precision", "model_input", "Entry",
    "fingerprint_value", "full_disk_named", "private_folder", "read_entry", "write_entry",
]  # fmt: skip


class ExportError(UnsupportedError):
    """A function that a backend cannot compute, so that torch computes it."""

    def note(self, source: str) -> None:
        """Issue the note that a model runs on torch, with the reason, the cost and the remedy."""
        reason = f"takes several times as long on some processors: {str(self).rstrip('.')}"
        notices.note(f"'{source}' runs on torch, which {reason}. With --backend torch nothing is exported.")


@dataclass(frozen=True)
class Function:
    """A function of a model, from named tensors to tensors, for a backend to compute.

    Attributes:
        network: Returns the module that holds the weights, which are loaded on the first call.
        compute: Computes the outputs with torch.
        examples: Returns example inputs for a number of texts and a number of tokens; the first text is padded.
        identity: A JSON-able value on which the outputs depend, for a cache; None = unknown.
        folder: The model's folder, if the function is from `input_ids` and `attention_mask` to its last hidden states,
            which the folder may also contain in the backend's format.
    """

    network: Callable[[], nn.Module]
    compute: Callable[[dict[str, Tensor]], Sequence[Tensor]]
    examples: Callable[[int, int], dict[str, Tensor]]
    identity: object = None
    folder: Path | None = None


class Program(ABC):
    """A function that a backend computes."""

    @abstractmethod
    def __call__(self, inputs: Mapping[str, Tensor], precision: Precision, *, parallel: bool) -> list[Tensor]:
        """Compute the outputs, or raise ExportError; with `parallel` on one core, as other threads call too."""

    def quantise(self, batches: Sequence[Mapping[str, Tensor]]) -> None:
        """Calibrate int8 on batches of inputs, for this process; needed if `Backend.precisions` includes int8."""
        del batches
        raise NotImplementedError


class QueryEncoder(Protocol):
    """A dual encoder with one vector per text, for a few texts at a time, without torch."""

    def tokenize(self, texts: Sequence[Text], side: Side) -> list[list[int]]:
        """Tokenise texts as `Encoder.tokenize` does."""

    def encode(self, texts: Sequence[Text], side: Side) -> np.ndarray:
        """Return the vectors (texts, dim) of texts, in float32."""


class Backend(ABC):
    """Base class of backends, created without arguments."""

    name: str = ""
    """The registered name; set by the registry's caller."""

    automatic: bool = False
    """True if `--backend auto` selects it where it is available."""

    precisions: tuple[Precision, ...] = ("fp32",)
    """The number formats that it computes in; fp32 is one of them, and the meaning of auto if the usual one is not."""

    def threads(self) -> int:
        """Return the number of batches to compute at a time, each in its own thread."""
        return 1

    def batch_tokens(self, lengths: Sequence[int]) -> int:
        """Return the tokens per batch, padding included, of texts of these lengths."""
        del lengths
        return 1_024

    @abstractmethod
    def check(self, device: str) -> None:
        """Refuse a type of device ("cpu", "cuda") that it does not compute on, and a missing package (InputError)."""

    @abstractmethod
    def compile(self, function: Function) -> Program:
        """Return the program of a function, which may be compiled on its first call."""

    def encoder(self, kind: type[Encoder], model: str | Path, **options: Any) -> Encoder:
        """Create an encoder of a class for inference; optional: by default torch computes its layers.

        For the encoder `transformer`, `retrievalkit_openvino.encoder` has a subclass for any backend.
        """
        return kind(model, **options)  # type: ignore[call-arg]

    def open_queries(self, model: str, identity: object, load: Callable[[], Retriever]) -> QueryEncoder | None:
        """Open a retriever that encodes queries without torch; optional: None if only torch does so.

        `identity` (fingerprint and options) is for a cache of what was exported of the retriever that `load` loads.
        """
        del model, identity, load
        return None
