"""Download the official games with `alfworld-download`, a script of the alfworld package."""

import subprocess
import sys
import urllib.request
from pathlib import Path

RELEASES = "https://github.com/alfworld/alfworld/releases"
DOWNLOADER = Path(sys.executable).with_name("alfworld-download")
_CONNECT_SECONDS = 15


class DownloadError(RuntimeError):
    """The download failed; the one-line message says what was tried."""


def download(data: Path, releases: str = RELEASES, script: Path = DOWNLOADER) -> None:
    """Run the official downloader, which keeps existing files.

    Args:
        data: target directory of ``json_2.1.1``.
        releases: page of the download site, requested first to check that the site responds.
        script: path of the downloader.

    Raises:
        DownloadError: the script is not installed, the site does not respond, or the script fails.
    """
    if not script.is_file():
        raise DownloadError(f"there is no {script.name} beside {Path(sys.executable).name}")
    # The script has no timeout: it would hang if connections are dropped rather than refused.
    request = urllib.request.Request(releases, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        raise DownloadError(
            f"{script.name} needs {releases}, which does not answer: {reason}"
        ) from None
    status = subprocess.call([sys.executable, str(script), "--data-dir", str(data)])
    if status:
        raise DownloadError(f"{script.name} from {releases} stopped with exit code {status}")
