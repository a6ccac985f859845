"""Why classes differ: margins, calibration, bounds, geometry of features, causes of hardness."""
