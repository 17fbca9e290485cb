"""Many ALFWorld environments at once, in groups that play the same game."""

import multiprocessing
import signal
import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from env_wrappers.alfworld.env import MAX_ACTION, MAX_OBSERVATION, Episode
from env_wrappers.alfworld.games import choose_game, find_games
from env_wrappers.errors import DataError
from env_wrappers.spaces import AnyText

_SECONDS_TO_END = 5.0  # for a worker; one that waits for orders takes no time
_KNOWN_ERRORS = (DataError, ResetNeeded)  # known to both sides of a pipe

Orders = dict[int, str]  # number of an environment: the game to start, or the action to take
Results = dict[int, tuple[Any, ...]]  # number of an environment: what its reset or step returned
Array = NDArray[Any]


class ALFWorldVectorEnv(VectorEnv[tuple[str, ...], Sequence[str], Array]):
    """``num_envs`` episodes of ALFWorld, in groups of ``group_size`` neighbours.

    Environments ``g * group_size`` to ``(g + 1) * group_size - 1`` are group ``g``. ``reset`` gives
    a whole group one game, chosen as ``ALFWorldEnv`` chooses one:

    - ``seed=s`` plays game ``s + g`` of the sorted list in group ``g`` (counted round and round),
      ``seed=[…]`` names one for each group;
    - ``options={"game": g}`` plays one game in all groups, ``options={"game": […]}`` names one for
      each group;
    - otherwise every group draws a game from a generator of its own, which a seed starts.

    Nothing is reset by itself (``AutoresetMode.DISABLED``): the members of a group end at different
    steps, and the next game is for the whole group. A member whose episode is over rests: its
    action is ignored, its observation and its termination or truncation stay, its reward is 0, and
    ``infos`` has nothing of it (see the masks ``_won`` and so on). To go on with some groups while
    others play, ``options={"reset_mask": mask}`` resets the environments marked in a bool array of
    shape ``(num_envs,)``, which must be whole groups; the others stay as they are.

    Observations are a tuple of ``num_envs`` strings, actions any sequence of as many. An action
    that is no string is refused before any environment has moved.

    The game engine must not be used from threads. ``workers`` processes hold whole groups each and
    work at the same time; with 0, all is done in this process. Results do not depend on it.

    Attributes:
        games: paths of the games, sorted.
        num_tasks: how many there are.
        group_size: members of a group.
        num_groups: how many groups there are.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int,
        data: str | Path | None = None,
        split: str = "train",
        task_types: Sequence[str] | None = None,
        max_steps: int = 50,
        success_reward: float = 10.0,
        group_size: int = 1,
        workers: int = 0,
    ) -> None:
        """Find the games and start the workers; see ``ALFWorldEnv`` for what they share.

        Args:
            workers: processes to start, at most one for each group. They are spawned: a script
                that uses them needs Python's ``if __name__ == "__main__":``.

        Raises:
            DataError: there is no such data, or a number is out of range.
        """
        self._crews: list[_LocalCrew | _RemoteCrew] = []
        self._end = weakref.finalize(self, _end, self._crews)  # at the program's exit, too
        if group_size < 1 or num_envs < group_size or num_envs % group_size:
            raise DataError(f"num_envs={num_envs} is no multiple of group_size={group_size}")
        if workers < 0:
            raise DataError(f"workers must be at least 0, not {workers}")
        Episode(max_steps, success_reward)  # refuses bad rules before a process is started
        self.games = [str(game) for game in find_games(data, split, task_types)]
        self.num_tasks = len(self.games)
        self.num_envs, self.group_size = num_envs, group_size
        self.num_groups = num_envs // group_size
        self.single_observation_space = AnyText(MAX_OBSERVATION)
        self.single_action_space = AnyText(MAX_ACTION)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._draws = [seeding.np_random()[0] for _ in range(self.num_groups)]
        self._observations = [""] * num_envs
        self._playing = np.zeros(num_envs, np.bool_)
        self._terminations = np.zeros(num_envs, np.bool_)
        self._truncations = np.zeros(num_envs, np.bool_)
        crew = _RemoteCrew if workers else _LocalCrew
        for groups in np.array_split(range(self.num_groups), min(workers or 1, self.num_groups)):
            members = [member for group in groups for member in self._members(int(group))]
            self._crews.append(crew(members, max_steps, success_reward))

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Start an episode in all environments, or in those of ``options["reset_mask"]``.

        Raises:
            DataError: a game cannot be loaded or is not there, or the arguments do not fit.
            gymnasium.error.ClosedEnvironmentError: it is closed.
            RuntimeError: a worker process has ended, which closes all.
        """
        self._require_open()
        options = options or {}
        count = self.num_groups
        if isinstance(seed, (int, np.integer)):
            seed = [int(seed) + group for group in range(count)]
        seeds = _one_each("seed", seed, count)
        games = _one_each("game", options.get("game"), count)
        orders: Orders = {}
        for group in self._groups(options.get("reset_mask")):
            if seeds[group] is not None:
                self._draws[group], _ = seeding.np_random(seeds[group])
            game = choose_game(self.games, self._draws[group], seeds[group], games[group])
            orders |= dict.fromkeys(self._members(group), game)
        infos: dict[str, Any] = {}
        for member, (observation, info) in self._carry_out("reset", orders).items():
            self._observations[member] = observation
            self._playing[member] = True
            infos = self._add_info(infos, info, member)
        return tuple(self._observations), infos

    def step(
        self, actions: Sequence[str]
    ) -> tuple[tuple[str, ...], Array, Array, Array, dict[str, Any]]:
        """Play one command in every environment whose episode is running.

        Returns:
            Observations, rewards, terminations and truncations, ``num_envs`` of each, and infos.

        Raises:
            gymnasium.error.ResetNeeded: no episode is running, or one was never started.
            TypeError, ValueError: an action is not a string, or there are not ``num_envs``.
            ClosedEnvironmentError, RuntimeError: as for ``reset``.
        """
        self._require_open()
        orders = self._checked(actions)
        rewards = np.zeros(self.num_envs)
        infos: dict[str, Any] = {}
        for member, result in self._carry_out("step", orders).items():
            self._observations[member], rewards[member], terminated, truncated, info = result
            self._terminations[member], self._truncations[member] = terminated, truncated
            self._playing[member] = not (terminated or truncated)
            infos = self._add_info(infos, info, member)
        ends = self._terminations.copy(), self._truncations.copy()
        return tuple(self._observations), rewards, *ends, infos

    def close_extras(self, **kwargs: Any) -> None:
        """End the episodes and the workers; part of ``close``."""
        self._end()

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("the environments are closed: make others")

    def _carry_out(self, name: str, orders: Orders) -> Results:
        """Let all crews work at the same time, and collect what they did, by environment."""
        # Until all has gone well, these have no episode.
        ordered = list(orders)
        self._playing[ordered] = self._terminations[ordered] = self._truncations[ordered] = False
        try:
            busy = [crew for crew in self._crews if crew.send(name, orders)]
            answers = [crew.receive() for crew in busy]
        except BaseException:
            # An answer still on its way would be taken for the one to the next order.
            self.close()
            raise
        results: Results = {}
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
            results |= answer
        return results

    def _members(self, group: int) -> range:
        return range(group * self.group_size, (group + 1) * self.group_size)

    def _groups(self, mask: Any) -> list[int]:
        """Return the groups that a reset mask marks."""
        if mask is None:
            return list(range(self.num_groups))
        mask = np.asarray(mask)
        if mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            found = f"{mask.dtype} of shape {mask.shape}"
            raise DataError(f"reset_mask must be {self.num_envs} booleans, not {found}")
        marked = mask.reshape(self.num_groups, self.group_size)
        if (marked.any(axis=1) != marked.all(axis=1)).any():
            raise DataError("reset_mask must mark whole groups: their members play the same game")
        return [int(group) for group in np.flatnonzero(marked.any(axis=1))]

    def _checked(self, actions: Sequence[str]) -> Orders:
        """Return the actions of those who play; nobody has moved when one is refused."""
        if isinstance(actions, str) or len(actions) != self.num_envs:
            raise ValueError(f"give {self.num_envs} actions, one for each environment")
        lost = ~(self._playing | self._terminations | self._truncations)
        if lost.any() or not self._playing.any():
            who = f"environments {np.flatnonzero(lost).tolist()}" if lost.any() else "any one"
            raise ResetNeeded(f"no episode is running in {who}: call reset() first")
        orders = {int(member): actions[member] for member in np.flatnonzero(self._playing)}
        for member, action in orders.items():
            if not isinstance(action, str):
                kind = type(action).__name__
                raise TypeError(f"an action is a string, not {kind} (environment {member})")
        return orders


