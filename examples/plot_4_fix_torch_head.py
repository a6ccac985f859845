"""
Fix the last layer of a torch model
===================================

The correction of a post-hoc method can be written into the last layer. The corrected network has the same shape and costs
nothing more.
"""

# %%
# A trained network
# -----------------
# Any network that ends in ``torch.nn.Linear`` will do. This one is trained on unequally many digits with plain cross-entropy.

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import classgap
from classgap.posthoc import LogitAdjustment

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
rng = np.random.default_rng(0)
rows = rng.permutation(len(labels))
wanted = np.geomspace(80, 6, 10).round().astype(int)
train = np.concatenate([rows[labels[rows] == k][: wanted[k]] for k in range(10)])
rest = np.setdiff1d(rows, train)
held_out, test = rest[::2], rest[1::2]  # the method is fitted on one half, and judged on the other

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.01)
x, y = torch.from_numpy(images), torch.from_numpy(labels)
for _ in range(150):
    loss = nn.functional.cross_entropy(model(x[train]), y[train])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def logits(rows):
    with torch.no_grad():
        return model(x[rows]).numpy()


before = classgap.audit(labels[test], scores=logits(test), train_counts=wanted)
before

# %%
# Fit on held-out logits, fold into the layer
# -------------------------------------------
# ``fit`` needs logits of samples that were not used for training. With ``tau=None`` the strength of the correction is chosen on
# these samples. ``fold`` changes the weight and the bias of the layer in place.

method = LogitAdjustment(tau=None).fit(logits(held_out), labels[held_out], class_counts=wanted)
print("strength", method.tau_)
expected = method.predict(logits(test))
method.fold(model[-1])
assert (logits(test).argmax(1) == expected).all()

# %%
# The network itself now gives the corrected predictions.

after = classgap.audit(labels[test], scores=logits(test), train_counts=wanted)
classgap.compare(before, after)
