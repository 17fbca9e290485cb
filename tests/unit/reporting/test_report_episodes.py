"""The episodes that a report contains, and how they are packed."""

import json

from hgpo_rllib.reporting import episodes as packing
from hgpo_rllib.reporting.episodes import pack_episodes
from hgpo_rllib.results import load_runs
from tests.unit.reporting.reporting_rows import EPISODES, episode, make_run, write_jsonl


def pack(*run_dirs):
    packed = pack_episodes(load_runs(run_dirs).experiments())
    assert json.loads(json.dumps(packed)) == packed
    return packed


def write(run_dir, iteration, episodes):
    rows = [row | {"iteration": iteration} for row in episodes]
    write_jsonl(run_dir / "episodes" / f"iteration_{iteration:04d}.jsonl", rows)


def grouped(group, outcomes, advantages=(0.5, -0.5)):
    """Return a group of episodes with the given outcomes."""
    return [
        episode(f"member_{i}", won, list(advantages)) | {"group": group, "game": f"games/{group}"}
        for i, won in enumerate(outcomes)
    ]


def test_unclosed_thoughts_are_packed_in_linear_time(run_dir):
    """Packing many unclosed tags takes linear time (a regular expression took hours)."""
    members = grouped("group", [True, False])
    members[0]["steps"][0] |= {"completion": "<think>" * 350_000}
    write(run_dir, 9, members)
    *_, shown = pack(run_dir)
    assert shown["iteration"] == 9
    assert shown["groups"][0]["members"][0]["steps"][0]["thought"] == ""


def test_a_step_has_all_that_the_browser_shows(run_dir):
    (shown,) = pack(run_dir)
    assert (shown["iteration"], shown["total"], shown["total_groups"]) == (4, 4, 1)
    (group,) = shown["groups"]
    assert (group["size"], group["won"], group["task_type"]) == (4, 2, "pick and place")
    last = group["members"][3]["steps"][1]
    step = EPISODES[3]["steps"][1]
    for name in (*packing.TEXTS, *packing.NUMBERS):
        assert last[name] == step[name]
    assert (last["thought"], last["flags"], last["sizes"]) == ("go", ["inadmissible"], [4, 2, 1])


def test_files_without_group_sizes_or_advantages_are_shown(run_dir):
    rows = [episode(0, True, [None])]
    del rows[0]["steps"][0]["group_sizes"]
    write(run_dir, 9, rows)
    (step,) = pack(run_dir)[-1]["groups"][0]["members"][0]["steps"]
    assert (step["sizes"], step["advantage"]) == ([], None)


def test_a_run_shows_its_first_a_middle_and_its_newest_iteration(run_dir):
    (run_dir / "episodes" / "iteration_0004.jsonl.gz").unlink()
    for iteration in (1, 2, 5, 7, 9):
        write(run_dir, iteration, EPISODES)
    assert [shown["iteration"] for shown in pack(run_dir)] == [1, 5, 9]
    assert {shown["label"] for shown in pack(run_dir)} == {""}


def test_of_several_runs_each_curve_shows_its_newest_iteration(tmp_path):
    runs = [make_run(tmp_path / name, estimator=name) for name in ("hgpo", "grpo")]
    write(runs[0], 9, EPISODES)
    shown = [(each["label"], each["iteration"]) for each in pack(*runs)]
    assert shown == [("hgpo", 9), ("grpo", 4)]


def test_groups_that_teach_most_come_first(run_dir, monkeypatch):
    monkeypatch.setattr(packing, "MAX_GROUPS", 2)
    episodes = [
        *grouped("a", [False, False], (0.0, 0.0)),
        *grouped("b", [False, False], (9.0, -9.0)),
        *grouped("c", [False, True], (0.1, -0.1)),
    ]
    write(run_dir, 9, episodes)
    shown = pack(run_dir)[-1]
    assert [group["game"] for group in shown["groups"]] == ["games/c", "games/b"]
    assert (shown["total"], shown["total_groups"]) == (6, 3)


def test_members_are_in_the_order_of_their_numbers(run_dir):
    write(run_dir, 9, grouped("a", [False] * 11)[::-1])
    members = pack(run_dir)[-1]["groups"][0]["members"]
    assert [member["name"] for member in members] == [f"member_{i}" for i in range(11)]


def test_texts_have_a_limit_and_every_iteration_an_episode(run_dir, monkeypatch):
    for iteration in (1, 2, 9):
        long = [row | {"steps": []} for row in grouped("a", [True, False, False])]
        for member, row in enumerate(long):
            text = f"{iteration}-{member} " * 1000
            row["steps"] = [{"anchor": "x", "prompt": text, "completion": "", "advantage": 0.5}]
        write(run_dir, iteration, long)
    (run_dir / "episodes" / "iteration_0004.jsonl.gz").unlink()

    def members() -> list[int]:
        return [len(each["groups"][0]["members"]) for each in pack(run_dir)]

    assert members() == [3, 3, 3]
    monkeypatch.setattr(packing, "MAX_CHARACTERS", 3 * 4500)
    # An episode of 4000 characters is left out when the share is used up, not when it is too long.
    assert members() == [2, 2, 2]
    monkeypatch.setattr(packing, "MAX_CHARACTERS", 0)
    assert members() == [1, 1, 1]
    (first, *_) = pack(run_dir)
    assert (first["groups"][0]["size"], first["total"]) == (3, 3)


def test_one_outlier_does_not_make_all_colors_pale(run_dir):
    write(run_dir, 9, grouped("a", [True], [1.0] * 30 + [0.0] * 30 + [50.0]))
    assert pack(run_dir)[-1]["scale"] == 1.0
    write(run_dir, 9, grouped("a", [True], [0.0]))
    assert pack(run_dir)[-1]["scale"] == 0.0


def test_long_paths_of_games_are_shortened(run_dir):
    write(run_dir, 9, [episode(0, True, [1.0]) | {"game": "/a/b/c/d/e/game.z8"}])
    assert pack(run_dir)[-1]["groups"][0]["game"] == "…/c/d/e/game.z8"


def test_a_run_without_episodes(run_dir):
    (run_dir / "episodes" / "iteration_0004.jsonl.gz").unlink()
    assert pack(run_dir) == []
