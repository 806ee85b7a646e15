"""The program behind `rkit export`: a checkpoint, vectors or an index in, a folder that another library opens out.

rkit export CHECKPOINT DIR --to sentence-transformers|sparse-encoder|pylate|pyserini|onnx
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from retrievalkit import artifacts
from retrievalkit.errors import InputError, UnsupportedError, check_choice
from retrievalkit.export.card import card_text
from retrievalkit.export.targets import TARGETS, ExportOptions, Written, writer

_FOLDERS_OF_VECTORS = ("vectors", "index")


def export(source: str, output: str | Path, options: ExportOptions, *, overwrite: bool = False) -> dict[str, Any]:
    """Write an export.

    Args:
        source: A checkpoint or a pretrained model; for Pyserini also a vectors folder or an index `flat`.
        output: The folder to write.
        options: What it is to be.
        overwrite: Replace an output folder that exists already.

    Returns:
        The manifest, with "notes": what the user has to know.

    Raises:
        InputError: The source is none, an option is not the target's, or the target cannot say what the source does.
    """
    check_choice("target", options.to, TARGETS)
    _check_options(options)
    artifacts.check_output(output, overwrite=overwrite)
    with artifacts.write_folder(output, overwrite=overwrite) as staging:
        written, inputs = _write(source, staging, options)
        text = card_text(source, written, options).replace("FOLDER", Path(output).name)
        (staging / "README.md").write_text(text, encoding="utf-8")
        return artifacts.write_manifest(
            staging,
            "export",
            command="export",
            options=asdict(options),
            inputs=inputs,
            files=artifacts.describe_files(staging),
            figures=dict(written.figures),
            notes=list(written.notes),
        )


def _check_options(options: ExportOptions) -> None:
    if options.to != "onnx":
        given = [name for name in ("quantize", "texts", "queries", "qrels") if getattr(options, name) is not None]
        if given:
            msg = f"--{given[0]} is for --to onnx, and the target is {options.to}. Drop it."
            raise InputError(msg)
    elif options.quantize and options.texts is None:
        msg = "--quantize states its loss on texts. Give a corpus: --texts CORPUS, and perhaps --queries and --qrels."
        raise InputError(msg)
    elif options.quantize is None:
        given = [name for name in ("texts", "queries", "qrels") if getattr(options, name) is not None]
        if given:
            msg = f"--{given[0]} states the loss of --quantize int8, which is not given. Drop it, or quantise."
            raise InputError(msg)
    if (options.queries is None) != (options.qrels is None):
        msg = "--queries and --qrels go together. Give both, or none."
        raise InputError(msg)


def _write(source: str, folder: Path, options: ExportOptions) -> tuple[Written, dict[str, Any]]:
    kind = artifacts.kind_of(source)
    if kind in _FOLDERS_OF_VECTORS:
        if options.to != "pyserini":
            held = "vectors" if kind == "vectors" else f"an {kind}"
            msg = f"'{source}' holds {held}, and {options.to} takes a model. Give a checkpoint, or --to pyserini."
            raise UnsupportedError(msg)
        from retrievalkit.export import pyserini_index

        fingerprint = artifacts.fingerprint_value(artifacts.read_manifest(source).get("files", {}))
        return pyserini_index.write(source, folder), {"vectors": artifacts.describe_input(source, fingerprint)}
    from retrievalkit.export.forms import opened

    retriever = opened(source, for_tracing=options.to == "onnx", length=options.length)
    written = writer(options.to)(retriever, folder)
    if options.quantize:
        from retrievalkit.export.quantize import quantize

        written = replace(written, figures={**written.figures, **quantize(retriever, folder, options)})
    return written, {"model": artifacts.describe_input(source, retriever.fingerprint)}
