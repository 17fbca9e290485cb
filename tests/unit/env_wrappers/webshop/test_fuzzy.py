"""How WebShop's reward compares texts."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_wrappers.webshop.reward import COLORS, first_color, token_set_ratio

words = st.text("abcdexyz", min_size=1, max_size=5)
texts = st.lists(words, max_size=6).map(" ".join)


class TestTokenSetRatio:
    @pytest.mark.parametrize(
        ("first", "second", "expected"),
        [
            ("large", "X-Large!", 100),
            ("dry hair", "hair, dry hair", 100),
            ("★", "★", 0),
            ("", "", 0),
            ("towel", "", 0),
            ("naïve", "nave", 100),  # the letter is dropped
            ("é", "é", 0),
            ("abcd", "abce", 75),
            ("abc", "xyz", 0),
            ("i\u0307 x", "i x", 100),  # the sign is dropped ...
            ("İ", "i", 67),  # ... but not the one from lowercasing the letter
            ("red_wine", "red wine", 88),  # the underscore is part of a word
        ],
    )
    def test_known_values(self, first: str, second: str, expected: int) -> None:
        assert token_set_ratio(first, second) == expected

    @given(texts, texts)
    def test_bounds_and_type(self, first: str, second: str) -> None:
        result = token_set_ratio(first, second)
        assert type(result) is int
        assert 0 <= result <= 100

    @given(texts.filter(bool), texts)
    def test_a_subset_gives_100_both_ways(self, part: str, rest: str) -> None:
        whole = f"{rest} {part}"
        assert token_set_ratio(part, whole) == token_set_ratio(whole, part) == 100

    @given(st.text())
    def test_a_text_equals_itself_if_it_has_words(self, text: str) -> None:
        assert token_set_ratio(text, text) in (0, 100)
        assert token_set_ratio(f"{text} a", f"{text} a") == 100

    @given(st.lists(words, min_size=1, max_size=5), texts, st.randoms())
    def test_case_order_repetition_and_signs_do_not_count(
        self, parts: list[str], other: str, rng: random.Random
    ) -> None:
        expected = token_set_ratio(" ".join(parts), other)
        shuffled = [*parts, parts[0].upper()]
        rng.shuffle(shuffled)
        assert token_set_ratio(" - ".join(shuffled) + "!", other) == expected

    @given(texts)
    def test_empty_sides(self, text: str) -> None:
        assert token_set_ratio(text, "?!") == token_set_ratio("", text) == 0


class TestColors:
    def test_the_list_is_sorted_and_complete(self) -> None:
        assert len(COLORS) == 102
        assert list(COLORS) == sorted(set(COLORS))

    def test_the_first_in_the_alphabet_is_found_anywhere_in_a_text(self) -> None:
        assert first_color("wine red") == "red"
        assert first_color("powdered") == "red"
        assert first_color("xl") is None

    def test_in_a_pair_one_text_has_to_be_equal(self) -> None:
        assert first_color(("color", "dark pink")) is None
        assert first_color(("color", "pink")) == "pink"
        assert first_color(("wood", "color")) is None
