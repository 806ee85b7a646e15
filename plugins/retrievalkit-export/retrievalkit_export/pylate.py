"""A PyLate (ColBERT) model: Transformer and Dense, with ColBERT's markers, lengths and skipped tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from retrievalkit.contracts import SIDES
from retrievalkit_export.card import Written
from retrievalkit_export.folders import ModuleFolders
from retrievalkit_export.forms import Layer, check_encoder, refuse, title_note, write_encoder

if TYPE_CHECKING:
    from retrievalkit.models.retriever import Retriever

_NAME = "PyLate"
_EXAMPLE = """\
from pylate import models, scores

model = models.ColBERT("FOLDER")
queries = model.encode(["a question"], is_query=True)
documents = model.encode(["a passage"], is_query=False)
print(scores.colbert_scores(queries, documents))"""


def write(retriever: Retriever, folder: Path) -> Written:
    """Write the model's folder.

    Raises:
        UnsupportedError: The pooler is not `colbert`, or has an option that PyLate lacks.
    """
    tower = check_encoder(retriever, _NAME, markers=True)
    pooler: Any = retriever.pooler
    name = retriever.description["pooler"]["name"]
    if name != "colbert":
        refuse(_NAME, f"its pooler is '{name}', but the target needs a vector per token (pooler 'colbert')")
    if pooler.layer != tower.info.layers:
        refuse(_NAME, f"its vectors come from layer {pooler.layer}, but the target uses the last layer")
    if not pooler.normalize:
        refuse(_NAME, "its vectors are not normalised, but the target's are")
    write_encoder(retriever, "document", folder)
    settings = {"max_seq_length": max(tower.lengths.values()), "do_lower_case": False}
    modules = ModuleFolders(folder, "Transformer", settings)
    # PyLate always needs a projection.
    projection = Layer(torch.eye(tower.info.width), None) if pooler.projection is None else Layer.of(pooler.projection)
    modules.add_dense(projection, "pylate.models.Dense.Dense", use_residual=False)
    names = {side: tower.tokenizer.convert_ids_to_tokens(tower.extra.ids[side]) for side in SIDES}
    markers = {side: str(tokens[0]) if tokens else "" for side, tokens in names.items()}
    modules.finish(
        tower,
        model_type="ColBERT",
        similarity_fn_name="MaxSim",
        query_prefix=markers["query"],
        document_prefix=markers["document"],
        query_length=tower.lengths["query"],
        document_length=tower.lengths["document"],
        do_query_expansion=pooler.query_filled,
        attend_to_expansion_tokens=pooler.needs.fill_attended,
        skiplist_words=tower.tokenizer.convert_ids_to_tokens(pooler.skipped.tolist()),
    )
    notes = [title_note(tower.title, _NAME)]
    if any(tower.prefixes.values()):
        notes.append('PyLate adds prompts only on request: encode(..., prompt_name="query" or "document").')
    return Written(library=_NAME, example=_EXAMPLE, notes=notes, tags=["ColBERT", "PyLate", "feature-extraction"])
