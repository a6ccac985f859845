"""The documentation site: ``make docs``. Nothing is downloaded while building, and the pages load nothing from elsewhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The pages describe the source beside them, whatever is installed; so do the commands that examples start.
SOURCE = str(HERE.parent / "src")
sys.path[:0] = [SOURCE, str(HERE / "_ext")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (SOURCE, os.environ.get("PYTHONPATH"))))

from saved_figures import SavedFigures

import classgap

project = "classgap"
author = "The classgap developers"
copyright = author
version = release = classgap.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
    # docs/_ext
    "command_help",
    "docstrings",
    "example_report",
    "markdown_anchors",
    "mathml",
    "offline",
]
exclude_patterns = ["_build", "README.md"]
nitpicky = True

# Markdown: the files in docs/ are read on GitHub too, so only what GitHub understands is turned on, and toctrees.
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
myst_dmath_double_inline = True

# API reference from docstrings.
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Shape"]
python_use_unqualified_type_names = True

# References in prose to functions, methods, attributes, modules and pages are checked. Classes are not: most of these references
# are types in signatures, many of other packages. Private names have no page.
nitpick_ignore_regex = [
    (r"py:class", r".*"),
    (r"py:obj", r"typing\..*"),  # signatures with a default factory are split at every comma
    (r"py:.*", r"([\w.]+\.)?_\w+(\.\w+)*"),
    (r"py:data", r"classgap\.(measure\.statistics\.(metrics\.METRICS|groups\.RANKINGS)|posthoc\.RULES)"),
]

html_theme = "furo"
html_logo = "_static/thumbnail.svg"
html_favicon = "_static/thumbnail.svg"
html_title = f"classgap {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False

sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples"),
    "gallery_dirs": "examples",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"(^|/)(?!plot_)[^/]*\.py$",  # scripts of another form are not shown
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": (SavedFigures(),),
    "reset_modules": (),
    "capture_repr": ("_repr_html_", "__repr__"),
    "ignore_repr_types": r"pathlib",  # the path that a call returns after it has written a file
    "default_thumb_file": str(HERE / "_static" / "thumbnail.png"),
    "show_signature": False,
    "show_memory": False,
    "write_computation_times": False,  # a page that loads scripts from elsewhere
    "download_all_examples": False,
    "abort_on_example_error": True,
}
