"""`rkit export`: converts a checkpoint, vectors or an index to a folder that another library opens.

    rkit export CHECKPOINT DIR --to sentence-transformers|sparse-encoder|pylate|pyserini|onnx|openvino

A target is a module with its name and a function `write`.
"""

from __future__ import annotations

import importlib
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

import retrievalkit as rk
from retrievalkit.contracts.commands import (
    check_output,
    describe_files,
    describe_input,
    kind_of,
    read_manifest,
    uploading,
    write_folder,
    write_manifest,
)
from retrievalkit.contracts.declarations import Argument, Flag, Place, Reads, command
from retrievalkit.data import inputs
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.reporting.notices import gathered

_MANIFEST = "manifest.json"


def _source(value: Any) -> str:
    return inputs.place(getattr(value, "folder", value), "the source")


@dataclass(frozen=True)
class ExportOptions:
    """Options of `export`.

    Args:
        source: A checkpoint or the name or folder of a model; for Pyserini also a vectors folder or an index.
        output: The folder to write.
        to: The library that will open the folder.
        length: Maximum length in tokens, the same for queries and documents.
        quantize: For onnx and openvino: also write an int8 graph, and report its loss.
        texts: The corpus on whose vectors the loss is measured; for openvino also the texts to calibrate int8 on.
        queries: Queries, to report the loss in nDCG@10 and R@100 too.
        qrels: The judgements of the queries.
        license: The licence named in the model card, such as "apache-2.0".
        push: Upload to this repository on the Hugging Face hub; only with --no-dry-run.
        dry_run: List what `push` would upload.
        overwrite: Replace an existing output folder.
    """

    source: Annotated[Any, Argument(), Reads(_source, ("checkpoint", "vectors"))]
    output: Annotated[Place, Argument()]
    _: KW_ONLY
    to: Literal["sentence-transformers", "sparse-encoder", "pylate", "pyserini", "onnx", "openvino"]
    length: Annotated[int, Ge(3)] | None = None
    quantize: Literal["int8"] | None = None
    texts: Annotated[Any, Reads(inputs.passages)] = None
    queries: Annotated[Any, Reads(inputs.queries)] = None
    qrels: Annotated[Any, Reads(inputs.judgements)] = None
    license: str | None = None
    push: Annotated[str | None, Flag(metavar="NAME")] = None
    dry_run: bool = True
    overwrite: bool = False


@command("export", ExportOptions)
def export(options: ExportOptions) -> rk.Folder:
    """Convert SOURCE (a checkpoint, a model, or for Pyserini vectors) to the format of another library.

    The folder's manifest records the `figures` of a quantisation, `notes`, and with --push the uploaded files.
    """
    _check(options)
    source, output = options.source, Path(options.output)
    check_output(output, overwrite=options.overwrite)
    from retrievalkit_export.card import card_text

    kind = kind_of(source)
    uploaded = None if options.dry_run else options.push
    with uploading(output, uploaded), write_folder(output, overwrite=options.overwrite) as staging:
        if kind in ("vectors", "index"):
            if options.to != "pyserini":
                msg = f"'{source}' is not a model, but {options.to} needs a model. Give a checkpoint, or --to pyserini."
                raise UnsupportedError(msg)
            from retrievalkit_export.pyserini import write_index

            written = write_index(Path(source), staging)
            read = {"vectors": describe_input(source, read_manifest(source).get("files", {}))}
        else:
            from retrievalkit_export.forms import opened

            retriever = opened(source, for_tracing=options.to == "onnx", length=options.length)
            target = importlib.import_module(f"retrievalkit_export.{options.to.replace('-', '_')}")
            with gathered():  # the probe texts may be truncated
                written = target.write(retriever, staging)
            if options.to == "openvino":
                retriever = opened(source, length=options.length, backend="openvino")
                target.write_graph(retriever, staging, "fp32")
                if Path(source, target.FOLDER, target.NAMES["int8"]).is_file():  # exported in int8 before
                    target.write_graph(retriever, staging, "int8")
            if options.quantize:
                from retrievalkit_export.quantize import quantize

                figures = quantize(retriever, staging, options.texts, options.queries, options.qrels)
                written = replace(written, figures={**written.figures, **figures})
            read = {"model": describe_input(source, retriever.fingerprint)}
        text = card_text(source, written, options.license).replace("FOLDER", output.name)
        (staging / "README.md").write_text(text, encoding="utf-8")
        recorded = ("to", "length", "quantize", "texts", "queries", "qrels", "license")
        manifest = write_manifest(
            staging,
            "export",
            command="export",
            options={name: getattr(options, name) for name in recorded},
            inputs=read,
            files=describe_files(staging),
            figures=dict(written.figures),
            notes=list(written.notes),
        )
    lines = [f"{output}: a folder for {options.to}", *(f"{name}: {value}" for name, value in written.figures.items())]
    if options.push is not None:
        # The manifest contains paths of this machine.
        files = sorted(path for path in output.rglob("*") if path.is_file() and path.name != _MANIFEST)
        sizes = {path.relative_to(output).as_posix(): path.stat().st_size for path in files}
        manifest["push"] = {"name": options.push, "dry_run": options.dry_run, "files": sizes}
        if options.dry_run:
            lines += [f"would be uploaded to {options.push}: {name} ({size:,} bytes)" for name, size in sizes.items()]
            lines.append("Nothing was uploaded. Upload with --no-dry-run.")
    return rk.Folder(output, manifest, "\n".join(lines))


def _check(options: ExportOptions) -> None:
    """Refuse options that have no effect."""
    measured = [name for name in ("texts", "queries", "qrels") if getattr(options, name) is not None]
    for_graphs = (["quantize"] if options.quantize else []) + measured
    if options.push is None and not options.dry_run:
        msg = "dry_run=False has no effect without push. Set push to the name of the repository, or leave it out."
    elif options.to not in ("onnx", "openvino") and for_graphs:
        msg = f"{for_graphs[0]} only applies to the targets onnx and openvino, not to {options.to}. Leave it out."
    elif options.quantize and options.texts is None:
        msg = "quantize needs texts, on which its loss is measured. Give a corpus as texts; also queries and qrels."
    elif options.quantize is None and measured:
        msg = f"{measured[0]} measures the loss of quantize, which is not set. Leave it out, or set quantize."
    elif (options.queries is None) != (options.qrels is None):
        msg = "queries and qrels are needed together. Give both, or neither."
    else:
        return
    raise InputError(msg)
