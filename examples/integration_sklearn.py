"""Texts in scikit-learn: choose a correction by the hard third of the classes.

python examples/integration_sklearn.py FOLDER     # with banking77_train.csv and banking77_test.csv (columns text, category)
"""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import classgap
from classgap.integrations.sklearn import hard_third
from classgap.posthoc import LogitAdjustment, PostHocClassifier


def main(folder: Path) -> None:
    train, test = (pl.read_csv(folder / f"banking77_{part}.csv") for part in ("train", "test"))
    train = train.sample(3000, seed=0, shuffle=True)
    texts, labels = train["text"].to_list(), train["category"].to_numpy()
    corrected = PostHocClassifier(LogisticRegression(max_iter=200), LogitAdjustment(), folds=2)
    model = make_pipeline(TfidfVectorizer(min_df=2), corrected)
    search = GridSearchCV(model, {"posthocclassifier__method__tau": [0.0, 1.0]}, scoring=hard_third, cv=2).fit(
        texts, labels
    )
    print("chosen by cross-validation:", search.best_params_, f"hard third {search.best_score_:.3f}")
    report = classgap.audit(test["category"].to_numpy(), search.predict(test["text"].to_list()))
    print(report.to_markdown(classes=3))


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
