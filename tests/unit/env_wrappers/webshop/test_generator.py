"""Generated catalogues are reproducible, in the original's format, and have reachable goals."""

import itertools
import json
import re
from collections import Counter, defaultdict
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_wrappers.datasets import MANIFEST
from env_wrappers.errors import DataError
from env_wrappers.webshop.generator import ATTRIBUTES, HUMAN, ITEMS, generate
from env_wrappers.webshop.shop import open_shop
from env_wrappers.webshop.synthetic_products import (
    EDITION,
    KINDS_PER_BRAND,
    MAX_BRANDS,
    CatalogueSpec,
    asin_of,
    brand_name,
    make_product,
    order_of,
)
from env_wrappers.webshop.vocabulary import VOCABULARY, kinds

SPEC = CatalogueSpec()
DEPARTMENTS = ("beauty", "electronics", "garden", "fashion", "grocery")
KINDS = {kind.name: kind for offered in kinds().values() for kind in offered}


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a catalogue of the default size."""
    out = tmp_path_factory.mktemp("webshop") / "data"
    generate(out, SPEC)
    return out


def read(catalogue: Path, name: str) -> Any:
    return json.loads((catalogue / name).read_text(encoding="utf-8"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def comparable(item: dict[str, Any], own: str) -> str:
    """Return what lookalikes share, apart from their texts and their `own` feature."""
    options = {name: values for name, values in values_of(item).items() if name != EDITION}
    features = [re.sub(f"^{own}", "", line.lower()) for line in item["small_description"]]
    name, path = sorted(item["name"].split()), item["product_category"]
    return json.dumps([options, features, name, item["category"], item["query"], path])


def texts_of(item: dict[str, Any]) -> str:
    """Return all texts of a product, in lower case."""
    options = (text for name, values in values_of(item).items() for text in (name, *values))
    texts = (item["name"], item["full_description"], *item["small_description"], *options)
    return " ".join(texts).lower()


def names_attribute(attribute: str, wish: str) -> bool:
    """Return whether a wish names an attribute, perhaps in other words."""
    return attribute in wish or VOCABULARY["paraphrases"].get(attribute, attribute) in wish


def values_of(item: dict[str, Any]) -> dict[str, list[str]]:
    groups = item["customization_options"] or {}
    return {group: [option["value"] for option in options] for group, options in groups.items()}


class TestFiles:
    """The files that the generator writes, and errors that leave no files."""

    def test_the_same_spec_gives_the_same_bytes(self, catalogue: Path, tmp_path: Path) -> None:
        generate(tmp_path / "again", SPEC)
        assert contents(tmp_path / "again") == contents(catalogue)
        generate(tmp_path / "other", replace(SPEC, seed=1))
        other = contents(tmp_path / "other")
        assert all(other[name] != content for name, content in contents(catalogue).items())
        names = [{item["name"] for item in read(tmp_path / d, ITEMS)} for d in ("again", "other")]
        assert not names[0] & names[1]

    def test_a_version_of_the_generator_always_gives_the_same_bytes(self, catalogue: Path) -> None:
        """The hashes may only change together with `GENERATOR_VERSION`."""
        hashes = read(catalogue, MANIFEST)["sha256"]
        assert {name: hashes[name][:16] for name in hashes} == {
            ITEMS: "0604c1dcae760214",
            ATTRIBUTES: "3485dd139c25a404",
            HUMAN: "c53b015936b97c44",
        }

    def test_a_finished_catalogue_is_left_alone(self, catalogue: Path) -> None:
        before = contents(catalogue)
        calls: list[int] = []
        generate(catalogue, SPEC, on_progress=lambda done, total: calls.append(done))
        assert not calls
        with pytest.raises(DataError, match="another spec"):
            generate(catalogue, replace(SPEC, products=401))
        assert contents(catalogue) == before

    def test_something_else_is_not_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "precious.txt").write_text("mine")
        with pytest.raises(DataError, match="not a generated data set"):
            generate(tmp_path, SPEC)
        assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]

    def test_an_interruption_leaves_nothing(self, tmp_path: Path) -> None:
        def interrupt(done: int, total: int) -> None:
            assert (done, total) == (400, 400)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            generate(tmp_path / "out", SPEC, on_progress=interrupt)
        assert not list(tmp_path.iterdir())

    def test_one_product_is_a_catalogue(self, tmp_path: Path) -> None:
        """A catalogue of one product can be generated, into an existing empty directory."""
        spec = CatalogueSpec(products=1, lookalikes=1, instructed=1.0, human=0.0)
        (tmp_path / "out").mkdir()
        generate(tmp_path / "out", spec)
        (item,) = read(tmp_path / "out", ITEMS)
        assert list(read(tmp_path / "out", ATTRIBUTES)) == [item["asin"]]
        assert read(tmp_path / "out", HUMAN) == {}

    def test_the_manifest_counts(self, catalogue: Path) -> None:
        manifest = read(catalogue, MANIFEST)
        counts = Counter(item["category"] for item in read(catalogue, ITEMS))
        instructed = [r for r in read(catalogue, ATTRIBUTES).values() if "instruction" in r]
        assert manifest["counts"] == counts | {
            "products": 400,
            "instructions": len(instructed),
            "human instructions": len(read(catalogue, HUMAN)),
        }
        assert set(counts) == set(DEPARTMENTS)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"products": 0}, "products must be at least 1"),
            ({"seed": -1}, "seed at least 0"),
            ({"lookalikes": 0}, "lookalikes must be from 1 to 6"),
            ({"lookalikes": 7}, "lookalikes must be from 1 to 6"),
            ({"attributes": 2}, "attributes must be from 3 to 27"),
            ({"attributes": 28}, "attributes must be from 3 to 27"),
            ({"instructed": 0.0}, "instruction must be above 0"),
            ({"human": 1.1}, "human one from 0 to 1"),
            ({"products": 10_000_000}, "not enough brands for 10,000,000"),
        ],
    )
    def test_a_bad_spec_is_refused(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(DataError, match=message):
            replace(SPEC, **change)


class TestProducts:
    """The content of the generated files."""

    def test_the_original_reads_them(self, catalogue: Path) -> None:
        """Every field has the format that the original's loader reads."""
        items, attributes = read(catalogue, ITEMS), read(catalogue, ATTRIBUTES)
        asins = [item["asin"] for item in items]
        assert len(set(asins)) == len(items) == SPEC.products
        assert set(attributes) == set(asins)
        assert set(read(catalogue, HUMAN)) <= set(asins)
        for item in items:
            assert re.fullmatch("[A-Z0-9]{10}", item["asin"])
            assert re.fullmatch(r"|\$[\d,]+\.\d\d( - \$[\d,]+\.\d\d)?", item["pricing"])
            assert item["name"].isascii()
            assert item["product_category"].count(" › ") == 2
            groups = values_of(item)
            assert len(groups.pop(EDITION, [""])) == 1
            assert all(2 <= len(values) <= 4 for values in groups.values())

    def test_they_differ(self, catalogue: Path) -> None:
        """Products differ: some have no price, a price range or no options."""
        items = read(catalogue, ITEMS)
        prices = Counter(item["pricing"].count("$") for item in items)
        assert set(prices) == {0, 1, 2}
        assert min(prices.values()) > 0.04 * len(items)
        for item in items:
            if item["pricing"].count("$") == 2:
                low, high = (
                    float(p.replace(",", "")) for p in re.findall(r"[\d,.]+", item["pricing"])
                )
                assert low < high
        groups = Counter(len(values_of(item)) for item in items)
        assert set(groups) == {0, 1, 2, 3}
        assert min(groups.values()) > 0.04 * len(items)
        assert len({item["name"] for item in items}) == len(items)

    def test_there_are_goals_for_all_splits(self, tmp_path: Path) -> None:
        """300 products suffice for all splits, of which dev and test hold 1,500 goals."""
        for seed in range(5):
            out = tmp_path / str(seed)
            generate(out, CatalogueSpec(products=300, seed=seed))
            attributes = read(out, ATTRIBUTES)
            goals = sum(
                prod(len(values) for values in values_of(item).values())
                for item in read(out, ITEMS)
                if "instruction" in attributes[item["asin"]]
            )
            assert goals > 1800

    @pytest.mark.parametrize("most", [3, 5, 27])
    def test_attributes_are_in_the_texts(self, most: int) -> None:
        """Texts name all attributes of a product and no others; attributes do not repeat."""
        counts = Counter[int]()
        for number in range(400):
            item, record, _ = make_product(replace(SPEC, attributes=most), number)
            own = record["attributes"]
            kind = KINDS[item["query"]]
            every = (*kind.traits, *kind.parts, *kind.purposes)
            assert [a for a in every if a in texts_of(item)] == [a for a in every if a in own]
            assert any(attribute in item["name"].lower() for attribute in own)
            assert not any(text in texts_of(item) for text in VOCABULARY["paraphrases"].values())
            assert len(set(own)) == len(own)
            counts[len(own)] += 1
        assert min(counts) == min(most, 5)
        assert max(counts) == most

    @pytest.mark.parametrize(
        ("most", "title", "words", "different"),
        [(3, (8, 10), (35, 50), 600), (27, (16, 22), (190, 280), 3000)],
    )
    def test_there_is_much_to_read(
        self, most: int, title: tuple[int, int], words: tuple[int, int], different: int
    ) -> None:
        """Texts have realistic lengths (original: 18 words per title, 235 per product)."""
        items = [make_product(replace(SPEC, attributes=most), number)[0] for number in range(400)]
        texts = [re.findall(r"\w+", texts_of(item)) for item in items]
        assert title[0] < sum(len(item["name"].split()) for item in items) / 400 < title[1]
        assert words[0] < sum(map(len, texts)) / 400 < words[1]
        found = len(set(itertools.chain(*texts)))
        assert found > different if most == 27 else found < different

    @pytest.mark.parametrize("lookalikes", [1, 2, 6])
    def test_lookalikes_differ_in_one_property(self, tmp_path: Path, lookalikes: int) -> None:
        """Lookalikes differ only in an edition or a feature, which no title names."""
        generate(tmp_path / "out", CatalogueSpec(products=240, lookalikes=lookalikes))
        items, attributes = read(tmp_path / "out", ITEMS), read(tmp_path / "out", ATTRIBUTES)
        humans = read(tmp_path / "out", HUMAN)
        families = defaultdict(list)
        for item in items:
            families[item["name"].split()[0], item["query"]].append(item)
        assert set(map(len, families.values())) == {lookalikes}
        by_brand = Counter(brand for brand, _ in families)
        assert max(by_brand.values()) <= KINDS_PER_BRAND
        differ = Counter[str]()
        for (brand, kind), members in families.items():
            editions = [values_of(item).pop(EDITION, ["none"])[0] for item in members]
            owned = [set(attributes[item["asin"]]["attributes"]) for item in members]
            own = [next(iter(those - set.intersection(*owned)), "none") for those in owned]
            assert len(set(map(len, owned))) == 1
            if lookalikes > 1:
                what = "edition" if len(set(editions)) > 1 else "feature"
                differ[what] += 1
                one, same = (editions, own) if what == "edition" else (own, editions)
                assert (len(set(one)), set(same)) == (lookalikes, {"none"})
            assert len(set(map(comparable, members, own))) == 1
            assert len({item["name"] for item in members}) == lookalikes
            for item, edition, feature in zip(members, editions, own, strict=True):
                assert edition not in item["name"].lower()
                assert feature not in f"{item['name']} {item['full_description']}".lower()
                records = [attributes[item["asin"]], *humans.get(item["asin"], [])]
                for record in (record for record in records if "instruction" in record):
                    wish, wanted = record["instruction"], record["instruction_attributes"]
                    assert brand.lower() in wish
                    assert kind in wish
                    assert all(names_attribute(attribute, wish) for attribute in wanted)
                    assert feature == "none" or feature in wanted
        assert set(differ) == ({"edition", "feature"} if lookalikes > 1 else set())

    def test_searches_do_not_tell_lookalikes_apart(self, catalogue: Path) -> None:
        """The searchable texts of lookalikes consist of the same words."""
        families = defaultdict(set)
        for item in read(catalogue, ITEMS):
            options = " ".join(f"{name} {' '.join(v)}" for name, v in values_of(item).items())
            bullet = item["small_description"][0]
            text = " ".join((item["name"], item["full_description"], bullet, options)).lower()
            words = tuple(sorted(re.findall(r"\w+", text)))
            families[item["name"].split()[0], item["query"]].add(words)
        assert set(map(len, families.values())) == {1}

    def test_limits_exclude_lookalikes(self, catalogue: Path) -> None:
        """A fifth to a half of the lookalikes of a goal's product exceed the price limit."""
        shop = open_shop(catalogue)
        families = defaultdict(list)
        for product in shop.catalogue:
            families[product.title.split()[0], product.query].append(product.index)
        dear = []
        for goal in map(shop.goals.__getitem__, range(500)):
            product = shop.catalogue[goal.product]
            others = families[product.title.split()[0], product.query]
            dear += [
                shop.goals.prices[other] > goal.price_limit
                for other in others
                if other != goal.product
            ]
        assert 0.2 < sum(dear) / len(dear) < 0.5

    def test_human_instructions_name_their_options(self, catalogue: Path) -> None:
        values = {item["asin"]: values_of(item) for item in read(catalogue, ITEMS)}
        for asin, records in read(catalogue, HUMAN).items():
            for record in records:
                assert record["instruction_attributes"]
                assert len(record["instruction_options"]) == len(values[asin])
                for option, offered in zip(
                    record["instruction_options"], values[asin].values(), strict=True
                ):
                    assert option in offered
                    assert option in record["instruction"]

    def test_human_instructions_paraphrase_traits(self) -> None:
        """Human instructions paraphrase about half of the traits, synthetic ones none."""
        verbatim: list[bool] = []
        for number in range(400):
            _, record, humans = make_product(replace(SPEC, instructed=1.0, human=1.0), number)
            wish, wanted = record["instruction"], record["instruction_attributes"]
            assert all(attribute in wish for attribute in wanted)
            for human in humans:
                traits = set(human["instruction_attributes"]) & set(VOCABULARY["paraphrases"])
                verbatim += [trait in human["instruction"] for trait in traits]
        assert 0.4 < sum(verbatim) / len(verbatim) < 0.6

    @given(st.integers(0, 10**18), st.integers(2, 10**6), st.data())
    def test_numbers_give_different_asins(self, seed: int, products: int, data: Any) -> None:
        numbers = data.draw(st.sets(st.integers(0, products - 1), min_size=2))
        asins = {asin_of(seed, number, products) for number in numbers}
        assert len(asins) == len(numbers)
        assert set(map(len, asins)) == {10}

    @pytest.mark.parametrize("seed", [0, 12345])
    def test_every_name_is_used_once(self, seed: int) -> None:
        """Brand names and asins are unique up to their maximum numbers."""
        assert len({brand_name(seed, brand) for brand in range(MAX_BRANDS)}) == MAX_BRANDS
        assert len({asin_of(seed, number, 9_999) for number in range(100_000)}) == 100_000

    @given(st.integers(0, 1000), st.integers(1, 500))
    def test_the_order_has_every_product_once(self, seed: int, products: int) -> None:
        assert sorted(order_of(CatalogueSpec(products, seed))) == list(range(products))

    def test_every_product_stands_alone(self) -> None:
        """A product, such as the last of a million, is generated without the others."""
        spec = CatalogueSpec(1_000_000, instructed=1.0, human=1.0)
        last = make_product(spec, 999_999)
        assert last == make_product(spec, 999_999)
        assert last[2]
        assert last[0]["asin"] != make_product(spec, 999_998)[0]["asin"]


def test_data_of_another_process_are_not_taken_for_these(tmp_path: Path) -> None:
    """If another process finishes another spec first, this one fails."""

    def race(done: int, total: int) -> None:
        generate(tmp_path / "store", CatalogueSpec(products=5, seed=1))

    with pytest.raises(DataError, match="holds data of another spec"):
        generate(tmp_path / "store", CatalogueSpec(products=5), race)
