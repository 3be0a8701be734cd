"""Settings of the site; `make docs` builds it, with every warning an error."""

import deepemu

project = "deepemu"
author = "the deepemu developers"
copyright = "2026, the deepemu developers"
release = version = deepemu.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"deepemu {release}"
html_show_sphinx = False

nitpicky = True
# Where other projects' types are named; nothing is fetched while building.
nitpick_ignore_regex = [("py:.*", r"(?!deepemu).*")]

nb_execution_mode = "off"  # notebooks are stored with their outputs; `make notebooks` runs them
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say what is taken, in words
default_role = "code"
napoleon_google_docstring = False

# Files outside this folder that have a page here: their links work in the repository and here.
PAGES = {"../benchmarks/README.md": "benchmarks.md"}


def _link_to_pages(app, docname, source):
    for file, page in PAGES.items():
        source[0] = source[0].replace(f"]({file})", f"]({page})")


def setup(app):
    app.connect("source-read", _link_to_pages)
