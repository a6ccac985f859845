"""
Audit a CSV file
================

Predictions of a model in, verdict out.
"""
