"""Records shared by the modules of WebShop."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """A product as the store shows it.

    Attributes:
        index: index in the catalogue.
        asin: identifier, at most ten characters.
        title: product name.
        description: long description.
        bullets: list of features.
        prices: one price in dollars, or the two ends of a range.
        price_tag: the price as shown, "$4.99" or "$5.0 to $9.5".
        options: option group to its lower-cased values, in display order; duplicates are kept.
        category: department ("beauty").
        query: search query under which the product was collected.
        product_category: path in the category tree, parts separated by " › ".
        attributes: attributes that goals refer to ("dry hair").
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
    """A purchase to make.

    Attributes:
        index: index in the shuffled list of goals.
        product: index of the product that the goal was made from.
        instruction: the goal in words, with options and price limit.
        attributes: attributes that the purchase must have.
        price_limit: maximum price in dollars; 1,000,000 if there is no limit.
        options: for synthetic goals, option groups with the wanted values, sorted; for human
            goals, the wanted values only.
    """

    index: int
    product: int
    instruction: str
    attributes: tuple[str, ...]
    price_limit: float
    options: Mapping[str, str] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Instruction:
    """The source of one or more goals.

    Attributes:
        text: the instruction, without price limit.
        attributes: attributes that the product must have; never empty.
        options: wanted option values; only in human instructions.
    """

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """A product with its instructions.

    Attributes:
        product: the product.
        in_attributes: whether the attributes file contains the product.
        synthetic: the instruction made from its attributes, if any.
        human: the instructions that people wrote for it.
    """

    product: Product
    in_attributes: bool
    synthetic: Instruction | None
    human: tuple[Instruction, ...]
