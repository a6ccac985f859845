"""
Fix a scikit-learn model
========================

A trained model often has the information to do better on its hard classes: only its decision thresholds are wrong. A
post-hoc method learns a correction from samples that the model was not trained on. For files with logits the command is
``classgap fix logits.npz``.
"""

# %%
# A model with a gap
# ------------------
# Digits with an unequal number of training samples: 100 zeros, 5 nines.

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import classgap
from classgap.posthoc import LogitAdjustment, PostHocClassifier

images, labels = load_digits(return_X_y=True)
images = images / 16
rng = np.random.default_rng(0)
rows = rng.permutation(len(labels))
wanted = np.geomspace(100, 5, 10).round().astype(int)
train = np.concatenate([rows[labels[rows] == k][: wanted[k]] for k in range(10)])
test = np.setdiff1d(rows, train)

plain = LogisticRegression(C=0.1, max_iter=1000)
plain.fit(images[train], labels[train])
before = classgap.audit(labels[test], plain.predict(images[test]), train_counts=wanted)
before

# %%
# One estimator around the other
# ------------------------------
# ``PostHocClassifier`` fits the classifier on all training samples, and the correction on out-of-fold scores: no sample is
# corrected by a fit that has seen it. Logit adjustment removes the preference for frequent classes. It takes any classifier of
# scikit-learn, and is one itself: it works in pipelines and in a grid search.

fixed = PostHocClassifier(plain, LogitAdjustment()).fit(images[train], labels[train])
after = classgap.audit(labels[test], fixed.predict(images[test]), train_counts=wanted)
comparison = classgap.compare(before, after)
comparison

# %%
# What was learned is one offset per class, here in the order of the digits.

print(fixed.method_.offset_.round(2))

# %%
# Accuracy of each class before and after:

from pathlib import Path

from classgap.measure.render import plot

Path("classgap-report").mkdir(exist_ok=True)
plot.save(plot.dumbbells(comparison), "classgap-report/fixed.png")
