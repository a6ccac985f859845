"""
Long-tailed training data
=========================

With 100 training samples of one class and 4 of another, a classifier learns to prefer the frequent classes. Losses that know
the counts of the classes correct this during training.
"""

# %%
# Data with a long tail
# ---------------------
# ``class_counts`` is all that the losses need to know.

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import classgap
from classgap.losses import CrossEntropyLoss, LogitAdjustedLoss

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32)
rows = np.random.default_rng(0).permutation(len(labels))
wanted = np.geomspace(100, 4, 10).round().astype(int)
train = np.concatenate([rows[labels[rows] == k][: wanted[k]] for k in range(10)])
test = np.setdiff1d(rows, train)
target = torch.tensor(labels[train])
class_counts = np.bincount(labels[train])
print("training samples per class:", class_counts)

# %%
# Two losses
# ----------


def run(criterion, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for _ in range(40):
        for batch in torch.randperm(len(target)).split(50):
            loss = criterion(model(images[train][batch]), target[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        scores = model(images[test]).numpy()
    return classgap.audit(labels[test], scores=scores, train_counts=class_counts, few=15, many=50)


before = [run(CrossEntropyLoss(10), seed) for seed in range(4)]
after = [run(LogitAdjustedLoss(10, class_counts=class_counts), seed) for seed in range(4)]

# %%
# Groups by frequency
# -------------------
# With training counts the report has the groups of the long-tail literature: many, medium, few. Their limits are arguments,
# because digits have fewer samples than ImageNet.

for name, report in (("cross-entropy", before[0]), ("logit adjustment", after[0])):
    print(f"{name:17}", {group: f"{100 * e.value:.1f} %" for group, e in report.groups["frequency"].items()})

# %%
# All runs together:

comparison = classgap.compare(before, after)
comparison

# %%
from pathlib import Path

from classgap.measure.render import plot

Path("classgap-report").mkdir(exist_ok=True)
plot.save(plot.dumbbells(comparison), "classgap-report/long_tail.png")
