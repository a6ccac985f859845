"""
Compare two models in continuous integration
============================================

A new model can be better on average and worse for some classes. ``classgap compare`` tests both models on the same samples, and
``--fail-if`` makes the build fail. A job on GitHub needs one step::

    - run: classgap compare old.csv new.csv --fail-if "verdict == worse" --fail-if "worst < 0.50"
"""

# %%
# Two models, one test set
# ------------------------
# The old model was trained on 200 samples. The new one has 1000, but among the new samples the digit 8 is missing: a mistake
# in the data that the overall accuracy does not show.

from pathlib import Path

import polars as pl
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import classgap

images, labels = load_digits(return_X_y=True)
images = images / 16
test = slice(1000, None)


def predictions(rows):
    return LogisticRegression(C=0.1, max_iter=1000).fit(images[rows], labels[rows]).predict(images[test])


old = predictions(list(range(200)))
new = predictions([i for i in range(1000) if i < 200 or labels[i] != 8])
print(f"overall accuracy: old {(old == labels[test]).mean():.3f}, new {(new == labels[test]).mean():.3f}")

# %%
# In Python
# ---------
# The differences are paired: both models answered the same samples. The last table lists the classes whose change is
# significant after correction for the number of classes.

comparison = classgap.compare(classgap.audit(labels[test], old), classgap.audit(labels[test], new))
comparison

# %%
# As a gate
# ---------
# The same on the command line, with two conditions. Exit code 1 means that a condition holds, so the build fails. The
# reason is printed.

import subprocess
import sys

folder = Path("classgap-report")
folder.mkdir(exist_ok=True)
for name, predicted in (("old", old), ("new", new)):
    pl.DataFrame({"label": labels[test], "prediction": predicted}).write_csv(folder / f"{name}.csv")

command = ["compare", "old.csv", "new.csv", "--fail-if", "verdict == worse", "--fail-if", "class[8] < 0.60"]
done = subprocess.run([sys.executable, "-m", "classgap", *command], cwd=folder, capture_output=True, text=True)
print(done.stderr.strip())
print("exit code", done.returncode)
assert done.returncode == 1

# %%
# Each class before and after:

from classgap.measure.render import plot

plot.save(plot.dumbbells(comparison), folder / "change.png")
