"""Views of a report or a comparison: text and tables, figures, the interactive page."""
