"""Pages of the site that lie outside docs/: the README is its home page."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"\[([^\]]*)\]\((?:\.\./|docs/)?([^)#:]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to those of docs/."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text()
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Let links between pages hold in the site; names of other files of the repository are code."""
    return LINK.sub(_site_link, markdown)


def _site_link(link: re.Match[str]) -> str:
    text, target, anchor = link[1], PAGES.get(link[2], link[2]), link[3] or ""
    if (ROOT / target).is_file():  # of the repository, not of the site
        return f"`{target}`"
    return f"[{text}]({target}{anchor})"
