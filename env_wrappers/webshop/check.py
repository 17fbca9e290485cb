"""Check a WebShop catalogue: what it contains, and whether its goals are achievable."""

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from env_wrappers.datasets import MANIFEST, evenly
from env_wrappers.errors import DataError
from env_wrappers.files import file_hash, read_json
from env_wrappers.webshop.catalogue import open_catalogue
from env_wrappers.webshop.goals import PRODUCT_SPLITS, GoalKind, GoalList, split_goals
from env_wrappers.webshop.session import Session
from env_wrappers.webshop.shop import Shop, open_shop
from env_wrappers.webshop.shopper import NotFoundError, oracle_actions
from env_wrappers.webshop.source import ATTRIBUTES_GLOB, HUMAN, find_sources


@dataclass(frozen=True)
class GoalCheck:
    """Result of checking the goals of one kind.

    Attributes:
        count: number of goals.
        splits: number of goals per canonical split and per split by product.
        replayed: indices of the goals that the oracle played.
        missed: for played goals ("synthetic goal 17") that did not score 1.0, the reason.
    """

    count: int
    splits: dict[str, int]
    replayed: list[int] = field(default_factory=list)
    missed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CatalogueCheck:
    """Result of checking a catalogue.

    Attributes:
        kind: "generated" (with a manifest) or "other".
        departments: number of products per department.
        skipped: number of records skipped, by reason ("nan", "long", "duplicate").
        goals: results by kind of goals.
        changed: files of a generated catalogue that differ from the manifest, with the reason.
    """

    kind: str
    departments: Counter[str]
    skipped: dict[str, int]
    goals: dict[GoalKind, GoalCheck]
    changed: dict[str, str]

    @property
    def broken(self) -> dict[str, str]:
        """Changed files and missed goals, with the reason; only of generated catalogues.

        Other data contains goals that cannot be achieved.
        """
        if self.kind != "generated":
            return {}
        missed = {g: why for check in self.goals.values() for g, why in check.missed.items()}
        return self.changed | missed


def check_catalogue(
    data: str | Path | None,
    replay: bool = False,
    limit: int | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> CatalogueCheck:
    """Check a catalogue; the files are read and indexed as for playing.

    Args:
        data: directory of the product files; None uses ``$WEBSHOP_DATA``.
        replay: also let the oracle play goals; each purchase must score 1.0.
        limit: number of goals to play per kind, evenly spaced; None plays all.
        on_progress: called with the number of goals played and the total.

    Raises:
        DataError: the files are unusable, or contain no goals.
    """
    folder = find_sources(data).folder
    catalogue = open_catalogue(folder)
    shops: dict[GoalKind, Shop] = {}
    if (catalogue.columns["goals"] > 0).any():
        shops["synthetic"] = open_shop(folder, "synthetic")
    if catalogue.columns["human"].any():
        shops["human"] = open_shop(folder, "human")
    if not shops:
        raise DataError(
            f"{folder}: no goal for any of the {len(catalogue)} products: neither "
            f'{ATTRIBUTES_GLOB} nor {HUMAN} has an "instruction" for them; fetch or generate the '
            "files again"
        )
    goals = {kind: GoalCheck(len(shop.goals), _splits(shop.goals)) for kind, shop in shops.items()}
    chosen = [(k, goal) for k, shop in shops.items() for goal in evenly(len(shop.goals), limit)]
    for done, (kind, goal) in enumerate(chosen if replay else (), start=1):
        goals[kind].replayed.append(goal)
        why = why_missed(shops[kind], goal)
        if why:
            goals[kind].missed[f"{kind} goal {goal}"] = why
        on_progress(done, len(chosen))
    generated = (folder / MANIFEST).is_file()
    return CatalogueCheck(
        kind="generated" if generated else "other",
        departments=Counter(product.category for product in catalogue),
        skipped=catalogue.facts["skipped"],
        goals=goals,
        changed=_changed(folder / MANIFEST) if generated else {},
    )


def why_missed(shop: Shop, goal: int) -> str | None:
    """Let the oracle play a goal; return why it did not score 1.0, or None if it did."""
    session = Session(shop)
    session.start(goal)
    product = shop.catalogue[session.goal.product]
    score = 0.0
    try:
        actions = oracle_actions(session.goal, product, shop.catalogue)
    except NotFoundError as error:
        return str(error)
    for action in actions:
        score, _ = session.step(action)
        if session.ignored:
            return f"{action!r} did nothing"
    return None if score == 1.0 else f"buying {product.asin} earned {score:.3f}"


def _splits(goals: GoalList) -> dict[str, int]:
    counts = dict.fromkeys(("test", "dev", "train", *PRODUCT_SPLITS), 0)
    for split in counts:
        with contextlib.suppress(DataError):  # an empty split
            counts[split] = len(split_goals(goals, split))
    return counts


def _changed(manifest: Path) -> dict[str, str]:
    """Return the generated files that have changed, with the reason."""
    try:
        expected = read_json(manifest)["sha256"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return {manifest.name: f"cannot be read: {error!r}"}
    changed = {}
    for name, digest in expected:
        with contextlib.suppress(OSError):
            if file_hash(manifest.parent / name) == digest:
                continue
        changed[name] = "is not as it was generated: its sha256 differs"
    return changed