class _LocalCrew:
    """Some environments, played in this process."""

    def __init__(self, members: list[int], max_steps: int, success_reward: float) -> None:
        self._episodes = {member: Episode(max_steps, success_reward) for member in members}
        self._answer: Results | Exception = {}

    def send(self, name: str, orders: Orders) -> bool:
        """Carry out the orders that concern this crew; return whether there are any."""
        mine = [(m, play, orders[m]) for m, play in self._episodes.items() if m in orders]
        try:
            self._answer = {member: getattr(play, name)(order) for member, play, order in mine}
        except Exception as error:
            self._answer = error
        return bool(mine)

    def receive(self) -> Results | Exception:
        """Return the results of the orders, or the error that stopped them."""
        return self._answer

    def end(self) -> None:
        for episode in self._episodes.values():
            episode.end()


class _RemoteCrew:
    """Some environments, played in a process of their own: the same calls through a pipe."""

    def __init__(self, members: list[int], max_steps: int, success_reward: float) -> None:
        # A fork would copy locks held by the threads of whoever trains, and its GPU handles.
        context = multiprocessing.get_context("spawn")
        self._members = members
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, members, max_steps, success_reward)
        self._process = context.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        theirs.close()  # so that the end of either process is seen by the other

    def send(self, name: str, orders: Orders) -> bool:
        mine = {member: orders[member] for member in self._members if member in orders}
        if mine:
            with self._watched():
                self._pipe.send((name, mine))
        return bool(mine)

    def receive(self) -> Results | Exception:
        with self._watched():
            return cast("Results | Exception", self._pipe.recv())

    def end(self) -> None:
        self._pipe.close()
        self._process.join(_SECONDS_TO_END)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:  # a process that failed has no pipe any more
            self._process.join(_SECONDS_TO_END)
            raise RuntimeError(
                f"a worker process ended with exit code {self._process.exitcode}: see what it "
                'wrote (a script that uses workers needs `if __name__ == "__main__":`)'
            ) from error


def _work(pipe: Connection, members: list[int], max_steps: int, success_reward: float) -> None:
    """Be a worker: carry out orders until the other end of the pipe is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this
    crew = _LocalCrew(members, max_steps, success_reward)
    try:
        while True:
            crew.send(*pipe.recv())
            pipe.send(_portable(crew.receive()))
    except (EOFError, OSError):
        return


def _portable(answer: Results | Exception) -> Results | Exception:
    """Return an answer that the parent can read: not every exception can be pickled."""
    if not isinstance(answer, Exception) or isinstance(answer, _KNOWN_ERRORS):
        return answer
    return RuntimeError("in a worker process:\n" + "".join(traceback.format_exception(answer)))


def _end(crews: list[_LocalCrew | _RemoteCrew]) -> None:
    for crew in crews:
        crew.end()


def _one_each(name: str, values: Any, count: int) -> list[Any]:
    """Return one value for each group, from that many or from one for all."""
    if not isinstance(values, (list, tuple, np.ndarray)):
        return [values] * count
    if len(values) != count:
        raise DataError(f"{name} has {len(values)} entries: give one for each of {count} groups")
    return list(values)
