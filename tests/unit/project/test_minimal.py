"""examples/hgpo_minimal.py computes the same values as the full system."""

import ast
import random
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from env_wrappers.alfworld.explorer import Explorer, goal_of
from examples import hgpo_minimal as minimal
from hgpo_rllib.advantages import EstimatorSettings, StepArrays, find_estimator
from hgpo_rllib.agent import Memory, TextRenderer, Turn
from hgpo_rllib.agent.parsing import parse_completion
from hgpo_rllib.config import load_config
from hgpo_rllib.learner.batching import plan_update, token_batch
from hgpo_rllib.learner.losses import token_losses
from hgpo_rllib.learner.module import token_log_probs
from hgpo_rllib.rollout.scoring import score
from hgpo_rllib.rollout.trajectory import Step, Trajectory
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.algorithm import AlgorithmSettings
from hgpo_rllib.settings.learner import LearnerSettings
from hgpo_rllib.warmstart.tokenizer import train_tokenizer
from tests.unit.advantages.advantage_batches import BATCHES
from tests.unit.learner.learner_reference import QWEN, make_columns

SOURCE = Path(minimal.__file__)
RUN_FILE = SOURCE.parents[1] / "tuned_examples" / "alfworld_six_games.yaml"
NO_TOKENS = torch.zeros(0)


@pytest.fixture(scope="module")
def env(generated_games: Path) -> gymnasium.Env:
    """Return the real environment with three small games."""
    return gymnasium.make("hgpo/ALFWorld-v0", data=generated_games, max_steps=8)


@pytest.fixture(scope="module")
def recorded(env: gymnasium.Env) -> list[list[Trajectory]]:
    """Return two groups of eight episodes by scripted players: won and lost, with invalid steps."""
    return [[record(env, game, member) for member in range(8)] for game in (0, 1)]


def record(env: gymnasium.Env, game: int, member: int) -> Trajectory:
    """Play an episode with the explorer, often perturbed; every other member plans the same."""
    observation, info = env.reset(seed=game)
    trajectory = Trajectory(info, [], group=f"{game}", member=member)
    plan, rng = random.Random(member % 2), random.Random(f"{game}/{member}")
    player = Explorer(goal_of(Path(info["game"])), info["admissible_actions"], plan)
    last, ended = None, False
    while not ended:
        offered = info["admissible_actions"]
        _, last = player.act(observation, offered, last)
        if rng.random() < 0.2:
            last = player.perturb(offered, rng)
        seen = observation
        observation, reward, terminated, truncated, info = env.step(last)
        ended = terminated or truncated
        turn = Turn(seen, last, is_valid=rng.random() < 0.8)
        trajectory.steps.append(
            Step(turn, observation, float(reward), terminated, truncated, info, 0.0)
        )
    return trajectory


def minimal_trajectory(trajectory: Trajectory) -> minimal.Trajectory:
    """Return the same episode in the example's format."""
    return [
        minimal.Step(t.observation, t.action, t.is_valid, [], [], NO_TOKENS, step.reward)
        for t, step in zip(trajectory.turns, trajectory.steps, strict=True)
    ]


def minimal_scores(
    recorded: list[list[Trajectory]], settings: AlgorithmSettings
) -> list[minimal.Step]:
    """Return all recorded steps with the example's returns and advantages."""
    groups = [[minimal_trajectory(trajectory) for trajectory in group] for group in recorded]
    for group in groups:
        for trajectory in group:
            minimal.set_returns(trajectory, settings.gamma, settings.invalid_penalty)
        minimal.set_advantages(group, settings.context_length, settings.weight_alpha)
    return [step for group in groups for trajectory in group for step in trajectory]


