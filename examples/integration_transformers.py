"""Texts with Hugging Face's Trainer: a small BERT from its configuration, MR², the best checkpoint by the hard third.

    python examples/integration_transformers.py FOLDER     # with banking77_train.csv and banking77_test.csv

The model is untrained and tiny, so its accuracy is low; with your model and tokenizer the lines are the same.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from classgap.integrations.transformers import ClassLossTrainer, ClassMetrics
from classgap.losses import MR2Loss

WORDS, LENGTH = 1000, 16


def encode(frame: pl.DataFrame, classes: list[str], vocabulary: dict[str, int]) -> list[dict[str, Any]]:
    rows = []
    for text, category in frame.select("text", "category").iter_rows():
        tokens = [vocabulary.get(word, 1) for word in text.lower().split()][:LENGTH]
        mask = [1] * len(tokens) + [0] * (LENGTH - len(tokens))
        padded = tokens + [0] * (LENGTH - len(tokens))
        rows.append({"input_ids": padded, "attention_mask": mask, "label": classes.index(category)})
    return rows


def main(folder: Path) -> None:
    train, test = (pl.read_csv(folder / f"banking77_{part}.csv") for part in ("train", "test"))
    classes = sorted(train["category"].unique().to_list())
    words = train["text"].str.to_lowercase().str.split(" ").explode().value_counts(sort=True).head(WORDS)
    vocabulary = {word: i + 2 for i, word in enumerate(words["text"])}
    small = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=WORDS + 2, num_labels=len(classes), **small))
    shuffled = train.sample(3500, seed=0, shuffle=True)
    with tempfile.TemporaryDirectory() as scratch:
        args = TrainingArguments(
            scratch,
            num_train_epochs=10,
            learning_rate=3e-3,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=4,
            per_device_eval_batch_size=256,
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            metric_for_best_model="hard",
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = ClassLossTrainer(
            model,
            args,
            criterion=MR2Loss(num_classes=len(classes)),
            train_dataset=encode(shuffled[:3000], classes, vocabulary),
            eval_dataset=encode(shuffled[3000:], classes, vocabulary),
            compute_metrics=ClassMetrics(),
        )
        trainer.train()
        print(trainer.evaluate(encode(test, classes, vocabulary), metric_key_prefix="test"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
