"""The pocket model's parts: tokenizer, scripted explorer, demonstrations, cloning."""

import functools
import itertools
import random
import re
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from env_wrappers.alfworld.env import ALFWorldEnv
from hgpo_rllib.agent.parsing import find_blocks, find_thought, parse_completion
from hgpo_rllib.config import load_config
from hgpo_rllib.environments import alfworld
from hgpo_rllib.environments.alfworld import GameGenerator, explore
from hgpo_rllib.environments.spec import Example
from hgpo_rllib.models import load_tokenizer
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.warmstart import prepare
from hgpo_rllib.warmstart.cloning import clone, encode, make_model
from hgpo_rllib.warmstart.demonstrations import demonstrate
from hgpo_rllib.warmstart.tokenizer import TAGS, train_tokenizer

MAX_STEPS = 60
AGENT = AgentSettings(prompt="alfworld_compact", memory_length=2)
WORDS = GameGenerator.function_words.split()
TEXTS = [
    "You are in the middle of a room. Looking quickly around you, you see a cabinet 4, a bed 12.",
    "<think>mug: find it</think><action>go to cabinet 4</action>",
    "Actions: take mug 2 from desk 1, move mug 2 to shelf 3, use desklamp 1",
    "  two  blanks\n\nlines\tand tabs ",
    "words it never saw: xylophone, Ünïcödé, 看, 🙂 and {braces} <eos?> 100%",
    "",
]


