"""Why is a class hard: the causes, and the evidence for each."""
