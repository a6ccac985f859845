"""Prediction files: CSV, Parquet, NPZ and safetensors become labels, scores and counts."""
