"""The catalogue's cache on disk: built once, and atomically under failures and concurrency."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from env_wrappers.errors import DataError
from env_wrappers.webshop import cache, catalogue
from env_wrappers.webshop.catalogue import open_catalogue
from env_wrappers.webshop.generator import generate
from env_wrappers.webshop.source import read_listings
from env_wrappers.webshop.synthetic_products import CatalogueSpec
from tests.unit.env_wrappers.webshop.webshop_data import (
    ATTRIBUTES,
    HUMAN,
    ITEMS,
    PRODUCTS,
    write_data,
)

OPEN = """
import hashlib, sys
from env_wrappers.webshop.catalogue import open_catalogue

catalogue = open_catalogue(sys.argv[1])
print(hashlib.sha256(repr([catalogue.listing(i) for i in range(len(catalogue))]).encode()).digest())
print(catalogue.folder, catalogue.search("green mops"))
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path / "data")


def _open_elsewhere(data: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OPEN, str(data)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path.cwd()
    )


def test_a_catalogue_is_built_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = open_catalogue(data)
    assert open_catalogue(str(data)) is found
    assert found.folder.parent == data / ".webshop-cache"
    monkeypatch.setattr(catalogue, "read_listings", None)
    monkeypatch.setattr(hashlib, "file_digest", None)  # nor are the data files read again
    catalogue._open.cache_clear()
    assert list(open_catalogue(data)) == list(found)


