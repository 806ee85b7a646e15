"""Plain torch and transformers' Trainer: Tevatron's training loop as published, masked language modelling, pooling."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pooling
import torch
import transformers
from worker import Side, Timed, clock, command, multiplies_bf16, rows, serve, texts, trained


def import_torch(data: Path, folder: Path) -> Callable[[], str]:
    """`import torch` alone."""
    return command(sys.executable, "-c", "import torch")


def _arguments(folder: Path, batch: int, **more: Any) -> transformers.TrainingArguments:
    return transformers.TrainingArguments(
        output_dir=str(folder / "trained"),
        per_device_train_batch_size=batch,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        use_cpu=not torch.cuda.is_available(),  # else bf16 is refused
        **more,
    )


class _Dense(torch.nn.Module):
    """Mean pooling, scaled to length 1; cross entropy of a step's queries over its passages, at temperature 0.05."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, queries: Any, passages: Any) -> dict[str, Any]:
        """The loss of a batch of queries and a batch of passages, each padded to its longest."""
        questions, answers = self._pooled(queries), self._pooled(passages)
        targets = torch.arange(len(questions), device=questions.device) * (len(answers) // len(questions))
        return {"loss": torch.nn.functional.cross_entropy(questions @ answers.T / 0.05, targets)}

    def _pooled(self, batch: Any) -> torch.Tensor:
        mask = batch["attention_mask"][:, :, None]
        states = self.encoder(**batch).last_hidden_state.masked_fill(mask == 0, 0)
        return torch.nn.functional.normalize(states.sum(dim=1) / mask.sum(dim=1), dim=-1)


def tevatron(data: Path, folder: Path, *, batch: int, steps: int, length: int) -> Side:
    """Tevatron's published loop: transformers' Trainer, padded to multiples of 16, in bf16 if it is faster."""
    elapsed = clock()
    tokenizer = transformers.AutoTokenizer.from_pretrained(data / "model")
    triples = rows(data / "triples.jsonl", batch * steps)

    def collate(batch: list[dict]) -> dict[str, Any]:
        questions = [row["anchor"] for row in batch]
        answers = [row[name] for row in batch for name in ("positive", "negative")]
        options = {"padding": True, "truncation": True, "max_length": length, "pad_to_multiple_of": 16}
        encoded = [tokenizer(texts_, return_tensors="pt", **options) for texts_ in (questions, answers)]
        return {"queries": dict(encoded[0]), "passages": dict(encoded[1])}

    def run(name: str, count: int) -> Timed:
        model = _Dense(transformers.AutoModel.from_pretrained(data / name))
        arguments = _arguments(folder, batch, num_train_epochs=1, learning_rate=2e-5, bf16=multiplies_bf16())
        done = transformers.Trainer(model, arguments, train_dataset=triples[:count], data_collator=collate).train()
        return Timed(elapsed(), {"loss": done.training_loss})

    return trained(run, "model", batch, steps)


def mlm(data: Path, folder: Path, *, batch: int, steps: int, length: int) -> Callable[[], Timed]:
    """Masked language modelling with transformers' Trainer, on equally many tokens: two spans per text."""
    elapsed = clock()
    tokenizer = transformers.AutoTokenizer.from_pretrained(data / "model")
    ids = [token for text in texts(data / "passages.jsonl", 20 * batch) for token in tokenizer(text)["input_ids"]]
    spans = [{"input_ids": ids[row * length : (row + 1) * length]} for row in range(2 * batch * steps)]
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3)
    model = transformers.AutoModelForMaskedLM.from_pretrained(data / "model")

    def run() -> Timed:
        arguments = _arguments(folder, 2 * batch, max_steps=steps, learning_rate=1e-4, bf16=multiplies_bf16())
        transformers.Trainer(model, arguments, train_dataset=spans, data_collator=collator).train()
        return Timed(elapsed(), None)

    return run


def pool(data: Path, folder: Path, *, method: str, **sizes: int) -> Callable[[], Any]:
    """The plain expression at its fastest: all logits from one product, the logarithm after the maximum."""
    inputs = pooling.Inputs.random(**sizes)

    def pooled() -> Any:
        logits = inputs.hidden @ inputs.weight.T + inputs.bias
        if method == "saturated":
            weights = torch.log1p(torch.relu(logits.masked_fill(~inputs.mask[:, :, None], float("-inf")).amax(dim=1)))
            kept = weights.topk(pooling.TOP_K, dim=1)
            return torch.zeros_like(weights).scatter(1, kept.indices, kept.values)
        values = logits.softmax(dim=2) * inputs.token_weights[:, :, None]
        return pooling.slices(values.masked_fill(~inputs.mask[:, :, None], float("-inf")).amax(dim=1))

    return lambda: inputs.gradients(pooled())


if __name__ == "__main__":
    serve(globals())
