"""ELM (Jitkrittum et al. 2022): eq. 4 on one batch."""

from __future__ import annotations

import numpy as np

from reference.adjust import logit_adjusted
from reference.softmax import mean


def slack(counts, rule, scale):
    counts = np.array(counts, dtype=float)
    prior = counts / counts.sum()
    rules = {"prior": prior, "sqrt_prior": np.sqrt(prior), "sqrt_count": np.sqrt(counts), "count": counts}
    return scale * rules[rule]


def pull(features, target, alpha):
    """Ω of each sample; 0 without a partner."""
    result = []
    for i, y in enumerate(target):
        total = 1.0
        for j, other in enumerate(target):
            if j != i and other == y:
                total += np.exp(((features[i] - features[j]) ** 2).sum() - alpha[y])
        result.append(np.log(total))
    return result


def elm(logits, features, target, counts, lam, rule, scale):
    return logit_adjusted(logits, target, counts, 1.0) + lam * mean(pull(features, target, slack(counts, rule, scale)))
