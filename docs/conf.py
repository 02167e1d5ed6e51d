"""Sphinx's settings for the site that `make site` builds from these pages; the order of the pages is in index.md."""  # noqa: INP001  docs/ is a folder of pages, not a package

from __future__ import annotations

from hearth import __version__

project = "hearth"
author = "the hearth authors"
project_copyright = author
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
# The source folder is the repository: pages outside docs/ are pages of the site too, and linked files are downloads.
root_doc = "docs/index"
include_patterns = ["docs/**", "*.md", "examples/**/*.md", "packaging/**/*.md", "tests/hardware/README.md"]
# The decisions are found through their index; a test asks that index.md has every other page.
# Three interfaces have classes of one name.
suppress_warnings = ["toc.not_included", "ref.python"]
html_extra_path = ["_root"]
html_theme = "furo"
html_title = f"hearth {release}"
html_show_sphinx = False
html_copy_source = False
nitpicky = True
# Annotations name private types, and those of other projects: only links in pages must resolve.
nitpick_ignore_regex = [("py:.*", ".*")]

# Pages are read on a forge as well: headings have the anchors that a forge gives them.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# Docstrings are plain text: `name` is code, and there are no field lists.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
