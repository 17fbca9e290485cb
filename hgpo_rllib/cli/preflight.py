"""`hgpo preflight`: what a job would upload."""

from pathlib import Path
from typing import Annotated

import typer

SHOWN = 5


def preflight(
    folder: Annotated[Path, typer.Argument(help="the folder of --working-dir")] = Path(),
) -> None:
    """Print what `ray job submit --working-dir FOLDER` uploads; exit code 2 if it is too much."""
    from hgpo_rllib.run.upload import check_upload, find_upload, mib

    upload = find_upload(folder)
    typer.echo(f"upload of {folder.absolute()}: {len(upload.sizes)} files, {mib(upload.total)}")
    for name, size in upload.largest(SHOWN):
        typer.echo(f"  {mib(size):>10}  {name}")
    check_upload(upload)
