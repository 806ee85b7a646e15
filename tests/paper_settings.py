"""The papers' hyper-parameters, by recipe; `python tests/paper_settings.py` prints ours next to them.

Hyper-parameters that a paper does not report are not listed: comments in the recipes explain our choices.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from retrievalkit_testing.recipes import load_with_any_values

from retrievalkit.recipes.recipe import Recipe
from retrievalkit.recipes.settings import flatten

Settings = dict[str, Any]

_FIVE_SEEDS = {12345, 12346, 12347, 12348, 12349}  # the paper names the first
_LENGTHS = {"query_length": 256, "document_length": 256}
DPR: Settings = {
    "epochs": 40, "batch_size": 128, "learning_rate": 2e-5, "negatives": 1, "warmup_ratio": 0.05,
    "max_gradient_norm": 2.0, "positive": "first", "false_negatives": "keep", **_LENGTHS,
}  # fmt: skip
MLR: Settings = DPR | {"separate_towers": True, "negative_pool": 200, "seed": 12345}
MLR_RETROMAE: Settings = MLR | {"model": "Shitao/RetroMAE", "learning_rate": 5e-6}
MLR_MARCO: Settings = {
    "model": "Shitao/RetroMAE", "separate_towers": True, "epochs": 4, "batch_size": 128, "learning_rate": 1e-5,
    "negatives": 15, "negative_pool": 100, "warmup_ratio": 0.05, "max_gradient_norm": 2.0, "seed": 12345, **_LENGTHS,
}  # fmt: skip
AGG_MARCO: Settings = {
    "separate_towers": False, "epochs": 3, "batch_size": 8, "learning_rate": 5e-6, "negatives": 7, "warmup_ratio": 0.1,
    "sampling": "window", "positive": "random", "query_length": 32, "document_length": 128,
}  # fmt: skip
AGG_QA: Settings = DPR | {"separate_towers": False, "query_length": 32, "document_length": 156}
MVR: Settings = DPR | {"separate_towers": True}
COTMAE: Settings = {
    "separate_towers": False, "epochs": 3, "batch_size": 64, "learning_rate": 2e-5, "negatives": 15,
    "weight_decay": 0.01, "query_length": 32, "document_length": 144, "positive": "random",
}  # fmt: skip
COTMAE_PRETRAINING: Settings = {
    "steps": 50000, "batch_size": 8192, "learning_rate": 4e-4, "max_length": 144,
}  # fmt: skip
FLOPS: Settings = {"loss.flops_query": 0.002, "loss.flops_document": 0.002, "pooler.top_k": 768}

PAPERS: dict[str, dict[str, Settings]] = {
    "open_qa": {"train": DPR},
    **{f"mlr/table{n}": {"train": MLR} for n in ("2", "2_squad", "2_triviaqa", "7", "8")},
    "mlr/table1": {"train": {**MLR, "learning_rate": {2e-5, 5e-4}}},  # T5's is 5e-4
    "mlr/figures": {"train": MLR},
    "mlr/table3": {
        "train": MLR_RETROMAE | {"seed": _FIVE_SEEDS},
        "mined": {"depth": 100, "keep": 50, "positives": "retrieved"},
        "stage2": MLR_RETROMAE | {"seed": _FIVE_SEEDS, "epochs": 20},
    },
    "mlr/table4": {
        "train": MLR_MARCO,
        "mined": {"depth": 200, "negatives": 100},
        "stage2": MLR_MARCO | {"loss.regularization": {0.01, 1}},
    },
    "mlr/table5": {
        "train": {
            "model": "Shitao/RetroMAE", "separate_towers": True, "epochs": 10, "batch_size": 128,
            "learning_rate": 3e-5, "loss.regularization": 0.01, **_LENGTHS,
        }
    },
    "squad/mlr_two_stage": {
        "stage1": {
            "model": "Shitao/RetroMAE", "separate_towers": True, "epochs": 40, "batch_size": 128,
            "learning_rate": 5e-6, "negatives": 1, "loss.regularization": 0.1, "false_negatives": "keep",
            "seed": 12345, **_LENGTHS,
        },
        "stage1_negatives": {"depth": 100, "keep": 50, "positives": "retrieved"},
        "stage2": {"model": "Shitao/RetroMAE", "epochs": 20, "learning_rate": 5e-6, "loss.regularization": 0.1},
    },
    **{f"aggretriever/table{n}": {"train": AGG_MARCO} for n in ("2", "7", "8", "7_beir", "8_beir", "10", "5")},
    "aggretriever/table3": {"train": AGG_MARCO | {"limit": {1000, 10000}}},
    "aggretriever/table6": {
        "train": AGG_MARCO,
        "mined": {"depth": 200, "negatives": 200, "sample": "top"},
        "stage2": AGG_MARCO | {"epochs": 2, "separate_towers": None},  # as in the checkpoint
    },
    **{f"aggretriever/table{n}": {"train": AGG_QA} for n in ("2_nq", "2_triviaqa", "4", "5_nq", "5_triviaqa")},
    **{f"mvr/table{n}": {"train": MVR} for n in ("1", "2", "3", "5", "6", "8")},
    **{
        f"cotmae/table{n}": {"pretrain": COTMAE_PRETRAINING, "train": COTMAE, "stage2": COTMAE}
        for n in ("1", "2", "4", "5")
    },
    "cotmae/table3": {
        "pretrain": COTMAE_PRETRAINING | {"max_length": 512},
        "train": COTMAE | FLOPS | {"epochs": 10, "batch_size": 1024, "learning_rate": 1e-5, "negatives": 1},
    },
}  # fmt: skip
PAPERS["cotmae/table2"]["mined"] = {"depth": 200, "negatives": 128, "sample": "random"}
PAPERS["cotmae/table2"]["stage2"] = COTMAE | FLOPS


load = cache(load_with_any_values)


def ours(recipe: Recipe, step: str) -> list[Settings]:
    """Return the settings of a step for each row and seed, `--set` included."""
    settings = []
    for part in recipe.steps:
        if part.name.rpartition("/")[2] == step:
            options = {name.replace("-", "_"): value for name, value in part.options.items()}
            settings.append(options | flatten(options.get("set") or {}))
    return settings


if __name__ == "__main__":
    for recipe_name, steps in PAPERS.items():
        recipe = load(recipe_name)
        for step_name, settings in steps.items():
            for setting, paper in settings.items():
                mine = {str(own.get(setting)) for own in ours(recipe, step_name)}
                print(f"{recipe_name:28} {step_name:16} {setting:20} paper {paper!s:18} ours {' '.join(sorted(mine))}")
