"""Say which of two systems is better, and by how much. In a notebook, a comparison shows itself with plots.

python examples/compare.py
"""

import retrievalkit as rk

qrels = {"q1": {"rome": 1}, "q2": {"lima": 1}, "q3": {"cairo": 1, "rome": 0}}
first = rk.Run({"q1": {"rome": 2.0, "lima": 1.0}, "q2": {"rome": 2.0, "lima": 1.0}, "q3": {"cairo": 1.0}}, "first")
second = rk.Run({"q1": {"rome": 2.0}, "q2": {"lima": 2.0, "rome": 1.0}, "q3": {"lima": 2.0, "cairo": 1.0}}, "second")

found = first.evaluate(qrels, ["nDCG@10", "RR@10"])
print(found["nDCG@10"], found.per_query["RR@10"])

comparison = rk.compare([first, second], qrels, metrics="RR@10")
print(comparison.to_pandas()[["run", "mean", "difference", "p (Holm)"]])
