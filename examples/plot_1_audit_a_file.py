"""
Audit a CSV file
================

A file with one row per test sample, the true label and the predicted label, is all that an audit needs. On the command line::

    classgap audit predictions.csv --out report

The same in Python follows.
"""

# %%
# Predictions
# -----------
# A logistic regression on few handwritten digits, so that there is something to find. Its predictions are written to a CSV
# file, as your own evaluation script may do.

from pathlib import Path

import polars as pl
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

images, labels = load_digits(return_X_y=True)
train, test = slice(0, 300), slice(300, None)
model = LogisticRegression(C=0.01, max_iter=1000).fit(images[train] / 16, labels[train])

folder = Path("classgap-report")
folder.mkdir(exist_ok=True)
names = [f"digit {k}" for k in range(10)]
pl.DataFrame(
    {
        "label": [names[k] for k in labels[test]],
        "prediction": [names[k] for k in model.predict(images[test] / 16)],
    }
).write_csv(folder / "predictions.csv")

# %%
# Audit
# -----
# The verdict says whether the classes differ by more than sampling noise. Every number has an interval.

import classgap

table = pl.read_csv(folder / "predictions.csv")
report = classgap.audit(table["label"], table["prediction"])
report

# %%
# Single numbers have names. ``gap`` is the difference between the best and the worst class as it was observed;
# ``gap_corrected`` is an estimate of this difference without sampling noise.

for name in ("overall", "hard", "worst", "gap", "gap_corrected"):
    print(f"{name:14}", report.metrics[name])

# %%
# The most frequent confusions:

for pair in report.confusion.worst_pairs(3):
    print(f"{report.classes[pair.true]} taken for {report.classes[pair.predicted]}: {pair.count} samples")

# %%
# Report page and figures
# -----------------------
# The page is one HTML file that needs no network. Figures can also be saved one by one.

from classgap.measure.render import plot

report.to_html(folder / "report.html")
plot.save(plot.accuracy_by_class(report), folder / "accuracy.png")
