"""
Train with a classgap loss in your own loop
===========================================

A loss of classgap replaces ``torch.nn.CrossEntropyLoss``. Two lines change: the loss is made with the number of classes, and it
is called with the features, the input of the last layer. :class:`~classgap.heads.FeatureTap` gives them for any network.
"""

# %%
# The loop
# --------
# State of the loss behaves as in batch normalisation: it is updated while training and belongs into the checkpoint
# (``criterion.state_dict()``). Parameters of the loss, if it has any, go to the optimiser.

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import classgap
from classgap.heads import FeatureTap
from classgap.losses import CompactLogitsLoss, CrossEntropyLoss, MR2Loss

images, labels = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(
    images / 16, labels, train_size=300, stratify=labels, random_state=0
)
x_train, x_test = (torch.tensor(x, dtype=torch.float32) for x in (x_train, x_test))
target = torch.tensor(y_train)


def train(criterion, seed):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = FeatureTap(network)  # returns (logits, features); the weights keep their names
    parameters = [*model.parameters(), *criterion.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=5e-4)
    for _ in range(40):
        for batch in torch.randperm(len(target)).split(50):
            logits, features = model(x_train[batch])
            loss = criterion(logits, target[batch], features=features)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return classgap.audit(y_test, scores=network(x_test).numpy())


# %%
# Several seeds of each
# ---------------------
# One run of each loss would mix its effect with the luck of the initialisation. With several runs per side the intervals
# cover both.

seeds = range(4)
losses = {"cross-entropy": CrossEntropyLoss, "MR²": MR2Loss, "compact logits": CompactLogitsLoss}
reports = {name: [train(make(10), seed) for seed in seeds] for name, make in losses.items()}
for name in ("MR²", "compact logits"):
    comparison = classgap.compare(reports["cross-entropy"], reports[name])
    print(f"{name}: {comparison.verdict.sentence}\n")

# %%
# The last comparison in full. What to expect on other data is on the page Evidence.

comparison
