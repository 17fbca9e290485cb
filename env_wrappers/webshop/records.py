"""The records that the parts of WebShop exchange: a product, a goal."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """One product as the store shows it.

    Attributes:
        index: place in the catalogue, counted from 0.
        asin: identifier, at most ten characters.
        title: its name.
        description: the long text.
        bullets: the feature list.
        prices: one price in dollars, or the two ends of a range.
        price_tag: the price as shown, "$4.99" or "$5.0 to $9.5".
        options: option group to its values, lower-cased, in the order shown; duplicates kept.
        category: one of the store's departments ("beauty").
        query: the search that the product was once found by.
        product_category: path in the store's tree, parts separated by " › ".
        attributes: what goals are about ("dry hair").
    """

    index: int
    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    prices: tuple[float, ...]
    price_tag: str
    options: Mapping[str, tuple[str, ...]]
    category: str
    query: str
    product_category: str
    attributes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Goal:
    """What a customer wants.

    Attributes:
        index: place in the shuffled list of goals, counted from 0.
        product: index of the product that the goal was made from.
        instruction: the wish in words, with options and price limit.
        attributes: attributes that the purchase must have.
        price_limit: dollars that it may cost; 1,000,000 where there is no limit.
        options: for synthetic goals the option groups with their wanted values, in sorted order;
            for human ones the wanted values only.
    """

    index: int
    product: int
    instruction: str
    attributes: tuple[str, ...]
    price_limit: float
    options: Mapping[str, str] | tuple[str, ...]
