"""The folder of a sentence-transformers model: the encoder's files at the top, other modules in subfolders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from retrievalkit.contracts.commands import write_json
from retrievalkit_export.forms import ACTIVATIONS, Layer

# Class names of 2.x, which all later releases accept.
_TYPES = "sentence_transformers.models."


class ModuleFolders:
    """Writer of a model's modules, in order: the encoder into the folder itself, the others into subfolders."""

    def __init__(self, folder: Path, encoder: str, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self.listed: list[dict[str, Any]] = []
        write_json(folder / "sentence_bert_config.json", settings)
        self._list(encoder, "")

    def add(self, kind: str, configuration: Mapping[str, Any]) -> Path:
        """Add a module and return its folder."""
        name = f"{len(self.listed)}_{kind.rpartition('.')[2]}"
        (self.folder / name).mkdir()
        write_json(self.folder / name / "config.json", configuration)
        self._list(kind, name)
        return self.folder / name

    def add_dense(self, layer: Layer, kind: str = "Dense", **more: Any) -> None:
        """Add a linear layer."""
        out_features, in_features = layer.weight.shape
        function = ACTIVATIONS[layer.activation]
        configuration = {
            "in_features": in_features,
            "out_features": out_features,
            "bias": layer.bias is not None,
            "activation_function": f"{function.__module__}.{function.__name__}",
            **more,
        }
        tensors = {"linear.weight": layer.weight} | ({} if layer.bias is None else {"linear.bias": layer.bias})
        place = self.add(kind, configuration)
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, place / "model.safetensors")

    def finish(self, encoder: Any, **described: Any) -> None:
        """Write modules.json, and the description of the whole model with the prompts and titles of its encoder."""
        write_json(self.folder / "modules.json", self.listed)
        of_encoder = {"prompts": encoder.prefixes, "default_prompt_name": None, "title": encoder.title}
        described = {"__version__": {}, **of_encoder, **described}
        write_json(self.folder / "config_sentence_transformers.json", described)

    def _list(self, kind: str, path: str) -> None:
        number = len(self.listed)
        full = kind if "." in kind else f"{_TYPES}{kind}"
        self.listed.append({"idx": number, "name": str(number), "path": path, "type": full})


def transformer_settings(lengths: Mapping[str, int]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of the Transformer module, and a note if they need a recent release."""
    query, document = lengths["query"], lengths["document"]
    settings = {"max_seq_length": max(query, document), "do_lower_case": False}
    if query == document:
        return settings, []
    note = (
        f"Queries are truncated to {query} tokens and documents to {document}, which sentence-transformers supports "
        f"from release 6. For older releases, export with a single length: --length {max(query, document)}"
    )
    return {**settings, "query_length": query, "document_length": document}, [note]
