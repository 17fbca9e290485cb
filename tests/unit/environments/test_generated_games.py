"""Generated ALFWorld games of the run files in `tuned_examples`."""

from pathlib import Path

from env_wrappers.alfworld.games import TASK_TYPES, find_games, task_type_of
from hgpo_rllib.config import RunConfig, load_config
from hgpo_rllib.environments.alfworld import GameGenerator
from tests.paths import ROOT

SIZES = ("games.train=6", "games.valid_seen=0", "games.valid_unseen=0", "games.test=0")


def generating_run_files() -> dict[str, RunConfig]:
    """Return one run file for each different section `games`, by name."""
    configs = {
        file.stem: load_config(file, list(SIZES))
        for file in sorted((ROOT / "tuned_examples").glob("*.yaml"))
    }
    generating = {
        name: config
        for name, config in configs.items()
        if config.env.env_id == "hgpo/ALFWorld-v0" and config.env.data is None
    }
    different = {config.games.model_dump_json(): name for name, config in generating.items()}
    return {name: generating[name] for name in different.values()}


def test_run_files_generate_games_of_their_task_types(tmp_path: Path) -> None:
    """Each section `games` generates games, which a dry run cannot check."""
    configs = generating_run_files()
    assert configs
    for name, config in configs.items():
        GameGenerator().make_data(config, tmp_path / name, lambda done, total: None)
        games = find_games(tmp_path / name, "train")
        assert len(games) == 6
        assert {task_type_of(game) for game in games} <= {*(config.games.task_types or TASK_TYPES)}
