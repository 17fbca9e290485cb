"""Small WebShop data directories for the tests of the catalogue and of the goals."""

import json
from pathlib import Path
from typing import Any

PRODUCTS, ATTRIBUTES, HUMAN = "items_shuffle_3.json", "items_ins_v2_3.json", "items_human_ins.json"


def item(asin: str, /, **changed: Any) -> dict[str, Any]:
    """Return a product in the format of the data file."""
    return {
        "asin": asin,
        "name": f"Towel {asin}",
        "full_description": "A soft towel.",
        "small_description": ["Dries fast", "Two pieces"],
        "pricing": "$9.99",
        "customization_options": "",
        "category": "beauty",
        "query": "Hair Towels ",
        "product_category": "Beauty › Hair › Towels",
        "average_rating": "",
        "images": ["https://example.org/1.jpg"],
    } | changed


def choices(**groups: str) -> dict[str, Any]:
    """Return options in the format of the data file, from values separated by "|"."""
    return {
        name: [{"value": value, "image": None} for value in values.split("|")]
        for name, values in groups.items()
    }


def entry(text: str = "Find me a towel", *attributes: str) -> dict[str, Any]:
    """Return an entry of the attributes file, with an instruction."""
    wanted = list(attributes or ("soft",))
    return {"attributes": wanted, "instruction": text, "instruction_attributes": wanted}


def human_entry(
    text: str, *options: str, attributes: tuple[str, ...] = ("soft",)
) -> dict[str, Any]:
    """Return an instruction in the format of the file of human instructions."""
    return {
        "instruction": text,
        "instruction_attributes": list(attributes),
        "instruction_options": list(options),
    }


ITEMS = [
    item("B1", customization_options=choices(Size="S|L", Color="Red/Blue| Green ") | {"Fit": None}),
    item("B2", pricing="$5.00 - $19.50", small_description="One feature", category="garden"),
    item("B3", pricing="", query="mops", customization_options={}),
]
ENTRIES = {"B1": entry("Find me a soft towel"), "B2": {"attributes": ["dry"]}, "B3": entry("A mop")}
HUMAN_ENTRIES = {
    "B2": [human_entry("i want a towel.", "green"), human_entry("any?", attributes=())],
    "B9": [human_entry("what")],
}


def write_data(
    folder: Path, items: Any = ITEMS, entries: Any = ENTRIES, human: Any = HUMAN_ENTRIES
) -> Path:
    """Write a data directory; None leaves a file out, bytes are written as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in ((PRODUCTS, items), (ATTRIBUTES, entries), (HUMAN, human)):
        if content is not None:
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            (folder / name).write_bytes(raw)
    return folder
