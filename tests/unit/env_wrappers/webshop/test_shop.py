"""Sessions share one shop."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from env_wrappers.webshop.shop import Shop, open_shop
from tests.unit.env_wrappers.webshop.webshop_store import write_store


def test_threads_that_open_a_store_at_once_share_it(tmp_path: Path) -> None:
    data = write_store(tmp_path / "data")
    start_together = threading.Barrier(4)

    def open_it(_: int) -> Shop:
        start_together.wait()
        return open_shop(data, nouns="words")

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(open_it, range(4)))) == 1
