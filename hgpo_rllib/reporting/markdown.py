"""Tables and links of generated documentation pages."""

import re
from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; cells may contain ``|``."""
    lines = [
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
        for row in (headings, *rows)
    ]
    return "\n".join([lines[0], "|" + "---|" * len(headings), *lines[1:]])


def anchor(heading: str) -> str:
    """Return the anchor that GitHub and MkDocs give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
