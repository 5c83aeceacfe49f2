"""How the site is built: `make docs`. Every warning is an error, and so is a public name without a place in it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import mixwise
from public_names import missing_names

project, author, release = "mixwise", "the mixwise authors", mixwise.__version__
version = release
project_copyright = "the mixwise authors, Apache-2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
root_doc = "index"
default_role = "py:obj"  # single backticks in docstrings: a link where the name is known, else code

myst_enable_extensions = ["colon_fence", "dollarmath"]
html_math_renderer = "mathml"
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
# Names that say more than what they stand for.
autodoc_type_aliases = {"npt.ArrayLike": "ArrayLike"} | {
    name: name
    for name in (
        "FloatArray",
        "IntArray",
        "Folder",
        "Progress",
        "OptimizerFactory",
        "SchedulerFactory",
        "Results",
        "Labels",
    )
}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 90
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "mixwise"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_theme_options = {
    # A blue, and a lighter one on dark pages: both have a contrast above 4.5 to what is behind them.
    "light_css_variables": {"color-brand-primary": "#00619a", "color-brand-content": "#00619a"},
    "dark_css_variables": {"color-brand-primary": "#6cc0ef", "color-brand-content": "#6cc0ef"},
}
html_show_sphinx = False


def check_reference(app: Sphinx, env: BuildEnvironment) -> None:
    """Every public name must stand in the API reference."""
    documented = {name for name, *_ in env.domains["py"].get_objects()}
    for name in missing_names(documented):
        logging.getLogger(__name__).warning("%s is public, but docs/api/ does not describe it", name)


def plain_text(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Our docstrings are prose: a bar is an absolute value, and what stands before a colon is no type."""
    lines[:] = [line.replace("|", "\\|") for line in lines]
    if what in ("property", "attribute", "data"):
        lines[:0] = ["..", ""]  # napoleon looks for a type in the first line; this one is an empty comment


def equation(translator: nodes.NodeVisitor, node: nodes.Element) -> None:
    """Write an equation as MathML, which browsers set without a script from elsewhere."""
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    translator.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (equation, None), (equation, None))
    app.connect("autodoc-process-docstring", plain_text, priority=400)  # before napoleon
    app.connect("env-check-consistency", check_reference)
