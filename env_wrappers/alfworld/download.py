"""Fetching the official games with `alfworld-download`, a script of the alfworld package."""

import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path

RELEASES = "https://github.com/alfworld/alfworld/releases"
DOWNLOADER = Path(sys.executable).with_name("alfworld-download")
_CONNECT_SECONDS = 15
_TRACEBACK = "Traceback (most recent call last)"


class DownloadError(RuntimeError):
    """The official games did not arrive; the message says on one line what was tried."""


def download(
    data: Path,
    on_line: Callable[[str], None],
    releases: str = RELEASES,
    script: Path = DOWNLOADER,
) -> None:
    """Run the official downloader, which keeps the files that are already there.

    Args:
        data: the directory to hold ``json_2.1.1``.
        on_line: called with each line (and each step of a progress bar) that the script prints.
        releases: a page of the site that the script fetches from, to see whether it answers.
        script: the downloader.

    Raises:
        DownloadError: the script is not installed, nothing answers, or the script fails.
    """
    if not script.is_file():
        raise DownloadError(f"there is no {script.name} beside {Path(sys.executable).name}")
    # The script itself would wait for ever where connections are not refused but ignored.
    request = urllib.request.Request(releases, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        raise DownloadError(
            f"{script.name} needs {releases}, which does not answer: {reason}"
        ) from None
    with subprocess.Popen(
        [sys.executable, str(script), "--data-dir", str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        reason = _pass_on(process.stdout, on_line)
    if process.returncode:
        raise DownloadError(f"{script.name} from {releases} stopped with {reason}")


def _pass_on(lines: Iterable[str], on_line: Callable[[str], None]) -> str:
    """Pass lines on up to a traceback; return the name of the error at its end."""
    error = "an error"
    failed = False
    for line in lines:
        failed = failed or line.startswith(_TRACEBACK)
        if not failed:
            on_line(line.rstrip("\n"))
        elif line[:1].strip():
            # Only its name: the text may hold addresses of this machine's network.
            error = line.partition(":")[0].strip().rpartition(".")[2]
    return error
