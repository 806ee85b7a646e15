"""Compare two systems, with a significance test. In a notebook, a comparison is displayed with plots.

python examples/compare.py
"""

import retrievalkit as rk

qrels = {"q1": {"rome": 1}, "q2": {"lima": 1}, "q3": {"cairo": 1, "rome": 0}}
first = rk.Run({"q1": {"rome": 2.0, "lima": 1.0}, "q2": {"rome": 2.0, "lima": 1.0}, "q3": {"cairo": 1.0}}, "first")
second = rk.Run({"q1": {"rome": 2.0}, "q2": {"lima": 2.0, "rome": 1.0}, "q3": {"lima": 2.0, "cairo": 1.0}}, "second")

metrics = first.evaluate(qrels, ["nDCG@10", "RR@10"])
print(metrics["nDCG@10"], metrics.per_query["RR@10"])

comparison = rk.compare([first, second], qrels, metrics="RR@10")
print(comparison.to_pandas()[["run", "mean", "difference", "p (Holm)"]])
