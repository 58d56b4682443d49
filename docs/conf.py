"""The documentation site: pip install -e ".[docs]" && sphinx-build -W docs site"""

import re

import sapm

project, author = "sapm", "the sapm developers"
version = release = sapm.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["tutorials"]  # the scripts; their pages are made in gallery/
templates_path = ["_templates"]

myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a page may begin with a heading of the second rank

html_theme = "pydata_sphinx_theme"
html_title = "sapm"
html_static_path = ["_static"]
html_css_files = ["sapm.css"]
html_sidebars = {"**": ["contents.html"]}  # all pages, on every page
html_copy_source = False
html_theme_options = {
    "navbar_center": [],
    "navbar_align": "left",
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
}

default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
maximum_signature_line_length = 100
add_module_names = False

sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",  # all of them are run, unless plot_gallery=0
    "within_subsection_order": "FileNameSortKey",
    "capture_repr": (),  # what is printed, and figures
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
}


def plain(app, what, name, obj, options, lines):
    """Docstrings are plain text: |x|, a * b and name_ are meant as they stand, `code` is code;
    "name : text" is a parameter.
    """
    parts = "\n".join(lines).split("`")
    parts[::2] = [re.sub(r"([|*\\]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2]]
    text = re.sub(r"^Parameters\n-+$", ".. rubric:: Parameters\n", "`".join(parts), flags=re.M)
    lines[:] = re.sub(r"^(\w[\w, ]*) : ", r"**\1**\n    ", text, flags=re.M).split("\n")


def to_pages(app, name, source):
    """Links to the scripts, which is what GitHub can show, lead to their pages here."""
    source[0] = re.sub(r"\]\(tutorials/(\w+)\.py\)", r"](gallery/\1.rst)", source[0]).replace(
        "](tutorials)", "](gallery/index.rst)"
    )


def setup(app):
    app.connect("source-read", to_pages)
    app.connect("autodoc-process-docstring", plain)
