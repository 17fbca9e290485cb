"""Game engines shared by many episodes.

Members of a group play the same game and often reach the same states. ``GameEngine`` keeps one
TextWorld engine per game, an episode holds only a ``State``, and each transition is computed once.
Threads may share engines; a lock serializes calls to TextWorld, whose parsers are global.
"""

import functools
import hashlib
import re
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from textworld import GameState

from env_wrappers.alfworld.memo import CachedPddlEnv
from env_wrappers.errors import DataError, describe_error
from env_wrappers.files import read_json

ENGINES_KEPT = 512
STATES_KEPT = 2048
"""Maximum number of cached states of all engines, a few kB each."""

_BANNER = "-= Welcome to TextWorld, ALFRED! =-"
_WORD = re.compile(r"\S+")

_free_cores: list[CachedPddlEnv] = []

# Held while TextWorld runs: its parsers, the PDDL translator's use of `sys.argv` and `sys.stdout`,
# and the functions that `memo` replaces in TextWorld's modules are global to the process.
# Reentrant, because `get_engine` loads engines, and one engine can make another call `forget`.
_textworld = threading.RLock()


class _Operator(NamedTuple):
    """The attributes needed to apply an operator (the engine's own object takes 1 kB)."""

    id: int
    nb_effect_atoms: int


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class State:
    """A state of a game, valid while its engine exists.

    The private attributes are what restores the engine to the state, and the answers given in it.

    Attributes:
        admissible: the commands that have an effect here, sorted, without "help".
        won: whether the goal is reached.
        state_hash: hex digest of the facts that can change, except what the player has examined;
            equal if and only if two states of a game are the same.
    """

    admissible: tuple[str, ...]
    won: bool
    state_hash: str
    _id: int
    _facts: dict[Any, frozenset[Any]]  # only those whose signature can change
    _operators: tuple[_Operator, ...]
    _commands: list[str]
    _actions: list[Any]
    _answers: dict[str | None, tuple["State", str]] = field(default_factory=dict)


