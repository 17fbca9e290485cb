"""Settings and fixtures of all tests."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.processes import Command

# As in `hgpo_rllib.cli.main`: with other work on the same cores, torch's threads would spin and
# slow down cloning to minutes. The variable is read when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:  # there are as many processes as cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")


# `--hypothesis-profile=thorough` runs more examples.
settings.register_profile("thorough", max_examples=300, deadline=None)
settings.register_profile("quick", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("quick")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run `async def` tests in asyncio."""
    return "asyncio"


def pytest_sessionfinish() -> None:
    """Kill the commands that failed tests left running."""
    for command in Command.started:
        command.__exit__()


@pytest.fixture(scope="session", autouse=True)
def translations_of_games(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep translations of ALFWorld games in a temporary folder instead of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HGPO_ALFWORLD_CACHE", str(tmp_path_factory.mktemp("translations")))
        yield
