"""Games of TextArena and GEM as Gymnasium environments, which hgpo/Gymnasium-v0 can play.

PYTHONPATH=examples hgpo train RUN_FILE model.model_path=MODEL \\
  'env.options={name: "text_games:TextArena-v0", arguments: {game: GuessTheNumber-v0}}'

RUN_FILE is that of FrozenLake in docs/bring_your_own_environment.md.
"""

import random

import gymnasium

from env_wrappers.spaces import AnyText


class TextArena(gymnasium.Env):
    """A game of the package textarena for one player."""

    observation_space = action_space = AnyText()

    def __init__(self, game):
        self.game = game

    def reset(self, *, seed=None, options=None):
        import textarena

        random.seed(seed)  # some games draw from Python's global generator
        self.playing = textarena.make(self.game)  # a game that is reset also shows the one before
        self.playing.reset(num_players=1, seed=seed)
        self.shown = ""
        return self.look(), {}

    def look(self):
        """Return what is new: the package repeats all that was said before."""
        before, self.shown = self.shown, self.playing.get_observation()[1]
        return self.shown.removeprefix(before).strip()

    def step(self, action):
        done, _ = self.playing.step(action)
        if not done:
            return self.look(), 0.0, False, False, {}
        rewards, info = self.playing.close()
        return info[0]["reason"], rewards[0], True, False, {}


class Gem(gymnasium.Env):
    r"""A game of the package gem-llm; actions are inside \boxed{}."""

    observation_space = action_space = AnyText()

    def __init__(self, game):
        import gem

        self.playing = gem.make(game)

    def reset(self, *, seed=None, options=None):
        observation, info = self.playing.reset(seed=seed)
        return f"{observation}\n{info.get('suffix', '')}", info

    def step(self, action):
        observation, *result, info = self.playing.step(action)
        return f"{observation}\n{info.get('suffix', '')}", *result, info


gymnasium.register("TextArena-v0", entry_point="text_games:TextArena")
gymnasium.register("Gem-v0", entry_point="text_games:Gem")