class RecordingEnv(ALFWorldEnv):
    """An ALFWorld environment that records the actions and the result of an episode."""

    def reset(self, **kwargs):
        """Start an episode and clear the records."""
        self.inadmissible: list[str] = []
        self.actions: list[str] = []
        started = super().reset(**kwargs)
        self.observed = started[0]
        return started

    def step(self, action: str):
        """Execute an action and record it."""
        result = super().step(action)
        self.actions.append(action)
        self.won = result[4]["won"]
        if result[4]["inadmissible"]:
            self.inadmissible.append(action)
        return result


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer trained on the first texts."""
    return train_tokenizer(TEXTS[:3] * 30, WORDS, 340)


@pytest.fixture(scope="module")
def env(generated_games: Path) -> RecordingEnv:
    """Return the train split of the generated games."""
    return RecordingEnv(generated_games, split="train", max_steps=MAX_STEPS)


def play(env: ALFWorldEnv, game: str, noise: float, seed: int) -> list[Example]:
    """Return the demonstration of one game."""
    return demonstrate(env, env.games.index(game), explore, AGENT, noise, random.Random(seed))


def offered(prompt: str) -> list[str]:
    """Return the actions that a compact prompt lists."""
    return prompt.rpartition("Actions: ")[2].partition("\n")[0].split(", ")


class TestTokenizer:
    @pytest.mark.parametrize("text", TEXTS)
    def test_round_trip(self, tokenizer: PreTrainedTokenizerFast, text: str) -> None:
        """Decoding returns any text unchanged, even if it was not in the training texts."""
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text

    def test_saved_and_loaded(self, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
        """A saved tokenizer keeps its ids, end token and template, even beside a Qwen2 config."""
        tokenizer.save_pretrained(tmp_path)
        make_model(tokenizer, 32, 1, 64).config.save_pretrained(tmp_path)
        loaded = load_tokenizer(str(tmp_path))
        for text in TEXTS:
            assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert loaded.eos_token_id == tokenizer.eos_token_id
        assert loaded.chat_template == tokenizer.chat_template
        assert len(loaded) == len(tokenizer)

    def test_the_end_token_is_not_in_text(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """The end token is a special token that no text contains."""
        for text in TEXTS:
            assert tokenizer.eos_token_id not in tokenizer(text)["input_ids"]
        assert tokenizer.decode([tokenizer.eos_token_id], skip_special_tokens=True) == ""

    def test_tags_and_numbers_are_one_token(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """Tags and numbers are single tokens, and numbers are not merged with other text."""
        for tag in TAGS:
            assert len(tokenizer(tag)["input_ids"]) == 1
        assert tokenizer.tokenize("cabinet 4") == ["cabinet", "Ġ4"]
        ids = tokenizer("go to cabinet 4")["input_ids"]
        assert ids[-2:] == tokenizer("cabinet 4")["input_ids"][-2:]


class TestDemonstrations:
    @pytest.mark.parametrize("split", ["train", "valid_seen", "valid_unseen"])
    def test_the_explorer_wins_every_game(self, generated_games: Path, split: str) -> None:
        """The explorer wins each game within the step limit, using admissible actions only."""
        env = RecordingEnv(generated_games, split=split, max_steps=MAX_STEPS)
        for game in env.games:
            for seed in range(3):
                examples = play(env, game, noise=0.0, seed=seed)
                assert env.won, game
                assert env.inadmissible == []
                assert len(examples) == len(env.actions) <= MAX_STEPS

    def test_examples_are_what_was_played(self, env: RecordingEnv) -> None:
        """Responses parse to the played actions; prompts show the step and offer the action."""
        examples = play(env, env.games[0], noise=0.0, seed=0)
        assert [parse_completion(r).action for _, r in examples] == env.actions
        for step, (prompt, response) in enumerate(examples, start=1):
            parsed = parse_completion(response)
            assert parsed.is_valid
            assert f"\nStep {step}\n" in prompt
            assert parsed.action in offered(prompt)

    def test_the_seed_decides(self, env: RecordingEnv) -> None:
        """Equal seeds give equal examples; with noise, other seeds give others."""
        game = env.games[0]
        first, again = (play(env, game, noise=0.3, seed=1) for _ in range(2))
        assert first == again
        assert len({str(play(env, game, noise=0.3, seed=seed)) for seed in range(4)}) > 1

    def test_perturbed_actions_are_played_but_not_learned(self, env: RecordingEnv) -> None:
        """Random actions are played, some without effect, but responses are the explorer's."""
        without_effect = 0
        for game in env.games:
            examples = play(env, game, noise=0.4, seed=0)
            for prompt, response in examples:
                assert parse_completion(response).action in offered(prompt)
            if examples:
                assert env.won
                answers = [parse_completion(r).action for _, r in examples]
                perturbed = {a for a, b in zip(env.actions, answers, strict=True) if a != b}
                assert set(env.inadmissible) <= perturbed
                without_effect += len(env.inadmissible)
        assert without_effect > 0

    def test_strategies(self, generated_games: Path) -> None:
        """The first example is a strategy, which all prompts show and the explorer follows."""
        env = RecordingEnv(generated_games, split="train", max_steps=MAX_STEPS)
        agent = AGENT.model_copy(update={"strategy_prompt": "strategy_compact"})
        followed = 0
        for task, seed in itertools.product(range(len(env.games)), range(5)):
            rng = random.Random(seed)
            (prompt, strategy), *turns = demonstrate(env, task, explore, agent, 0.0, rng)
            assert prompt.endswith("\nStrategy:")
            assert env.observed in prompt
            wanted = re.fullmatch(
                r"(\w+): find it in (\w+)(?: or (\w+))?(, clean it)?, (put it in|use) (\w+)",
                strategy,
            )
            assert wanted
            goal = prompt.partition("\n")[0]
            assert wanted[1] in goal
            assert ("clean" in goal) == (wanted[4] is not None)
            assert all(text.startswith(f"Strategy: {strategy}\n{goal}\n") for text, _ in turns)
            assert env.won
            first = env.actions[0].removeprefix("go to ").split()[0]
            followed += first in wanted.groups()[1:3]
        assert followed == 5 * len(env.games)

    def test_subgoals(self, env: RecordingEnv) -> None:
        """Prompts show the explorer's current thought as sub-goal; responses keep or switch it."""
        agent = AGENT.model_copy(update={"subgoals": True})
        for task, game in enumerate(env.games):
            rng = random.Random(0)
            examples = demonstrate(env, task, explore, agent, 0.0, rng)
            thoughts = [find_thought(response) for _, response in play(env, game, 0.0, 0)]
            current = "None"
            for (prompt, response), thought in zip(examples, thoughts, strict=True):
                assert prompt.startswith(f"Subgoal: {current}\nTask: ")
                blocks = find_blocks(response)
                assert blocks.parsed.is_valid
                assert (blocks.subgoal, blocks.switches) == (thought, thought != current)
                current = blocks.subgoal

    def test_a_lost_episode_teaches_nothing(self, generated_games: Path) -> None:
        """An episode that is lost, here for lack of steps, gives no examples."""
        env = ALFWorldEnv(generated_games, split="train", max_steps=1)
        assert play(env, env.games[0], noise=0.0, seed=0) == []

    def test_a_share_of_the_moves_is_random(self, env: RecordingEnv) -> None:
        """With random moves, the explorer sometimes goes elsewhere than its thought says."""
        form = re.compile(r"<think>\w+: put it in (\w+)</think><action>(go to|open) (\w+) \d+<")
        detours = []
        expert = functools.partial(explore, random_moves=0.5)
        for make_expert in (expert, explore):
            steps = [
                form.match(response)
                for task in range(len(env.games))
                for seed in range(20)
                for _, response in demonstrate(
                    env, task, make_expert, AGENT, 0.0, random.Random(seed)
                )
            ]
            detours.append(sum(step is not None and step[1] != step[3] for step in steps))
        assert detours[0] > 3
        assert detours[1] == 0


