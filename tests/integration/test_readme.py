"""The Python example of the README works."""

import re
from functools import partial
from pathlib import Path

import pytest
import ray

from hgpo_rllib.config import RunConfig
from hgpo_rllib.models import load_model
from tests.paths import ROOT

pytestmark = pytest.mark.integration
README = ROOT / "README.md"


@pytest.mark.usefixtures("shared_server")
def test_the_snippet(
    run_config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The example runs with paths of a small run, two groups, and one iteration instead of five."""
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    for old, new in {
        "/…/alfworld-games-…": run_config.env.data,
        "/…/pocket-model-…": run_config.model.model_path,
        "groups_per_iteration=12": "groups_per_iteration=2",
        "range(5)": "range(1)",
    }.items():
        assert code.count(old) == 1, old
        code = code.replace(old, str(new))
    monkeypatch.setattr(ray, "init", partial(ray.init, ignore_reinit_error=True))
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    # Ray prints log lines of its workers between those of the program.
    (printed,) = re.findall(r"^(\S+) (\S+)$", capsys.readouterr().out, flags=re.MULTILINE)
    success, gap = map(float, printed)
    assert 0 <= success <= 1
    assert gap < 1e-4
    assert load_model(str(tmp_path / "policy")).num_parameters() > 0
