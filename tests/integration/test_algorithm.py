"""The loop with real Ray, Serve, vLLM and ALFWorld: sampling, learning, new weights."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray import serve
from ray.rllib.core import DEFAULT_MODULE_ID

from env_wrappers.alfworld.planner import recorded_plan
from hgpo_rllib.advantages import ESTIMATORS
from hgpo_rllib.agent import action_grammar
from hgpo_rllib.algorithm import HGPO, HGPOConfig
from hgpo_rllib.config import RunConfig
from hgpo_rllib.learner.batching import teacher_columns, token_batch, token_columns
from hgpo_rllib.learner.module import token_log_probs
from hgpo_rllib.metrics import METRICS
from hgpo_rllib.models import load_model
from hgpo_rllib.policy_server.types import Generation, Prompt, RequestFailedError, Sampling
from hgpo_rllib.rollout.restrictions import GrammarReader
from hgpo_rllib.rollout.scoring import score
from hgpo_rllib.rollout.trajectory import Trajectory, response_rows
from hgpo_rllib.run.metrics import iteration_metrics
from hgpo_rllib.settings.algorithm import AlgorithmSettings
from tests.integration.weights import reference_logp, sync

pytestmark = pytest.mark.integration
PROMPT = list(range(40, 90))


def ask(algorithm: HGPO, temperature: float = 1.0) -> Generation:
    """Return the served policy's response to a fixed prompt."""
    sampling = Sampling(temperature, max_tokens=16, stop_token_ids=())
    weights = sync(algorithm)
    server = serve.get_app_handle(algorithm.config.serve_app)
    return server.generate.remote([Prompt(PROMPT)], sampling, weights).result()[0]


def step_logp(algorithm: HGPO, trajectories: list[Trajectory]) -> list[np.ndarray]:
    """Return the learner's log-probabilities of all responses, by step."""
    learner = algorithm.learner_group._learner
    return [
        learner.response_logp(turn.prompt_ids, turn.response_ids)
        for trajectory in trajectories
        for turn in trajectory.turns
    ]


def test_served_policy_equals_the_learner_after_every_update(
    algorithm: HGPO, tmp_path: Path
) -> None:
    """After each of two updates, engine, learner and checkpoint agree on log-probabilities."""
    before = ask(algorithm)
    for update in range(2):
        result = algorithm.train()
        assert result["served_learner_logp_gap"] < 1e-4
        algorithm.save_pretrained(str(tmp_path / str(update)))
        model = load_model(str(tmp_path / str(update)))
        for temperature in (1.0, 0.4):
            answer = ask(algorithm, temperature)
            expected = reference_logp(model, PROMPT, answer.token_ids, temperature)
            np.testing.assert_allclose(answer.logp, expected, atol=1e-4)
    stale = reference_logp(model, PROMPT, before.token_ids)
    assert np.abs(stale - before.logp).max() > 1e-3, "the updates changed nothing: no evidence"


def test_behavior_log_probs_are_the_learners(algorithm: HGPO) -> None:
    """The engine's log-probabilities equal those of the learner before its update."""
    played = algorithm.env_runner.play("train", [0, 1], group_size=4, temperature=1.0)
    behavior = [turn.behavior_logp for trajectory in played for turn in trajectory.turns]
    for mine, engine in zip(step_logp(algorithm, played), behavior, strict=True):
        np.testing.assert_allclose(mine, engine, atol=1e-3)


