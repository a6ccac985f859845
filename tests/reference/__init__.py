"""Slow, obvious NumPy versions written from the papers, to check the product against."""
