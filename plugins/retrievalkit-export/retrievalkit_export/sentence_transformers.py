"""A sentence-transformers model: Transformer, Pooling, Dense if there is a projection, Normalize."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from retrievalkit_export.card import Written
from retrievalkit_export.folders import ModuleFolders, transformer_settings
from retrievalkit_export.forms import SingleVector, check_encoder, single_vector, title_note, write_encoder

if TYPE_CHECKING:
    from retrievalkit.models.retriever import Retriever

LIBRARY = "sentence-transformers"
_MODES = {
    "cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "sqrt_mean": "mean_sqrt_len_tokens",
    "weighted_mean": "weightedmean_tokens", "last": "lasttoken",
}  # fmt: skip
_LATER_MODES = {"cls": "cls", "max": "max", "mean": "mean", "sqrt_mean": "mean_sqrt_len_tokens"}
_LATER_MODES |= {"weighted_mean": "weightedmean", "last": "lasttoken"}
_EXAMPLE = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER")
scores = model.similarity(model.encode_query(["a question"]), model.encode_document(["a passage"]))"""


def write(retriever: Retriever, folder: Path) -> Written:
    """Write the model's folder.

    Raises:
        UnsupportedError: Its modules cannot compute the checkpoint's vectors.
    """
    form = single_vector(retriever, LIBRARY)
    encoder = check_encoder(retriever, LIBRARY)
    write_encoder(retriever, "document", folder)
    settings, notes = transformer_settings(encoder.lengths)
    modules = ModuleFolders(folder, "Transformer", settings)
    modules.add("Pooling", _pooling(form, encoder.info.width))
    for layer in form.layers:
        modules.add_dense(layer)
    if form.normalize:
        modules.add("Normalize", {})
    similarity = "cosine" if form.normalize else "dot"
    modules.finish(encoder, model_type="SentenceTransformer", similarity_fn_name=similarity)
    return Written(
        library=LIBRARY,
        example=_EXAMPLE,
        notes=[*notes, title_note(encoder.title, LIBRARY)],
        tags=["sentence-transformers", "sentence-similarity", "feature-extraction"],
        pipeline="sentence-similarity",
    )


def _pooling(form: SingleVector, width: int) -> dict[str, object]:
    joined = list(_MODES)
    # The older format, which every release reads, concatenates poolings in a fixed order.
    if list(form.poolings) == [name for name in joined if name in form.poolings]:
        modes: dict[str, object] = {f"pooling_mode_{_MODES[name]}": name in form.poolings for name in joined}
    else:
        modes = {"pooling_mode": [_LATER_MODES[name] for name in form.poolings]}
    return {"word_embedding_dimension": width, **modes, "include_prompt": True}
