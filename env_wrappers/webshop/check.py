"""Check a WebShop catalogue: what it contains, and whether its goals are achievable."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from env_wrappers.datasets import MANIFEST
from env_wrappers.errors import DataError
from env_wrappers.files import open_regular, read_json
from env_wrappers.webshop.catalogue import Catalogue, open_catalogue
from env_wrappers.webshop.goals import SPLITS
from env_wrappers.webshop.goals import Kind as GoalKind
from env_wrappers.webshop.session import Session
from env_wrappers.webshop.shop import Shop, open_shop
from env_wrappers.webshop.shopper import NotFoundError, oracle_actions
from env_wrappers.webshop.source import ATTRIBUTES, HUMAN, find_sources

_OWN = [(split, SPLITS[split]) for split in ("test", "dev", "train")]  # disjoint splits


@dataclass(frozen=True)
class GoalCheck:
    """Result of checking the goals of one kind.

    Attributes:
        splits: number of goals per split.
        replayed: indices of the goals that the oracle played.
        missed: for played goals ("synthetic goal 17") that did not score 1.0, the reason.
    """

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
    goals: dict[str, GoalCheck]
    changed: dict[str, str]

    @property
    def broken(self) -> dict[str, str]:
        """All faults: reason by file or goal.

        Missed goals count only in generated catalogues; other data contains unachievable goals.
        """
        missed = {
            goal: why
            for check in self.goals.values()
            for goal, why in check.missed.items()
            if self.kind == "generated"
        }
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
    shops = {kind: open_shop(folder, kind) for kind in _kinds(catalogue)}
    if not shops:
        raise DataError(
            f"{folder}: no goal for any of the {len(catalogue)} products: {ATTRIBUTES} has no "
            f'"instruction" for them, nor {HUMAN} a wish; fetch or generate the files again'
        )
    chosen = {kind: _evenly(len(shop.goals), limit) for kind, shop in shops.items()}
    total = sum(map(len, chosen.values()))
    goals: dict[str, GoalCheck] = {}
    for kind, shop in shops.items():
        check = GoalCheck(_splits(len(shop.goals)))
        for goal in chosen[kind] if replay else ():
            check.replayed.append(goal)
            why = why_missed(shop, goal)
            if why:
                check.missed[f"{kind} goal {goal}"] = why
            on_progress(len(check.replayed) + sum(len(c.replayed) for c in goals.values()), total)
        goals[kind] = check
    manifest = folder / MANIFEST
    generated = manifest.is_file()
    return CatalogueCheck(
        kind="generated" if generated else "other",
        departments=Counter(catalogue[index].category for index in range(len(catalogue))),
        skipped=catalogue.facts["skipped"],
        goals=goals,
        changed=_changed(manifest) if generated else {},
    )


def why_missed(shop: Shop, goal: int) -> str | None:
    """Let the oracle play a goal; return why it did not score 1.0, or None if it did."""
    session = Session(shop)
    session.start(goal)
    product = shop.catalogue[session.goal.product]
    reward, bought = 0.0, False
    try:
        actions = oracle_actions(session.goal, product, shop.catalogue)
    except NotFoundError as error:
        return str(error)
    for action in actions:
        reward, bought = session.step(action)
        if session.ignored:
            return f"{action!r} did nothing"
    if not bought or reward != 1.0:
        return f"buying {product.asin} earned {reward:.3f}"
    return None


def _kinds(catalogue: Catalogue) -> list[GoalKind]:
    """Return the kinds of goals in a catalogue."""
    there: dict[GoalKind, bool] = {
        "synthetic": bool((catalogue.store.goals > 0).any()),
        "human": bool(catalogue.store.human.any()),
    }
    return [kind for kind, any_goals in there.items() if any_goals]


def _evenly(count: int, limit: int | None) -> Sequence[int]:
    if limit is None or limit >= count:
        return range(count)
    return [place * count // limit for place in range(limit)]


def _splits(count: int) -> dict[str, int]:
    bounds = {split: (first, count if last is None else last) for split, (first, last) in _OWN}
    return {split: max(0, min(last, count) - first) for split, (first, last) in bounds.items()}


def _changed(manifest: Path) -> dict[str, str]:
    """Return the generated files that have changed, with the reason."""
    try:
        expected = read_json(manifest)["sha256"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return {manifest.name: f"cannot be read: {error!r}"}
    why = "is not as it was generated: its sha256 differs"
    return {name: why for name, digest in expected if _sha256(manifest.parent / name) != digest}


def _sha256(file: Path) -> str:
    try:
        with open_regular(file) as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError:
        return ""
