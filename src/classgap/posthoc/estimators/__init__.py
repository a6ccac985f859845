"""The post-hoc methods: scikit-learn estimators on scores."""