def test_what_was_made_with_other_scenes_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new generator version changes the paths of cached games and models."""
    config = load_config(None, [])
    now = prepare.data_path(config), prepare.model_path(config)
    monkeypatch.setattr(alfworld, "GENERATOR_VERSION", 2)
    before = prepare.data_path(config), prepare.model_path(config)
    assert now[0] != before[0]
    assert now[1] != before[1]


def test_the_model_does_not_depend_on_the_number_of_games() -> None:
    """The games of the demonstrations are others than those of the splits."""
    config = load_config(None, [])
    more = load_config(None, ["games.train=300", "games.test=9"])
    smaller = load_config(None, ["games.max_receptacles=20"])
    assert prepare.model_path(more) == prepare.model_path(config) != prepare.model_path(smaller)
    assert prepare.data_path(more) != prepare.data_path(config)


def test_demonstrated_games_are_in_no_split(tmp_path: Path) -> None:
    sizes = ("train=2", "valid_seen=1", "valid_unseen=0", "max_receptacles=16", "rooms=[bathroom]")
    games = [f"games.{size}" for size in (*sizes, "task_types=[pick_and_place_simple]")]
    config = load_config(None, [*games, "warm_start.games=2"])
    made, folder = GameGenerator(), tmp_path / "games"
    shown = made.make_demonstration_data(config, tmp_path / "shown", lambda done, total: None)
    made.make_data(config, folder, lambda done, total: None)
    played = {file.parent.name for file in folder.rglob("game.tw-pddl")}
    assert len(shown) == 2
    assert played
    assert not played & {*shown}


class TestCloning:
    def test_a_response_ends_with_the_end_token(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """A response decodes to its text and the end token; a prompt has no end token."""
        ((prompt, response),) = encode(tokenizer, [("go to bed 12", "<action>look</action>")])
        assert tokenizer.decode(prompt) == "go to bed 12"
        assert response[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(response[:-1]) == "<action>look</action>"

    def test_loss_falls(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """The loss of a tiny model falls, and equal seeds give equal losses."""
        examples = encode(
            tokenizer,
            [(f"Task {n}", f"<think>n</think><action>go to desk {n}</action>") for n in range(6)],
        )
        losses = []
        for _ in range(2):
            torch.manual_seed(0)
            model = make_model(tokenizer, hidden_size=32, layers=1, max_length=64)
            seen: list[tuple[int, float]] = []
            clone(
                model,
                examples,
                optimizer_steps=40,
                batch_size=4,
                lr=3e-2,
                prompt_loss=0.5,
                seed=0,
                on_progress=lambda step, loss, seen=seen: seen.append((step, loss)),
            )
            assert [step for step, _ in seen] == list(range(1, 41))
            means = [loss for _, loss in seen]  # running means over all steps
            losses.append((means[0], 40 * means[-1] - 39 * means[-2]))
            assert not model.training
        (first, last), again = losses
        assert last < first / 3
        assert (first, last) == pytest.approx(again, rel=1e-3)
