"""Tables and links of generated documentation pages."""

import re
from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; cells may contain ``|``."""
    escaped = ([cell.replace("|", r"\|") for cell in row] for row in (headings, *rows))
    lines = [f"| {' | '.join(row)} |" for row in escaped]
    return "\n".join([lines[0], "|" + "---|" * len(headings), *lines[1:]])


def anchor(heading: str) -> str:
    """Return the anchor that GitHub and MkDocs give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
