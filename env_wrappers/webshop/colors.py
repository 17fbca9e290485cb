"""The colour words used by the reward."""

from collections.abc import Container

# In alphabetical order, which decides which one is found first.
COLORS = (
    *("alabaster", "apricot", "aqua", "ash", "asphalt", "azure", "banana", "beige", "black"),
    *("blue", "blush", "bordeaux", "bronze", "brown", "burgundy", "camel", "camo", "caramel"),
    *("champagne", "charcoal", "cheetah", "chestnut", "chocolate", "christmas", "coffee"),
    *("cognac", "copper", "coral", "cranberry", "cream", "crystal", "dark", "denim", "eggplant"),
    *("elephant", "espresso", "fuchsia", "gold", "granite", "grape", "graphite", "grass", "gray"),
    *("green", "grey", "heather", "indigo", "ivory", "ivy", "khaki", "lavender", "lemon"),
    *("leopard", "light", "lilac", "lime", "magenta", "maroon", "mauve", "merlot", "midnight"),
    *("mint", "mocha", "multicolor", "mushroom", "mustard", "natural", "navy", "nude", "olive"),
    *("orange", "peach", "pewter", "pink", "plum", "purple", "rainbow", "red", "rose", "royal"),
    *("rust", "sand", "sapphire", "seashell", "silver", "skull", "slate", "steel", "stone"),
    *("stonewash", "sunflower", "tan", "taupe", "teal", "tiger", "turquoise", "violet", "walnut"),
    *("wheat", "white", "wine", "yellow"),
)


def first_color(option: Container[str]) -> str | None:
    """Return the first colour word contained in `option`, or None.

    In a string, substrings count ("red" is in "powdered"); in a tuple of strings, an element must
    equal the word.
    """
    return next((color for color in COLORS if color in option), None)
