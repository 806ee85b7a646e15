"""A sentence-transformers model with the layers of its encoder as OpenVINO graphs (IR).

openvino/openvino_model.xml, .bin                    input_ids, attention_mask -> last_hidden_state
openvino/openvino_model_qint8_quantized.xml, .bin    the same in int8, with --quantize int8

sentence-transformers (backend="openvino") and OpenVINO read these files; `rkit encode FOLDER --precision int8` uses the
second without calibration.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrievalkit_openvino.runtime import QUANTISED, save_model

from retrievalkit.contracts.commands import Precision
from retrievalkit_export import sentence_transformers
from retrievalkit_export.card import Written

if TYPE_CHECKING:
    from retrievalkit.models.retriever import Retriever

FOLDER = QUANTISED.parent.name
NAMES: dict[Precision, str] = {"fp32": "openvino_model.xml", "int8": QUANTISED.name}
_EXAMPLE = """\
from sentence_transformers import SentenceTransformer  # pip install 'sentence-transformers[openvino]'

# "file_name" selects one of the graphs in FOLDER/openvino.
model = SentenceTransformer("FOLDER", backend="openvino", model_kwargs={"file_name": "openvino_model.xml"})
scores = model.similarity(model.encode_query(["a question"]), model.encode_document(["a passage"]))"""


def write(retriever: Retriever, folder: Path) -> Written:
    """Write the model's folder, without the graphs.

    Raises:
        UnsupportedError: The modules of sentence-transformers cannot compute the checkpoint's vectors.
    """
    written = sentence_transformers.write(retriever, folder)
    return replace(written, example=_EXAMPLE, tags=[*written.tags, "openvino"])


def write_graph(retriever: Retriever, folder: Path, precision: Precision) -> None:
    """Write the graph of a retriever that OpenVINO computes; in int8 as calibrated."""
    tower: Any = retriever.tower("document")
    model = tower.program((tower.info.layers,)).model(precision)
    model.outputs[0].get_tensor().set_names({"last_hidden_state"})
    (folder / FOLDER).mkdir(exist_ok=True)
    save_model(model, folder / FOLDER / NAMES[precision])
