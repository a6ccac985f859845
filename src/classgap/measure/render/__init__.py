"""Ways to look at a report or a comparison: plain data and tables, figures, the interactive page."""
