"""Synthetic products and instructions, each a pure function of its number.

Products of the same kind and brand form a family. Its members have the same words in their titles
and in the texts that searches match, and differ in one property that the instruction names: the
edition, an option group with a single value on the product's page, or a trait that only the page
"Features" names. Prices differ too. A brand has one family per kind, so it has few products, and a
search for its name finds all of them in any catalogue.

Each attribute beyond three adds a feature and a sentence of the description, and some are in the
title.
"""

import itertools
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from env_wrappers.errors import DataError
from env_wrappers.webshop.vocabulary import VOCABULARY, Kind, fill, kinds

KINDS_PER_BRAND = 8
MAX_LOOKALIKES = 6  # below the number of traits of a kind; at most the number of editions
FEWEST_ATTRIBUTES, MOST_ATTRIBUTES = 3, 27  # the original's most are 27
EDITION = "edition"
EDITIONS = ("classic", "deluxe", "family", "festive", "signature", "starter")

_SYLLABLES = tuple(consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou")
_LAST_SYLLABLES = tuple(syllable for syllable in _SYLLABLES if syllable[-1] in "ao")
MAX_BRANDS = len(_SYLLABLES) ** 2 * len(_LAST_SYLLABLES)
_BRAND_STRIDE = 91_733  # coprime to MAX_BRANDS
_ASIN_STRIDE = 38_196_601  # coprime to 10

_PRICE_NONE, _PRICE_RANGE = 0.08, 0.15  # fractions of the products
_NO_OPTIONS, _ONE_OPTION = 0.12, 0.25  # fractions of the families, which share their options
_VALUES = (2, 3, 4, 4, 4)
_BY_EDITION = 0.5  # fraction of the families that differ in the edition
_IN_TITLE = 3  # further attributes that a title names
_EXTRAS_NAMED = 0.7  # rate of the exponential number of them that an instruction names
_PARAPHRASED = 0.5  # fraction of the traits in human instructions

_Value = TypeVar("_Value")

_DESCRIPTIONS = (
    "{brand} makes this {material} {kind} to be {trait}. Made for {purpose}.",
    "Made for {purpose}: {material} {kind} by {brand}, which is {trait}.",
    "The {material} {kind} of {brand} is {trait}, and meant for {purpose}.",
)


@dataclass(frozen=True)
class CatalogueSpec:
    """What to generate.

    Attributes:
        products: number of products. A product with an instruction gives one synthetic goal per
            combination of its options, about eight on average.
        seed: the same spec gives the same bytes; another seed gives other products.
        lookalikes: products of the same brand and kind, from 1 to 6, whose titles have the same
            words. If there are several, only the pages of the products tell which one is wanted.
        attributes: most attributes of a product, from 3 to 27. With more of them, titles and pages
            are longer, and instructions name more.
        instructed: share of the products that have synthetic goals.
        human: share of those that also have human goals.
    """

    products: int = 400
    seed: int = 0
    lookalikes: int = 3
    attributes: int = MOST_ATTRIBUTES
    instructed: float = 0.9
    human: float = 0.25

    @property
    def families(self) -> int:
        """Number of families."""
        return -(-self.products // self.lookalikes)

    @property
    def brands(self) -> int:
        """Number of brands, at least one per department."""
        return max(len(kinds()), -(-self.families // KINDS_PER_BRAND))

    def __post_init__(self) -> None:
        """Raise DataError if a value is out of range."""
        if self.products < 1 or self.seed < 0:
            raise DataError("the number of products must be at least 1, the seed at least 0")
        if not 1 <= self.lookalikes <= MAX_LOOKALIKES:
            raise DataError(f"lookalikes must be from 1 to {MAX_LOOKALIKES}")
        if not FEWEST_ATTRIBUTES <= self.attributes <= MOST_ATTRIBUTES:
            raise DataError(
                f"attributes must be from {FEWEST_ATTRIBUTES} to {MOST_ATTRIBUTES} per product"
            )
        if not (0 < self.instructed <= 1 and 0 <= self.human <= 1):
            raise DataError(
                "the share of products with an instruction must be above 0 and at "
                "most 1, the share with a human one from 0 to 1"
            )
        if self.brands > MAX_BRANDS:
            raise DataError(
                f"there are not enough brands for {self.products:,} products: "
                "choose fewer products or more lookalikes"
            )


def brand_name(seed: int, brand: int) -> str:
    """Return an invented name, unique per number up to `MAX_BRANDS`.

    It ends in a vowel that no stemmer removes, so names stay distinct in the search index.
    """
    code = ((brand + 1) * _BRAND_STRIDE + seed * 7919) % MAX_BRANDS
    code, last = divmod(code, len(_LAST_SYLLABLES))
    first, second = divmod(code, len(_SYLLABLES))
    return _SYLLABLES[first] + _SYLLABLES[second] + _LAST_SYLLABLES[last]


def asin_of(seed: int, number: int, products: int) -> str:
    """Return a product's identifier of ten characters, unique per number.

    It has only as many digits as the catalogue's size requires, padded with zeros for readability.
    """
    codes = 10 ** max(4, len(str(products)) + 1)
    return f"B{((number + 1) * _ASIN_STRIDE + seed * 104_729) % codes:09d}"


@dataclass(frozen=True)
class _Design:
    """Properties of a product before its texts are written."""

    kind: Kind
    brand: str
    material: str
    attributes: tuple[str, ...]
    wanted: tuple[str, ...]  # the traits that instructions always name
    purpose: str
    extras: tuple[str, ...]  # attributes beyond three
    options: dict[str, list[str]]
    title: str
    description: str
    features: tuple[str, ...]


def make_product(
    spec: CatalogueSpec, number: int
) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """Return the records of product `number`, deterministic in the arguments.

    Returns:
        Its records in items_shuffle.json, items_ins_v2.json and items_human_ins.json.
    """
    rng = random.Random(f"{spec.seed}/product/{number}")
    design = _design(spec, number)
    asin = asin_of(spec.seed, number, spec.products)
    record: dict[str, Any] = {"attributes": sorted(design.attributes)}
    humans: list[dict[str, Any]] = []
    if rng.random() < spec.instructed:
        record |= _synthetic_instruction(rng, design)
        if rng.random() < spec.human:
            humans.append(_human_instruction(rng, asin, design))
    return _item(rng, asin, design), record, humans


def _design(spec: CatalogueSpec, number: int) -> _Design:
    seed, lookalikes = spec.seed, spec.lookalikes
    member, family = divmod(number, spec.families)
    slot, brand = divmod(family, spec.brands)
    kind, name = _kind_of(seed, brand, slot), brand_name(seed, brand)
    # Every member makes the same draws.
    rng = random.Random(f"{seed}/family/{family}")
    trait, *hidden = rng.sample(kind.traits, len(kind.traits))
    material, purpose = rng.choice(kind.materials), rng.choice(kind.purposes)
    description = rng.choice(_DESCRIPTIONS).format(
        brand=name.capitalize(), material=material, kind=kind.name, trait=trait, purpose=purpose
    )
    parts = (trait, f"{material} {kind.name}", f"for {purpose}")
    order = rng.sample(list(itertools.permutations(parts)), MAX_LOOKALIKES)[member]
    options = _options(rng, kind)
    by_edition = lookalikes > 1 and rng.random() < _BY_EDITION
    if by_edition:
        editions = rng.sample(EDITIONS, lookalikes)
        options = {EDITION: [editions.pop(member)], **options}
        # All members name all editions once, so that no search tells them apart.
        description += f" Also sold as {', '.join(editions)} edition."
    distinct = lookalikes > 1 and not by_edition
    own = hidden[member if distinct else 0]
    others = [*hidden[MAX_LOOKALIKES:], *kind.parts, *kind.purposes]
    others.remove(purpose)
    # Most products have few attributes, and some very many.
    count = min(spec.attributes - FEWEST_ATTRIBUTES, int(2 * rng.paretovariate(1.5)))
    extras = rng.sample(others, count)
    title = f"{name} {' '.join(order)}"
    details = [own.capitalize()]
    if extras:
        more = [kind.phrase(extra) for extra in extras[:_IN_TITLE]]
        title += f" - {', '.join((*more, fill(rng, 'lines')))}"
        description = " ".join((description, *(fill(rng, "stories") for _ in extras)))
        shown = rng.sample([own, *extras], len(extras) + 1)
        details = [fill(rng, "features", attribute) for attribute in shown]
    return _Design(
        kind=kind,
        brand=name,
        material=material,
        attributes=(trait, own, purpose, *extras),
        wanted=(trait, own) if distinct else (trait,),
        purpose=purpose,
        extras=tuple(extras),
        options=options,
        title=title.title(),
        description=description,
        features=(
            f"{material.capitalize()} {kind.name} by {name.capitalize()}",
            *details,
            f"Good for {purpose}",
        ),
    )


def _kind_of(seed: int, brand: int, slot: int) -> Kind:
    """Return the kind of a brand's family; a brand has distinct kinds of one department."""
    departments = tuple(kinds().values())
    offered = departments[brand % len(departments)]
    return random.Random(f"{seed}/brand/{brand}").sample(offered, KINDS_PER_BRAND)[slot]


def _options(rng: random.Random, kind: Kind) -> dict[str, list[str]]:
    draw = rng.random()
    count = 0 if draw < _NO_OPTIONS else 1 if draw < _NO_OPTIONS + _ONE_OPTION else 2
    groups = _some(rng, list(kind.options.items()), count)
    return {name: _some(rng, values, rng.choice(_VALUES)) for name, values in groups}


def _some(rng: random.Random, values: Sequence[_Value], count: int) -> list[_Value]:
    """Return `count` of the values, or all if there are fewer, in their order."""
    places = rng.sample(range(len(values)), min(count, len(values)))
    return [values[place] for place in sorted(places)]


# --- records --------------------------------------------------------------------------------------


def _item(rng: random.Random, asin: str, design: _Design) -> dict[str, Any]:
    return {
        "asin": asin,
        "name": design.title,
        "full_description": design.description,
        "small_description": list(design.features),  # searches match the first only
        "pricing": _price(rng, design.kind),
        "customization_options": {
            group: [{"value": value, "image": None} for value in values]
            for group, values in design.options.items()
        }
        or "",
        "images": [f"{asin}.jpg"],
        "category": design.kind.department,
        "query": design.kind.name,
        "product_category": design.kind.path,
    }


def _price(rng: random.Random, kind: Kind) -> str:
    low, high = kind.price
    draw = rng.random()
    if draw < _PRICE_NONE:
        return ""
    price = int(rng.uniform(low, high)) + 0.99
    if draw < _PRICE_NONE + _PRICE_RANGE:
        return f"${price:,.2f} - ${price * rng.uniform(1.1, 1.6):,.2f}"
    return f"${price:,.2f}"


def _synthetic_instruction(rng: random.Random, design: _Design) -> dict[str, Any]:
    """Return an instruction that names brand, kind and what tells the product from its family.

    Options and price limit are added when goals are built.
    """
    product, attributes = _describe(rng, design)
    opening = _opening(rng, "greetings", "asks")
    return {"instruction": f"{opening} {product}", "instruction_attributes": attributes}


def _human_instruction(rng: random.Random, asin: str, design: _Design) -> dict[str, Any]:
    """Return an instruction that also names the options, in display order or reversed.

    It may give a reason, and says half of the traits in other words.
    """
    product, wanted = _describe(rng, design, paraphrased=_PARAPHRASED)
    chosen = {group: rng.choice(values) for group, values in design.options.items()}
    named = [f", {group} {value}" for group, value in chosen.items()]
    rng.shuffle(named)
    opening = _opening(rng, "greetings", "reasons", "asks")
    return {
        "asin": asin,
        "instruction": f"{opening} {product}{''.join(named)}.",
        "attributes": sorted(design.attributes),
        "options": [f"{group}: {value}" for group, value in chosen.items()],
        "instruction_attributes": wanted,
        "instruction_options": list(chosen.values()),
    }


def _opening(rng: random.Random, *parts: str) -> str:
    """Return one phrase for each of the parts, some of which are empty."""
    return " ".join(filter(None, (rng.choice(VOCABULARY[part]) for part in parts)))


def _describe(
    rng: random.Random, design: _Design, paraphrased: float = 0.0
) -> tuple[str, list[str]]:
    """Return a description of the product, and the attributes that it names.

    The fraction `paraphrased` of the traits is said in other words.
    """
    kind, count = design.kind, round(rng.expovariate(_EXTRAS_NAMED))
    attributes = [*design.wanted, *rng.sample(design.extras, min(count, len(design.extras)))]
    if rng.random() < 0.3:
        attributes.append(design.purpose)
    order = rng.sample(attributes, len(attributes))
    reworded = [a for a in order if a in kind.traits and rng.random() < paraphrased]
    traits, parts, purposes = (
        [a for a in order if a in among and a not in reworded]
        for among in (kind.traits, kind.parts, kind.purposes)
    )
    thing = f"{design.material} {kind.name}" if rng.random() < 0.4 else kind.name
    if traits and rng.random() < 0.7:
        thing = f"{', '.join(traits)} {thing}"
    elif traits:
        thing = f"{thing} that {'is' if kind.singular else 'are'} {' and '.join(traits)}"
    thing = f"{thing} by {design.brand}" if rng.random() < 0.5 else f"{design.brand} {thing}"
    thing += f" with {' and '.join(parts)}" if parts else ""
    thing += f" for {' and '.join(purposes)}" if purposes else ""
    if reworded:
        thing += f", {' and '.join(VOCABULARY['paraphrases'][a] for a in reworded)}"
    if kind.singular:
        thing = f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}"
    return thing, attributes


def order_of(spec: CatalogueSpec) -> Sequence[int]:
    """Return all product numbers in catalogue order."""
    numbers = array("q", range(spec.products))
    random.Random(f"{spec.seed}/order").shuffle(numbers)
    return numbers
