"""Methods of several stages, and runs that build upon other runs."""