class GameEngine:
    """A loaded game; ``reset`` and ``step`` are pure functions of their arguments."""

    def __init__(self, game: str | Path | Mapping[str, Any], trusted: bool = False) -> None:
        """Load a game.

        Args:
            game: path of a ``game.tw-pddl`` file, or its content.
            trusted: whether code in the game's grammar may run; see ``trust``.

        Raises:
            DataError: the game cannot be read or parsed, or requires ``trusted``.
        """
        with _textworld:
            core = _free_cores.pop() if _free_cores else CachedPddlEnv()
            # The core can be reused once no episode references this engine.
            weakref.finalize(self, _free_cores.append, core)
            name = "a game" if isinstance(game, Mapping) else game
            try:
                content = game if isinstance(game, Mapping) else read_content(Path(game))
                core.load(content, trusted)
                first = core.reset()
            except DataError as error:
                raise DataError(f"cannot load {name}: {error}") from None
            # On a broken file TextWorld raises any exception, and its translator raises SystemExit.
            except (Exception, SystemExit) as error:
                first_line = str(error).strip().partition("\n")[0]
                raise DataError(
                    f"cannot load {name}: {type(error).__name__}: {first_line}; "
                    "remove the file or fetch it again"
                ) from error
            self._core = core
            self._logical = core._pddl_state
            self._changing = frozenset(
                effect.literal.predicate
                for action in self._logical.task.actions
                for effect in action.effects
            )
            self._read = _predicates_read(core, self._changing)
            # Only needed for loading; megabytes for a kitchen.
            self._logical.task = self._logical.sas = core._game_data = None
            self._operators: dict[_Operator, _Operator] = {}
            self._states: dict[bytes, State] = {}
            self._root = self._state_of(first, None)
            _engines.add(self)
            self._intro = first["feedback"].replace(_BANNER, "").strip()

    @property
    def names(self) -> dict[str, str]:
        """Display name ("mug 2") of each entity id in the game's PDDL problem."""
        return {key: info.name.strip() for key, info in self._core._entity_infos.items()}

    def commands(self, plan: Sequence[str]) -> list[str]:
        """Return a plan with entity ids replaced by display names, such as "mug 2"."""
        names = self.names
        return [_WORD.sub(lambda word: names.get(word[0].lower(), word[0]), step) for step in plan]

    def reset(self) -> tuple[State, str]:
        """Return the initial state and the introduction, which ends with the task."""
        return self._root, self._intro

    def step(self, state: State, command: str) -> tuple[State, str]:
        """Return the next state and the engine's feedback.

        Any string is allowed: a command that the engine does not understand changes nothing.
        """
        command = command.strip()
        # All commands that are not understood get the same answer: cache it once, under None.
        key = command if command in state._commands else None
        answer = state._answers.get(key)
        if answer is None:
            answer = state._answers[key] = self._ask(state, command)
        return answer

    def _ask(self, state: State, command: str) -> tuple[State, str]:
        with _textworld:
            self._restore(state)
            try:
                after, _, _ = self._core.step(command)
            except Exception as error:  # TextWorld only notices a missing text in the grammar here
                raise DataError(
                    f"cannot answer {command[:80]!r}: {describe_error(error)}; "
                    "remove the file or fetch it again"
                ) from error
            return self._state_of(after, state), after["feedback"]

    def _restore(self, state: State) -> None:
        """Restore the engine to a previous state."""
        self._core.downward_lib.set_state_id(state._id)
        facts = self._logical._facts
        for signature in [s for s in facts if self._can_change(s.name)]:
            if signature not in state._facts:
                del facts[signature]
        for signature, kept in state._facts.items():
            facts[signature] = set(kept)
        self._logical._operators = {operator.id: operator for operator in state._operators}
        self._core.state = GameState(_valid_commands=state._commands, _valid_actions=state._actions)

    def _state_of(self, raw: Mapping[str, Any], before: State | None) -> State:
        """Return the engine's current state; a state seen before is the same object."""
        key = self._digest(self._read)
        state = self._states.get(key)
        if state is None:
            _evict_states()
            positive = frozenset(name for name in self._read if not name.startswith("not_"))
            operators = (
                _Operator(o.id, o.nb_effect_atoms) for o in self._logical._operators.values()
            )
            state = self._states[key] = State(
                admissible=tuple(c for c in raw["admissible_commands"] if c != "help"),
                won=bool(raw["won"]),
                state_hash=self._digest(positive).hex(),
                _id=self._core.downward_lib.get_state_id(),
                _facts=self._changing_facts(before._facts if before else {}),
                _operators=tuple(self._operators.setdefault(o, o) for o in operators),  # shared
                _commands=raw["_valid_commands"],
                _actions=raw["_valid_actions"],
            )
        return state

    def _changing_facts(self, before: Mapping[Any, frozenset[Any]]) -> dict[Any, frozenset[Any]]:
        """Return the current facts, sharing sets that are as in the previous state: most are."""
        facts = {}
        for signature, current in self._logical._facts.items():
            if self._can_change(signature.name):
                known = before.get(signature)
                facts[signature] = known if known and known == current else frozenset(current)
        return facts

    def forget(self) -> None:
        """Drop all cached states but the first; episodes keep the states that they hold."""
        with _textworld:
            for state in self._states.values():
                state._answers.clear()
            self._states = {key: s for key, s in self._states.items() if s is self._root}

    def _can_change(self, name: str) -> bool:
        return name.removeprefix("not_") in self._changing

    def _digest(self, names: frozenset[str]) -> bytes:
        facts = self._logical._facts.items()
        lines = sorted(str(f) for sig, group in facts if sig.name in names for f in group)
        return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).digest()


_engines: weakref.WeakSet[GameEngine] = weakref.WeakSet()


def _evict_states() -> None:
    """If all engines together cache `STATES_KEPT` states, clear those of the one with the most."""
    kept = {engine: len(engine._states) for engine in _engines}
    if sum(kept.values()) >= STATES_KEPT:
        max(kept, key=kept.__getitem__).forget()


def _predicates_read(core: CachedPddlEnv, changing: frozenset[str]) -> frozenset[str]:
    """Return the names of the facts that can change and affect future steps.

    In ALFWorld, these are all but ``checked``, which records what the player has examined. Of the
    "not_..." facts, they are those in the text grammar, since only that reads them.
    """
    negative = {f"not_{name}" for name in changing}
    if not core.is_alfworld:  # its texts may read any fact
        return changing | negative
    read = {name for name in negative if name in core._game_data["grammar"]}
    return changing - {"checked"} | read


@functools.lru_cache(maxsize=ENGINES_KEPT)
def _cached_engine(game: str, trusted: bool) -> GameEngine:
    return GameEngine(game, trusted)


def get_engine(game: str | Path, trusted: bool = False) -> GameEngine:
    """Return the engine of a game file, shared within this process.

    The ``ENGINES_KEPT`` most recently used engines are cached.

    Raises:
        DataError: see ``GameEngine``.
    """
    with _textworld:
        return _cached_engine(str(Path(game).absolute()), trusted)


def read_content(game: Path) -> Mapping[str, Any]:
    """Return the content of a game file.

    Raises:
        OSError, ValueError, TypeError: the file cannot be read, or is not a JSON object.
    """
    content = read_json(game)
    if not isinstance(content, Mapping):
        raise TypeError("not a JSON object")
    return content
