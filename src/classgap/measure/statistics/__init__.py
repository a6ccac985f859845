"""Statistics of class accuracies: groups, metrics, intervals, noise, paired tests."""
