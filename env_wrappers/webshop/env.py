"""The Gymnasium environment of WebShop."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from env_wrappers.errors import DataError, check_known
from env_wrappers.text_env import TextEnv
from env_wrappers.webshop import pages
from env_wrappers.webshop.goals import GoalKind, split_goals
from env_wrappers.webshop.records import Goal
from env_wrappers.webshop.session import Session
from env_wrappers.webshop.shop import open_shop

MAX_ACTION = 16_384  # characters


class WebShopEnv(TextEnv):
    """Shopping in text: an action is ``search[words]`` or ``click[text]``, an observation a page.

    See ``TextEnv``; ``reset(options={"goal": i})`` plays goal ``i`` of the split, and ``reset()``
    draws a goal with the original's weights (``goals.GoalList.weights``). "Buy Now" terminates the
    episode. An action that the store does not understand leaves the page unchanged, as does, unlike
    in the original, an action of more than ``MAX_ACTION`` characters.

    In ``info``, admissible_actions are ``search[<your query>]`` if there is a search bar, then
    ``click[...]`` for all clickable texts in the original's order, some without effect; won means
    that the purchase scored exactly 1; task_type is the department of the goal's product; game is
    the name of the goal, such as "test/17". ``info`` also contains task_score (score of the
    purchase, 0 before) and score_details (its breakdown, see ``reward.score``; None before).
    """

    _task_option = "goal"
    _task_values = "an index into the split"

    def __init__(
        self,
        data: str | Path | None = None,
        split: str = "train",
        goals: GoalKind = "synthetic",
        num_products: int | None = None,
        price_seed: int = 0,
        shuffle_seed: int = 233,
        max_steps: int = 15,
        success_reward: float = 10.0,
        reward: Literal["success", "score"] = "success",
        observation_mode: Literal["text", "text_rich", "url"] = "text",
        show_attributes: bool = False,
        nouns: str = "auto",
        filter_goals: Callable[[int, Goal], bool] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Open the store and select the goals.

        Args:
            data: see ``shop.open_shop``, also for ``num_products``, ``price_seed``,
                ``shuffle_seed`` and ``nouns``.
            split: see ``goals.split_goals``.
            goals: "synthetic" goals are made from products, "human" ones written by people.
            max_steps: steps after which an episode is truncated.
            success_reward: reward of a purchase with score 1.
            reward: "success": other purchases earn 0; "score": a purchase earns
                ``success_reward`` times its score.
            observation_mode: format of the observations; see ``pages.MODES``.
            show_attributes: whether products have a sub page that lists their attributes.
            filter_goals: whether to use a goal, given its index and itself; None: use all goals of
                the split.
            render_mode: see ``TextEnv``.

        Raises:
            DataError: the data is unusable, or an argument is unknown or out of range.
        """
        super().__init__(max_steps, success_reward, render_mode)
        check_known("reward", reward, ("success", "score"))
        check_known("observation_mode", observation_mode, pages.MODES)
        self._shop = shop = open_shop(data, goals, num_products, price_seed, shuffle_seed, nouns)
        self._session = Session(shop, show_attributes)
        self._split = split
        self._reward = reward
        self._mode = observation_mode
        indices = split_goals(shop.goals, split)
        self._places: Sequence[int] = range(len(indices))  # of the goals that are used
        if filter_goals is not None:
            used = (filter_goals(index, shop.goals[index]) for index in indices)
            self._places = [place for place, is_used in enumerate(used) if is_used]
        self.num_tasks = len(self._places)
        if not self.num_tasks:
            raise DataError(f"filter_goals leaves no goal in {split}: accept at least one")

    def _draw(self) -> int:
        """Draw by the original's weights of goals."""
        goals = self._shop.goals
        weights = goals.weights[np.asarray(split_goals(goals, self._split))[self._places]]
        return int(self.np_random.choice(self.num_tasks, p=weights / weights.sum()))

    @property
    def task_types(self) -> list[str]:
        """The department of the product of each goal."""
        goals, catalogue = self._shop.goals, self._shop.catalogue
        indices = split_goals(goals, self._split)
        return [catalogue[goals[indices[place]].product].category for place in self._places]

    def _begin(self, seed: int | None, task: Any) -> tuple[str, dict[str, Any]]:
        place = self._places[self._choose(seed, task)]
        self._session.start(split_goals(self._shop.goals, self._split)[place])
        goal = self._session.goal
        return self._session.observation(self._mode), {
            "goal": goal.instruction,
            "task_type": self._shop.catalogue[goal.product].category,
            "game": f"{self._split}/{place}",
        }

    def _act(self, action: str) -> tuple[str, float, bool, bool]:
        score, bought = self._session.step(action if len(action) <= MAX_ACTION else "")
        reward = self._success_reward * (score if self._reward == "score" else float(score == 1))
        return self._session.observation(self._mode), reward, bought, self._session.ignored

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {
            "store": self._shop,
            "reward": self._reward,
            "observation_mode": self._mode,
            "show_attributes": self._session.show_attributes,
        }

    def _save(self) -> Any:
        return copy.copy(self._session)

    def _load(self, episode: Any) -> None:
        self._session = copy.copy(episode)

    def _info(self) -> dict[str, Any]:
        session = self._session
        return {
            "admissible_actions": session.actions,
            "won": session.page.score == 1,
            "state_hash": session.state_hash,
            "task_score": session.page.score,
            "score_details": session.score_details,
        }