def test_touched_files_are_read_again_and_changed_ones_taken_in(data: Path) -> None:
    found = open_catalogue(data)
    os.utime(data / PRODUCTS, ns=(1, 1))
    assert open_catalogue(data) is found
    (data / ".webshop-cache" / "hashes.json").write_text('{"a": 1}')
    assert open_catalogue(data) is found
    before = (data / ATTRIBUTES).stat()
    content = (data / ATTRIBUTES).read_bytes()
    (data / ATTRIBUTES).write_bytes(content.replace(b"soft", b"hard"))
    os.utime(data / ATTRIBUTES, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = open_catalogue(data)  # although size and time are the same
    assert changed[0].attributes == ("hard",)
    assert changed.facts["data_hash"] != found.facts["data_hash"]
    assert found[0].attributes == ("soft",)
    (data / HUMAN).unlink()
    assert open_catalogue(data).listing(1).human == ()


def test_one_folder_remembers_the_hashes(data: Path, tmp_path: Path) -> None:
    """The user's cache is left alone if the folder of the data can be written."""
    open_catalogue(data)
    assert (data / ".webshop-cache" / "hashes.json").is_file()
    assert not (tmp_path / "xdg").exists()


def _truncate(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()  # a process that has it mapped keeps the old file
    path.write_bytes(content[:-3])


@pytest.mark.parametrize("name", ["asin.npy", "search/words.npy", "facts.json"])
def test_a_damaged_cache_is_named(data: Path, name: str) -> None:
    folder = open_catalogue(data).folder
    _truncate(folder / name)
    catalogue._open.cache_clear()
    with pytest.raises(DataError, match=f"{folder} is damaged: .*; remove the folder"):
        open_catalogue(data)


def test_damage_that_shows_later_is_named(data: Path) -> None:
    found = open_catalogue(data)
    with (found.folder / "records.jsonl").open("r+b") as file:
        file.write(b"?")
    with pytest.raises(DataError, match=r"record 0 is damaged; remove the folder"):
        found[0]


def test_what_a_killed_process_left_is_removed(data: Path) -> None:
    name = open_catalogue(data).folder.name
    root = data / ".webshop-cache"
    left = root / f"{name}.partial-1-abc"
    left.mkdir()
    (left / ".lock").write_text("")
    shutil.rmtree(root / name)
    catalogue._open.cache_clear()
    open_catalogue(data)
    assert {path.name for path in root.iterdir()} == {name, f"{name}.lock", "hashes.json"}


def test_the_users_cache_serves_where_the_data_cannot_be_written(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data / ".webshop-cache").write_text("")  # root can write anywhere else
    found = open_catalogue(data)
    assert found.folder.parent == tmp_path / "xdg/hgpo-rllib/webshop"
    assert open_catalogue(data) is found
    monkeypatch.setenv("XDG_CACHE_HOME", str(data / PRODUCTS))
    with pytest.raises(DataError, match=r"nowhere to keep .*cannot write .* nor .*XDG_CACHE_HOME"):
        open_catalogue(data)


def test_a_cache_beside_data_that_cannot_be_written_serves_too(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = open_catalogue(data)

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache, "write_atomically", refuse)
    monkeypatch.setattr(cache, "new_directory", refuse)
    os.utime(data / PRODUCTS, ns=(1, 1))
    assert open_catalogue(data) is found


def test_data_that_changes_while_it_is_read_is_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_and_change(*arguments: Any) -> Any:
        yield from read_listings(*arguments)
        (data / PRODUCTS).write_text(json.dumps(ITEMS[:2]))

    monkeypatch.setattr(catalogue, "read_listings", read_and_change)
    with pytest.raises(DataError, match="data: the data changed while it was read; try again"):
        open_catalogue(data)
    monkeypatch.undo()
    assert len(open_catalogue(data)) == 2


def test_a_disk_without_room_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk raises a one-line error and leaves no partial cache."""

    def no_room(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(
        DataError, match=r"cannot write .* \(No space left on device\) nor "
    ) as error:
        open_catalogue(data)
    assert "\n" not in str(error.value)
    assert not [path for path in data.rglob(".webshop-cache/*") if path.is_dir()]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Yield a function that mounts a file system of a given size in KiB."""
    mounted: list[Path] = []

    def mount(size: int) -> Path:
        folder = tmp_path / f"disk-{size}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
            pytest.skip("file systems cannot be mounted here, which takes root")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_ends_the_build_with_one_line(
    tmp_path: Path, disk: Callable[[int], Path]
) -> None:
    """A full disk ends the command with a one-line error instead of SIGBUS.

    The command succeeds on a disk that has just enough room for the cache.
    """
    data = tmp_path / "store"
    generate(data, CatalogueSpec(products=1000))
    needed = sum(file.stat().st_size for file in open_catalogue(data).folder.rglob("*")) // 1024
    shutil.rmtree(data / ".webshop-cache")
    (data / ".webshop-cache").write_text("")  # so that the user's cache is used
    for size, status in ((needed // 2, 2), (needed - 100, 2), (needed + 160, 0)):
        folder = disk(size)
        done = subprocess.run(
            [sys.executable, "-m", "hgpo_rllib.cli.main", "data", "check", "webshop", str(data)],
            env=os.environ | {"XDG_CACHE_HOME": str(folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, (size, done)
        if status == 0:
            continue
        (line,) = done.stderr.splitlines()
        assert "No space left on device" in line
        left = [path for path in folder.rglob("*") if path.is_file()]
        assert {path.suffix for path in left} <= {".lock", ".json"}


def test_processes_that_start_at_once_share_one_catalogue(data: Path) -> None:
    processes = [_open_elsewhere(data) for _ in range(2)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 2, outputs
    assert len({out for out, _ in outputs}) == 1
    root = data / ".webshop-cache"
    assert Counter(path.is_dir() for path in root.iterdir()) == {True: 1, False: 2}


def test_without_locks_the_first_of_two_builders_wins(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    def race(*arguments: Any) -> Any:
        yield from read_listings(*arguments)
        done = _open_elsewhere(data)  # has the catalogue ready before this process
        assert done.wait(timeout=60) == 0
        done.communicate()

    found = cache.cache_roots(data)
    assert found[0] == data / ".webshop-cache"
    monkeypatch.setattr(cache.fcntl, "flock", no_locks)
    monkeypatch.setattr(catalogue, "read_listings", race)
    assert len(open_catalogue(data)) == 3
    assert not [*found[0].glob("*.partial-*")]