def test_constrained_actions(algorithm: HGPO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constrained actions are admissible, and engine and learner agree on their probabilities."""
    runner, learner = algorithm.env_runner, algorithm.learner_group._learner
    stop = runner.sampling(1.0).stop_token_ids
    monkeypatch.setattr(runner, "grammars", GrammarReader(runner.renderer.tokenizer, stop))
    trajectories = runner.play("train", [0, 1], group_size=2, temperature=1.0)
    for trajectory in trajectories:
        infos = [trajectory.info, *(step.info for step in trajectory.steps)]
        for turn, info in zip(trajectory.turns, infos[:-1], strict=True):
            if "</action>" in turn.completion:
                assert turn.action in info["admissible_actions"]
    columns = token_columns(trajectories)
    assert (columns["restrictions"][..., 0] >= 0).any()
    free = {key: column for key, column in columns.items() if key != "restrictions"}
    rows, gaps = np.arange(len(columns["response_length"])), []
    for scored in (columns, free):
        batch = token_batch(scored, rows, torch.device("cpu"))
        with torch.no_grad():
            logp = learner.policy.forward_train(batch)["logp"]
        gaps.append((logp - batch["behavior_logp"]).abs().max().item())
    assert gaps[0] < 1e-4 < gaps[1]


def test_grammars_permit_only_tokens_of_the_tokenizer(algorithm: HGPO) -> None:
    """Grammars exclude the model's ids that its tokenizer lacks."""
    runner, policy = algorithm.env_runner, algorithm.learner_group._learner.policy
    tokens = len(runner.renderer.tokenizer)
    (trajectory,) = runner.play("train", [0], group_size=1, temperature=1.0)
    turn, actions = trajectory.turns[0], trajectory.info["admissible_actions"]
    embedding = policy.llm.get_input_embeddings().weight  # tied to the output embedding
    with torch.no_grad():
        saved = embedding[tokens].clone()
        embedding[tokens] = 2 * embedding[turn.response_ids[0]]
    try:
        policy.mark_weights_changed()
        weights = sync(algorithm)
        prompts = [
            Prompt(turn.prompt_ids.tolist(), seed, grammar=grammar)
            for grammar in (None, action_grammar(actions))
            for seed in range(8)
        ]
        responses = runner.generate(prompts, runner.sampling(1.0), weights)
    finally:
        with torch.no_grad():
            embedding[tokens] = saved
        policy.mark_weights_changed()
        sync(algorithm)
    largest = [int(response.token_ids.max()) for response in responses]
    assert set(largest[:8]) == {tokens}, "nothing to exclude: the test would be blind"
    assert max(largest[8:]) < tokens


def test_conversations(algorithm: HGPO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts continue their conversation, and the learner scores each conversation in one pass."""
    monkeypatch.setattr(algorithm.env_runner.renderer, "is_conversation", True)
    trajectories = algorithm.env_runner.play("train", [0, 1], group_size=2, temperature=1.0)
    for trajectory in trajectories:
        for before, turn in itertools.pairwise(trajectory.turns):
            whole = [*before.prompt_ids, *before.response_ids]
            continues = turn.prompt_ids[: len(whole)].tolist() == whole
            assert continues != turn.prompt_truncated
    columns = token_columns(trajectories)
    rows = np.arange(len(columns["response_length"]))
    batch = token_batch(columns, rows, torch.device("cpu"))
    assert len(batch["ids"]) < len(rows) / 2
    with torch.no_grad():
        logp = algorithm.learner_group._learner.policy.forward_train(batch)["logp"]
    torch.testing.assert_close(logp, batch["behavior_logp"], rtol=0, atol=1e-3)
    algorithm.learn(trajectories)


def test_update_follows_the_advantages(algorithm: HGPO) -> None:
    """Log-probabilities change in the direction of the advantages.

    Negated advantages reverse the sign of this correlation, shuffled ones remove it.
    """
    played = algorithm.env_runner.play("train", list(range(6)), group_size=8, temperature=1.0)
    scored = score(played, algorithm.config.settings(AlgorithmSettings))
    advantage = scored.advantage
    assert (advantage != 0).sum() > 100, "too few steps with an advantage to judge"
    before = step_logp(algorithm, played)
    algorithm.learn(played)
    after = step_logp(algorithm, played)
    change = np.array([(b - a).mean() for a, b in zip(before, after, strict=True)])
    changed = advantage != 0
    assert np.corrcoef(advantage[changed], change[changed])[0, 1] > 0.3


def test_every_estimator_scores_real_episodes(algorithm: HGPO) -> None:
    """All estimators give finite advantages, some of them nonzero, for both kinds of anchors."""
    played = algorithm.env_runner.play("train", [0, 1, 2], group_size=8, temperature=1.0)
    prompts = [row.response.prompt_ids for row in response_rows(played)]
    told = teacher_columns(token_columns(played), prompts)
    teacher = algorithm.learner_group._learner.token_logp(told)
    for anchor in ("observation", "state"):
        for name in ESTIMATORS:
            settings = AlgorithmSettings(estimator=name, anchor=anchor)
            advantage = score(played, settings, teacher=teacher).advantage
            assert np.isfinite(advantage).all(), (name, anchor)
            assert advantage.any(), (name, anchor)


def test_estimators_with_a_teacher(algorithm: HGPO, monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimators train with the outcome or with the plan of the game file in the prompts."""
    runner = algorithm.env_runner
    for name, iterations, told in (
        ("hcapo", 2, "the episode ended with"),
        ("gear", 1, "can be solved by these actions: "),
        ("sdar", 1, "can be solved by these actions: "),
    ):
        config = algorithm.config.copy(copy_frozen=False).training(estimator=name)
        monkeypatch.setattr(algorithm, "config", config)
        monkeypatch.setattr(runner, "config", config)
        for _ in range(iterations):
            algorithm.train()
        iteration = algorithm.last_iteration
        played, steps = iteration.scored.trajectories, iteration.scored.steps
        assert steps.teacher_nll is not None
        assert np.abs(steps.teacher_nll - steps.nll).mean() > 1e-2, "the text changes nothing"
        assert np.isfinite(iteration.statistics["teacher_gap"])
        assert np.isfinite(iteration.statistics["loss"])
        assert (iteration.scored.token_advantage is None) == (name != "gear")
        assert (iteration.scored.teacher_logp is None) == (name != "sdar")
        prompt = runner.teacher_prompts(played)[0]
        own = played[0].turns[0].prompt_ids
        np.testing.assert_array_equal(prompt[: len(own)], own)  # the pocket model has no roles
        added = runner.renderer.decode(prompt[len(own) :])
        assert told in added
        if name != "hcapo":
            plan = recorded_plan(Path(played[0].info["game"]))
            assert added.endswith("; ".join(plan))


def test_group_members_share_their_task(algorithm: HGPO) -> None:
    """Members of a group start with the same observation and end independently."""
    played = algorithm.env_runner.play("train", [3], group_size=4, temperature=1.0)
    assert [trajectory.member for trajectory in played] == list(range(4))
    assert len({trajectory.group for trajectory in played}) == 1
    assert len({trajectory.turns[0].observation for trajectory in played}) == 1
    assert len({trajectory.info["game"] for trajectory in played}) == 1
    for trajectory in played:
        last = trajectory.steps[-1]
        assert last.terminated or last.truncated
        assert last.reward == (10.0 if trajectory.won else 0.0)
        assert len(trajectory) <= algorithm.config.env_config["max_steps"]


def test_a_prompt_that_the_engine_refuses_fails_alone(algorithm: HGPO) -> None:
    """A prompt longer than the model's context fails; the other prompt of the call succeeds."""
    sampling = Sampling(1.0, max_tokens=16, stop_token_ids=())
    weights = sync(algorithm)
    too_long = Prompt([40] * (algorithm.config.max_prompt_tokens + 4096))
    prompt = Prompt(PROMPT, seed=0)
    (alone,) = algorithm.env_runner.generate([prompt], sampling, weights)
    refused, answer = algorithm.env_runner.generate([too_long, prompt], sampling, weights)
    assert isinstance(refused, RequestFailedError)
    assert "length" in str(refused)
    assert isinstance(alone, Generation)
    assert isinstance(answer, Generation)
    assert answer.token_ids.tolist() == alone.token_ids.tolist()
    assert len(answer.token_ids) == 16 or answer.finish_reason == "stop"


def test_the_same_seeds_draw_the_same_episodes(algorithm: HGPO) -> None:
    """Responses depend on the seeds, not on the number of other episodes that run."""

    def drawn(tasks: list[int], first: int = 0) -> list[list[int]]:
        played = algorithm.env_runner.play("train", tasks, 4, temperature=1.0, first=first)
        return [turn.response_ids.tolist() for t in played[:4] for turn in t.turns]

    once = drawn([2])
    assert drawn([2, 3, 4]) == once
    assert drawn([2], first=1) != once


def test_evaluation_plays_each_held_out_game_once(algorithm: HGPO) -> None:
    """Each split's first games are played once and are in the results."""
    result = algorithm.evaluate()["env_runners"]
    assert result["valid_seen"]["episodes"] == 3
    assert result["all"]["episodes"] == 6
    by_type = result["valid_unseen"]["by_task_type"].values()
    assert sum(row["episodes"] for row in by_type) == 3


def test_an_evaluation_has_no_results_of_earlier_ones(
    algorithm: HGPO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run with other splits reports only these."""
    algorithm.evaluate()
    config = algorithm.config.copy(copy_frozen=False)
    config.eval_splits = ["valid_seen"]
    monkeypatch.setattr(algorithm, "config", config)
    assert algorithm.evaluate()["env_runners"].keys() == {"valid_seen", "all"}


def test_evaluation_warns_of_missing_episodes(
    algorithm: HGPO, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Missing episodes are logged, and the results cover the others."""
    play = algorithm.env_runner.play
    monkeypatch.setattr(
        algorithm.env_runner, "play", lambda *args, **named: play(*args, **named)[1:]
    )
    assert algorithm.evaluate()["env_runners"]["all"]["episodes"] == 4
    assert "valid_unseen: 1 of 3 episodes failed" in caplog.text


def test_checkpoint_restores_weights_and_task_order(algorithm: HGPO, tmp_path: Path) -> None:
    """A restored algorithm has the saved weights and task position, and can train on."""
    algorithm.save_to_path(tmp_path / "state")
    position = algorithm.env_runner.get_state()["task_position"]
    iteration = algorithm.iteration
    saved = {k: v.clone() for k, v in _parameters(algorithm).items()}
    algorithm.train()
    assert any(not torch.equal(saved[k], v) for k, v in _parameters(algorithm).items())
    algorithm.restore_from_path(tmp_path / "state")
    assert algorithm.iteration == iteration
    assert algorithm.env_runner.get_state()["task_position"] == position
    for name, value in _parameters(algorithm).items():
        torch.testing.assert_close(value, saved[name], rtol=0, atol=0)
    assert algorithm.train()["served_learner_logp_gap"] < 1e-4


def _parameters(algorithm: HGPO) -> dict[str, torch.Tensor]:
    return algorithm.learner_group._learner.policy.llm.state_dict()


def test_same_prompt_scores_alike_in_any_batch(algorithm: HGPO) -> None:
    """Padding to longer neighbors does not change a row's log-probabilities."""
    llm = algorithm.learner_group._learner.policy.llm
    short, long = [50, 51, 52, 53], list(range(60, 80))
    ids = torch.zeros(2, 20, dtype=torch.long)
    ids[0, :4], ids[1] = torch.tensor(short), torch.tensor(long)
    position = torch.tensor([2, 3])
    sequence = torch.tensor([0, 0])
    with torch.no_grad():
        padded = token_log_probs(llm, {"ids": ids, "sequence": sequence, "position": position}, 1.0)
        alone = token_log_probs(
            llm, {"ids": ids[:1, :4], "sequence": sequence, "position": position}, 1.0
        )
    torch.testing.assert_close(padded["logp"], alone["logp"])


def test_advantages_are_computed_once(algorithm: HGPO, monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration calls the estimator once, and all consumers use its result."""
    estimator, calls = ESTIMATORS["hgpo"], []

    def counted(*args: Any) -> Any:
        calls.append(args)
        return estimator(*args)

    monkeypatch.setitem(ESTIMATORS, "hgpo", counted)
    result = algorithm.train()
    iteration = algorithm.last_iteration
    row = iteration_metrics(iteration)
    assert len(calls) == 1
    assert len(iteration.scored.advantage) == row["env_steps"]
    reported = result["learners"][DEFAULT_MODULE_ID]
    for name in ("level_fraction_k0", *METRICS):
        if name in reported:  # RLlib and the run directory report the same values
            np.testing.assert_equal(iteration.statistics[name], reported[name], name)
    assert {"loss", "advantage_mean", "oracle_gap_hgpo"} <= reported.keys() & row.keys()
    phases = {"rollout_s", "rollout_wait_s", "advantage_s", "update_s", "sync_s"}
    assert iteration.seconds.keys() == phases


@pytest.mark.slow  # takes minutes; sweeps of this tier run trials too
def test_tuner_runs_a_trial(run_config: RunConfig, cluster: None, tmp_path: Path) -> None:
    """`tune.Tuner(HGPO, param_space=…)` trains with its own policy server."""
    from ray import tune

    config = HGPOConfig.from_run_config(run_config).training(
        weight_alpha=tune.grid_search([0.0]), replica_cpus=0
    )
    results = tune.Tuner(
        HGPO,
        param_space=config,
        run_config=tune.RunConfig(
            name="tuner", storage_path=str(tmp_path), stop={"training_iteration": 1}, verbose=0
        ),
    ).fit()
    assert results.num_errors == 0
    assert results[0].metrics["training_iteration"] == 1
    assert results[0].metrics["served_learner_logp_gap"] < 1e-4
