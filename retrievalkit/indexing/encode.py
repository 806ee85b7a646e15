"""`rkit encode`: encodes a corpus or queries into a vectors/ folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal

from retrievalkit.contracts.cluster import RayOptions
from retrievalkit.contracts.declarations import Argument, ReadingOptions, Reads, WritingOptions, command
from retrievalkit.data import inputs
from retrievalkit.indexing.options import EncodingOptions
from retrievalkit.registry.modules import large_imports
from retrievalkit.reporting.terminal import counted
from retrievalkit.storage import Folder


@dataclass(frozen=True)
class EncodeOptions(EncodingOptions, RayOptions, ReadingOptions, WritingOptions):
    """Options of `encode`.

    Args:
        model: A checkpoint, or a pretrained model: a hub name, a folder, package:NAME/FOLDER.
        texts: A corpus or queries: a file, a folder, pydoc:PACKAGES; in Python also texts, dicts, a table.
        side: Side to encode, which selects the tower and the length limit.
    """

    model: Annotated[Any, Argument(), Reads(inputs.model)]
    texts: Annotated[Any, Argument(), Reads(accepts=("passages", "queries"))]
    _: KW_ONLY
    side: Literal["document", "query"] = "document"

    @staticmethod
    def adapted(values: Mapping[str, Any]) -> dict[str, Any]:
        """Convert texts in memory to a source address."""
        read = inputs.queries if values.get("side") == "query" else inputs.passages
        return {**values, **({"texts": read(values["texts"])} if "texts" in values else {})}


@command("encode", EncodeOptions)
def encode(options: EncodeOptions) -> Folder:
    """Encode TEXTS (a corpus or queries) with MODEL (a checkpoint or a pretrained model)."""
    with large_imports():
        from retrievalkit.indexing.corpus_encoding import encode as program

    manifest = program(
        options.model,
        options.texts,
        side=options.side,
        output=str(options.output),
        options=options,
        overwrite=options.overwrite,
        cluster=options.cluster,
    )
    pooling = manifest["checkpoint"].get("description", {}).get("pooling")
    summary = f"{options.output}: {counted(manifest['counts']['texts'], 'texts')} encoded"
    return Folder(options.output, manifest, f"{summary} ({pooling})" if pooling else summary)
