"""Diagnostics: margins, calibration, error bounds, geometry of features, causes of low accuracy."""
