"""Texts with Hugging Face's Trainer: MR², the best checkpoint by the hard third, and the same steps as a plain loop.

    python examples/integration_transformers.py FOLDER     # with banking77_train.csv and banking77_test.csv
    torchrun --nproc-per-node 2 examples/integration_transformers.py FOLDER

The model is untrained and tiny, so its accuracy is low; with your model and tokenizer the lines are the same.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import torch
from plain_loop import ACCUMULATE, LR, STEPS, WORLD, Batch, compare, plain_loop
from torch.utils.data import SequentialSampler
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from classgap.integrations.transformers import ClassLossTrainer, ClassMetrics
from classgap.losses import MR2Loss

WORDS, LENGTH = 1000, 16
QUIET = {"use_cpu": True, "report_to": [], "disable_tqdm": True}


def encode(frame: pl.DataFrame, classes: list[str], vocabulary: dict[str, int]) -> list[dict[str, Any]]:
    rows = []
    for text, category in frame.select("text", "category").iter_rows():
        tokens = [vocabulary.get(word, 1) for word in text.lower().split()][:LENGTH]
        mask = [1] * len(tokens) + [0] * (LENGTH - len(tokens))
        padded = tokens + [0] * (LENGTH - len(tokens))
        rows.append({"input_ids": padded, "attention_mask": mask, "label": classes.index(category)})
    return rows


class InOrder(ClassLossTrainer):
    """For the comparison: batches in the order of the data."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return SequentialSampler(self.train_dataset)


def steps(model: Any, rows: list[dict[str, Any]], folder: str) -> None:
    """A few steps of SGD with accumulated batches, and the same in a plain loop."""
    size = 16  # samples of all processes in a batch
    rows = rows[: size * STEPS * ACCUMULATE]
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    criterion = MR2Loss(num_classes=model.config.num_labels)
    by_hand = copy.deepcopy(model), copy.deepcopy(criterion)
    plain_loop(*by_hand, [tensors(rows[start : start + size]) for start in range(0, len(rows), size)])
    args = TrainingArguments(
        folder,
        max_steps=STEPS,
        learning_rate=LR,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        per_device_train_batch_size=size // WORLD,
        gradient_accumulation_steps=ACCUMULATE,
        save_strategy="no",
        **QUIET,
    )
    InOrder(model, args, criterion=criterion, train_dataset=rows).train()
    compare("Trainer", (model, criterion), by_hand, tensors(rows))


def tensors(rows: list[dict[str, Any]]) -> Batch:
    inputs = {name: torch.tensor([row[name] for row in rows]) for name in ("input_ids", "attention_mask")}
    return inputs, torch.tensor([row["label"] for row in rows])


def main(folder: Path) -> None:
    train, test = (pl.read_csv(folder / f"banking77_{part}.csv") for part in ("train", "test"))
    classes = sorted(train["category"].unique().to_list())[:20]
    train, test = (part.filter(pl.col("category").is_in(classes)) for part in (train, test))
    words = train["text"].str.to_lowercase().str.split(" ").explode().value_counts(sort=True).sort("count", "text")
    vocabulary = {word: i + 2 for i, word in enumerate(words.tail(WORDS)["text"])}
    small = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=WORDS + 2, num_labels=len(classes), **small))
    shuffled = train.sample(fraction=1.0, seed=0, shuffle=True)
    rows = encode(shuffled, classes, vocabulary)
    with tempfile.TemporaryDirectory() as scratch:
        steps(model, rows, scratch)
        if WORLD > 1:
            return  # the comparison is all there is to see
        args = TrainingArguments(
            scratch,
            num_train_epochs=5,
            learning_rate=3e-3,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=4,
            per_device_eval_batch_size=256,
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            metric_for_best_model="hard",
            **QUIET,
        )
        trainer = ClassLossTrainer(
            model,
            args,
            criterion=MR2Loss(num_classes=len(classes)),
            train_dataset=rows[500:],
            eval_dataset=rows[:500],
            compute_metrics=ClassMetrics(),
        )
        trainer.train()
        print(trainer.evaluate(encode(test, classes, vocabulary), metric_key_prefix="test"))


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