class TestFile:
    def test_it_can_be_read_in_one_sitting(self) -> None:
        """The example has at most 350 lines."""
        assert len(SOURCE.read_text().splitlines()) <= 350

    def test_the_method_is_in_the_file(self) -> None:
        """The example imports only environments, configs and the warm start from this project."""
        nodes = list(ast.walk(ast.parse(SOURCE.read_text())))
        modules = {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
        modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        others = {m for m in modules if m.partition(".")[0] not in sys.stdlib_module_names}
        assert others == {
            "gymnasium",
            "numpy",
            "torch",
            "torch.optim.lr_scheduler",
            "transformers",
            "env_wrappers",
            "hgpo_rllib.config",
            "hgpo_rllib.warmstart",
        }

    def test_settings(self) -> None:
        """The example's settings equal those of the same experiment in the full system."""
        config = load_config(RUN_FILE, [])
        expected = {
            "games": config.games.train,
            "group_size": config.rollout.group_size,
            "max_steps": config.env.max_steps,
            "max_prompt_tokens": config.agent.max_prompt_tokens,
            "max_response_tokens": config.agent.max_response_tokens,
            "context_length": config.algorithm.context_length,
            "weight_alpha": config.algorithm.weight_alpha,
            "gamma": config.algorithm.gamma,
            "invalid_penalty": config.algorithm.invalid_penalty,
            "lr": config.learner.lr,
            "lr_warmup_steps": config.learner.lr_warmup_steps,
            "adam_betas": config.learner.adam_betas,
            "grad_clip": config.learner.grad_clip,
            "minibatch_size": config.learner.minibatch_size,
            "clip": config.learner.clip_low,
            "kl_coeff": config.learner.kl_coeff,
        }
        assert asdict(minimal.Settings()) == expected
        assert config.rollout.groups_per_iteration == config.games.train
        assert config.agent.memory_length == config.algorithm.context_length
        assert config.learner.clip_high == config.learner.clip_low
        assert config.rollout.temperature == 1.0
        # Left at the default of torch.optim.AdamW:
        assert (
            config.learner.weight_decay
            == torch.optim.AdamW([torch.zeros(1)]).defaults["weight_decay"]
        )


class TestAgent:
    @pytest.mark.parametrize("memory_length", [0, 1, 2, 5])
    def test_prompts(self, recorded: list[list[Trajectory]], memory_length: int) -> None:
        """The prompts of every recorded step equal the full system's."""
        agent = TextRenderer(AgentSettings(prompt="alfworld_compact", memory_length=memory_length))
        for trajectory in (t for group in recorded for t in group):
            memory = Memory()
            past = minimal_trajectory(trajectory)
            infos = [trajectory.info, *(step.info for step in trajectory.steps)]
            for i, (step, info) in enumerate(zip(past, infos, strict=False)):
                offered, turns = info["admissible_actions"], memory.last(memory_length)
                expected = agent.message(info["goal"], step.observation, offered, i, turns)
                written = minimal.write_prompt(info, step.observation, past[:i], memory_length)
                assert written == expected
                memory.add(step.observation, step.action)

    @given(
        st.lists(
            st.sampled_from(
                ["<think>", "</think>", "<action>", "</action>", "<ACTION>", " Go To ", "\n", "杯"]
            ),
            max_size=8,
        )
    )
    def test_parsing(self, parts: list[str]) -> None:
        """Responses with tags in any order are parsed as in the full system."""
        response = "".join(parts)
        expected = parse_completion(response)
        assert minimal.parse_response(response) == (expected.action, expected.is_valid)


class TestAdvantages:
    @pytest.mark.parametrize("context_length", range(5))
    @pytest.mark.parametrize("weight_alpha", [0.0, 0.5, 1.0, 2.0])
    def test_recorded_episodes(
        self, recorded: list[list[Trajectory]], context_length: int, weight_alpha: float
    ) -> None:
        """Returns and advantages of recorded episodes equal the full system's."""
        settings = AlgorithmSettings(context_length=context_length, weight_alpha=weight_alpha)
        scored = score([trajectory for group in recorded for trajectory in group], settings)
        steps = minimal_scores(recorded, settings)
        returns = [step.step_return for step in steps]
        np.testing.assert_allclose(returns, scored.steps.step_return, rtol=0, atol=1e-9)
        advantages = [step.advantage for step in steps]
        np.testing.assert_allclose(advantages, scored.advantage, rtol=0, atol=1e-9)

    def test_the_recorded_episodes_say_something(self, recorded: list[list[Trajectory]]) -> None:
        """Every depth and weight changes the advantages, so that comparing them is meaningful."""
        for group in recorded:
            won = [trajectory.steps[-1].terminated for trajectory in group]
            assert 0 < sum(won) < len(won)
        results = set()
        for context_length, weight_alpha in [
            (0, 1),
            (1, 1),
            (2, 1),
            (3, 1),
            (4, 1),
            (2, 0),
            (2, 2),
        ]:
            settings = AlgorithmSettings(context_length=context_length, weight_alpha=weight_alpha)
            steps = minimal_scores(recorded, settings)
            results.add(tuple(round(step.advantage, 6) for step in steps))
        assert len(results) == 7

    @pytest.mark.parametrize("returns", [[0.1, 0.2, 0.3], [0.1, 0.1, 0.1]])
    def test_rounding_is_no_advantage(self, returns: list[float]) -> None:
        """A return that equals the mean up to rounding has the advantage 0."""
        group = [[minimal.Step("", "", True, [], [], NO_TOKENS, step_return=r)] for r in returns]
        minimal.set_advantages(group, context_length=0, weight_alpha=1.0)
        assert group[1][0].advantage == 0

    @given(BATCHES, st.integers(0, 4), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
    def test_random_batches(
        self, batch: list[Any], context_length: int, weight_alpha: float
    ) -> None:
        """Advantages equal the estimator's on random batches with few states and rounded means."""
        group = [
            [
                minimal.Step(str(state), "", True, [], [], NO_TOKENS, step_return=value * 0.4)
                for state, value in zip(states, returns, strict=True)
            ]
            for _, states, returns in batch
        ]
        minimal.set_advantages(group, context_length, weight_alpha)
        lengths = [len(trajectory) for trajectory in group]
        steps = StepArrays.from_columns(
            task=[0] * sum(lengths),
            trajectory=np.repeat(np.arange(len(group)), lengths),
            time=np.concatenate([np.arange(length) for length in lengths]),
            anchor=[step.observation for trajectory in group for step in trajectory],
            step_return=[step.step_return for trajectory in group for step in trajectory],
        )
        settings = EstimatorSettings(context_length=context_length, weight_alpha=weight_alpha)
        expected = find_estimator("hgpo")(steps, settings)
        advantages = [step.advantage for trajectory in group for step in trajectory]
        np.testing.assert_allclose(advantages, expected, rtol=0, atol=1e-9)


def tiny_model(seed: int) -> PreTrainedModel:
    """Return a random model in float64."""
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(QWEN).double().eval()


def system_loss(
    model: PreTrainedModel,
    reference: PreTrainedModel,
    columns: dict[str, Tensor],
    settings: LearnerSettings,
) -> tuple[Tensor, Tensor]:
    """Return the loss and KL of a mini-batch as the learner computes them."""
    (part,) = plan_update(columns, settings, np.random.default_rng(0))
    tokens = token_batch(columns, part.trained, torch.device("cpu"))
    weight = torch.zeros(len(columns["advantage"]), dtype=torch.float64)
    weight[torch.from_numpy(part.trained)] = torch.from_numpy(part.weight)
    tokens["old_logp"] = tokens["behavior_logp"]
    with torch.no_grad():
        tokens["reference_logp"] = token_log_probs(reference, tokens, 1.0)["logp"]
    outputs = token_log_probs(model, tokens, 1.0)
    losses = token_losses(settings, tokens, outputs)
    return (losses.loss * weight[tokens["row"]]).sum(), losses.statistics["kl"].mean()


def minimal_steps(columns: dict[str, Tensor]) -> list[minimal.Step]:
    """Return the same steps in the example's format."""
    steps = []
    for i, advantage in enumerate(columns["advantage"].tolist()):
        prompt = columns["prompt_ids"][i, : columns["prompt_length"][i]].tolist()
        response = columns["response_ids"][i, : columns["response_length"][i]].tolist()
        old_logp = columns["behavior_logp"][i, : len(response)]
        steps.append(minimal.Step("", "", True, prompt, response, old_logp, advantage=advantage))
    return steps


class TestLoss:
    @pytest.mark.parametrize("noise", [0.0, 0.4, 30.0])
    def test_loss_and_gradient(self, noise: float) -> None:
        """Loss and gradient equal the learner's; more noise clips or clamps more ratios."""
        model, reference = tiny_model(0), tiny_model(1)
        columns = make_columns(model, steps=24, noise=noise)
        settings = LearnerSettings(minibatch_size=24)
        loss, kl = minimal.hgpo_loss(
            model, reference, minimal_steps(columns), minimal.Settings(kl_coeff=settings.kl_coeff)
        )
        expected_loss, expected_kl = system_loss(model, reference, columns, settings)
        torch.testing.assert_close(loss, expected_loss, rtol=0, atol=1e-10)
        torch.testing.assert_close(kl, expected_kl, rtol=0, atol=1e-10)
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        expected = torch.autograd.grad(expected_loss, parameters)
        torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-9)
        assert any(gradient.abs().max() > 1e-4 for gradient in gradients)


class TestPlaying:
    def test_log_probabilities_of_samples(self) -> None:
        """`sample` returns the log-probabilities that the update computes for any prompt."""
        model = tiny_model(0)
        model.generation_config.eos_token_id = model.generation_config.pad_token_id = 7
        prompts = [[3, 1, 4], [1], [5, 9, 2, 6, 5, 3], [5, 8]] * 8
        torch.manual_seed(0)
        sampled = minimal.sample(model, prompts, 12)
        steps = [
            minimal.Step("", "", True, prompt, response, logp)
            for prompt, (response, logp) in zip(prompts, sampled, strict=True)
        ]
        logp = minimal.response_logp(model, steps)
        old_logp = torch.cat([step.old_logp for step in steps]).double()
        torch.testing.assert_close(logp, old_logp, rtol=0, atol=1e-4)
        lengths = [len(step.response) for step in steps]
        assert len(set(lengths)) > 2
        for step in steps:
            assert 7 not in step.response[:-1]
            assert step.response[-1] == 7 or len(step.response) == 12

    def test_any_token_can_be_sampled(self) -> None:
        """Sampling is not limited to the 50 most likely tokens, the default of transformers."""
        torch.manual_seed(0)
        config = Qwen2Config(**QWEN.to_dict() | {"vocab_size": 200, "initializer_range": 1e-3})
        model = Qwen2ForCausalLM(config).eval()
        model.generation_config.eos_token_id = model.generation_config.pad_token_id = 0
        firsts = {response[0] for response, _ in minimal.sample(model, [[1]] * 1000, 1)}
        assert len(firsts) > 150

    def test_groups(self, generated_games: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Members of a group play the same game, with the actions parsed from the responses."""
        texts = ["<think>why</think><action>look</action>", "Actions: go to desk 1, open drawer 2"]
        tokenizer = train_tokenizer(texts, ["go", "to"], 300)
        end = tokenizer.eos_token_id
        monkeypatch.setattr(
            minimal, "sample", scripted_sample(tokenizer.encode, tokenizer.decode, end)
        )
        s = minimal.Settings(games=2, group_size=3, max_steps=4)
        envs = [
            gymnasium.make("hgpo/ALFWorld-v0", data=generated_games, max_steps=s.max_steps)
            for _ in range(6)
        ]
        groups = minimal.play(None, tokenizer, envs, s)
        firsts = [[trajectory[0].observation for trajectory in group] for group in groups]
        assert [len(group) for group in groups] == [3, 3]
        assert all(len(set(first)) == 1 for first in firsts)
        assert firsts[0] != firsts[1]
        for trajectory in (t for group in groups for t in group):
            assert len(trajectory) == 4
            assert [step.valid for step in trajectory] == [True, True, False, False]
            assert trajectory[0].action == "look"
            assert trajectory[1].action == "inventory"
            assert trajectory[2].observation.startswith("You are")
            assert [len(step.response) == len(step.old_logp) for step in trajectory] == [True] * 4
            assert all(len(step.prompt) <= s.max_prompt_tokens for step in trajectory)


def scripted_sample(
    encode: Callable[..., list[int]], decode: Callable[..., str], end: int
) -> Callable[..., list[tuple[list[int], Tensor]]]:
    """Return a stand-in for `sample` whose response depends on the prompt's step number."""
    texts = {
        "1": "<think>why</think><action>Look</action>",
        "2": "<think>why</think><action> inventory </action>",
        "3": "look",  # without tags
    }

    def sample(model: Any, prompts: list[list[int]], limit: int) -> list[tuple[list[int], Tensor]]:
        answers = []
        for prompt in prompts:
            turn = decode(prompt).partition("Step ")[2][:1]
            cut_off = texts.get(turn) is None
            ids = encode(texts.get(turn, texts["1"]), add_special_tokens=False)
            ids = ids if cut_off else [*ids, end]
            answers.append((ids, torch.zeros(len(ids))))
        return answers

    return sample
