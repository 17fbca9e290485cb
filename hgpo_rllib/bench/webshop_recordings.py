"""Compare WebShop with recordings of the original and of Lucene on the same products."""

import json
import lzma
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from env_wrappers.errors import DataError
from env_wrappers.webshop.nouns import NounExtractor
from env_wrappers.webshop.reward import score
from env_wrappers.webshop.session import Session
from env_wrappers.webshop.shop import Shop, open_shop
from env_wrappers.webshop.tokens import analyze
from hgpo_rllib.bench.measure import Row

PRICE_SEED = 7  # price seed of the recordings
REWARD_TOLERANCE = 1e-9
_NOUNS = "webshop_title_nouns.json.xz"


def compare_recordings(data: Path | None, recordings: Path) -> list[Row]:
    """Compare WebShop with each kind of recording in a folder.

    Args:
        data: the products of the recordings.
        recordings: folder with ``webshop_*.json.xz``.

    Returns:
        One row per kind: ``kind``, the number ``recorded``, and the number that are the ``same``.

    Raises:
        DataError: there are no recordings, one cannot be read, or the products differ.
    """
    compared = []
    for name, (kind, compare) in _KINDS.items():
        if (recordings / name).is_file():
            recorded = _read(recordings / name)
            try:
                answers = list(compare(recorded, data, recordings))
            except DataError:
                raise
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise DataError(
                    f"{recordings / name} does not fit the products: {error!r}; give the data that "
                    "was recorded"
                ) from error
            row = {"kind": kind, "recorded": len(answers), "same": sum(answers)}
            compared.append(row)
    if not compared:
        raise DataError(f"{recordings}: no recordings here; there should be {', '.join(_KINDS)}")
    return compared


def _read(file: Path) -> Any:
    try:
        return json.loads(lzma.decompress(file.read_bytes()))
    except (OSError, ValueError, lzma.LZMAError) as error:
        raise DataError(f"{file} cannot be read ({error}): fetch it again") from error


def _documents(recorded: Any, data: Path | None, recordings: Path) -> Iterator[bool]:
    return (analyze(text) == tokens for _, text, tokens in recorded)


def _queries(recorded: Any, data: Path | None, recordings: Path) -> Iterator[bool]:
    catalogue = open_shop(data).catalogue
    for query, asins in recorded:
        yield [catalogue[index].asin for index in catalogue.search(query)] == asins


def _episodes(recorded: Any, data: Path | None, recordings: Path) -> Iterator[bool]:
    kinds: tuple[tuple[Literal["synthetic", "human"], str], ...]
    kinds = (("synthetic", "synth"), ("human", "human"))
    for goals, name in kinds:
        session = Session(_recorded_shop(data, goals, recordings))
        yield from (_replays(session, episode) for episode in recorded[name])


def _replays(session: Session, episode: dict[str, Any]) -> bool:
    """Whether texts, URL, actions, reward and termination are the same at every step."""
    session.start(episode["idx"])
    same = session.goal.instruction == episode["goal"]["instruction_text"]
    for number, step in enumerate(episode["steps"]):
        if number:  # the first is the reset
            same &= session.step(step["a"]) == (step["r"], step["done"])
        same &= [session.observation(mode) for mode in ("text", "text_rich", "url")] == [
            step[key] for key in ("obs", "rich", "url")
        ]
        same &= session.available_actions() == step["av"]
    return same


def _rewards(recorded: Any, data: Path | None, recordings: Path) -> Iterator[bool]:
    shop = _recorded_shop(data, "synthetic", recordings)
    catalogue, goals = shop.catalogue, shop.goals
    for number, asin, chosen, reward, _ in recorded:
        goal, index = goals[number], catalogue.index_of(asin)
        if index is None:
            raise KeyError(asin)
        wanted, price = catalogue[goal.product], goals.price(index)
        result = score(catalogue[index], chosen, price, goal, wanted, shop.nouns)
        yield abs(result.reward - reward) <= REWARD_TOLERANCE


def _recorded_shop(
    data: Path | None, goals: Literal["synthetic", "human"], recordings: Path
) -> Shop:
    shop = open_shop(data, goals, price_seed=PRICE_SEED, nouns="words")
    titles = _read(recordings / _NOUNS)["nouns"]  # as the original's language model tagged them
    return replace(shop, nouns=NounExtractor("recorded", titles.__getitem__))


_Compare = Callable[[Any, Path | None, Path], Iterator[bool]]
_KINDS: dict[str, tuple[str, _Compare]] = {
    "webshop_search_tokens.json.xz": ("terms of documents", _documents),
    "webshop_search_hits.json.xz": ("hits of queries", _queries),
    "webshop_traces.json.xz": ("episodes", _episodes),
    "webshop_rewards.json.xz": ("rewards", _rewards),
}
