"""Causes of low class accuracy, and the evidence for each."""
