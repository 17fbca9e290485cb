"""Memory and file handles over 20,000 episodes in one process: `pytest -m slow`."""

import os
import random
import tarfile
from pathlib import Path

import pytest

from env_wrappers.alfworld.env import ALFWorldEnv
from env_wrappers.alfworld.games import find_games
from env_wrappers.alfworld.generator import GenerationSpec, generate
from tests.paths import ALFWORLD_ARCHIVE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
EPISODES, FIRST = 20_000, 1_000
GENERATED = GenerationSpec(
    splits={"train": 6, "valid_unseen": 3}, rooms=("bedroom", "bathroom"), max_receptacles=16,
    task_types=(
        "pick_and_place_simple", "look_at_obj_in_light", "pick_clean_then_place_in_recep",
    ),
)  # fmt: skip
OFFICIAL_GAMES = 6


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return nine small generated games and, if the archive exists, some official ones."""
    out = tmp_path_factory.mktemp("soak")
    generate(out / "generated", GENERATED)
    found = [game for s in GENERATED.splits for game in find_games(out / "generated", s)]
    if ALFWORLD_ARCHIVE.is_file():
        with tarfile.open(ALFWORLD_ARCHIVE) as archive:
            names = [name for name in archive.getnames() if "/valid_seen/" in name]
            trials = sorted({str(Path(name).parent) for name in names if name.endswith("tw-pddl")})
            chosen = set(trials[:: len(trials) // OFFICIAL_GAMES][:OFFICIAL_GAMES])
            for name in names:
                if str(Path(name).parent) in chosen:
                    archive.extract(name, out / "official", filter="data")
        found += find_games(out / "official", "valid_seen")
    return found


def test_memory_and_file_handles_stay_as_they_are(games: list[Path]) -> None:
    """The memory over 20,000 episodes stays within 10 % of that after 1,000 episodes."""
    rng = random.Random(0)
    env = ALFWorldEnv(games[0].parents[4], max_steps=8)
    _play(env, games, rng, FIRST)
    memory, handles = _resident_memory(), _open_files()
    rows = []
    for _ in range(FIRST, EPISODES, FIRST):
        _play(env, games, rng, FIRST)
        rows.append(_resident_memory() / memory)
    print(f"\n{len(games)} games; MB after {FIRST} episodes: {memory:.0f}; relative to that:")
    print(*(f"{row:.3f}" for row in rows))
    print(f"file handles: {len(handles)}, at the end {len(_open_files())}")
    assert max(rows) < 1.1
    assert _open_files() == handles


def _play(env: ALFWorldEnv, games: list[Path], rng: random.Random, episodes: int) -> None:
    for _ in range(episodes):
        _, info = env.reset(options={"game": rng.choice(games)})
        ended = False
        while not ended:
            action = rng.choice(info["admissible_actions"])
            *_, terminated, truncated, info = env.step(action)
            ended = terminated or truncated


def _resident_memory() -> float:
    """Return the resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _open_files() -> list[str]:
    """Return this process's open files, without the directory handle of the listing."""
    links = list(Path("/proc/self/fd").iterdir())
    return sorted(str(link.readlink()) for link in links if link.is_symlink())
