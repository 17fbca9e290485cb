"""One engine per game, with as many cheap cursors as there are episodes on it.

The members of a group play the same game, and often the same situations. ``GameEngine`` keeps one
genuine engine for a game; an episode merely holds a ``State``, and every transition is asked of
the engine once. Threads may share engines: one at a time asks TextWorld, whose parsers are global.
"""

import functools
import hashlib
import re
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from textworld import GameState

from env_wrappers.alfworld.memo import Core, changing_predicates
from env_wrappers.errors import DataError
from env_wrappers.files import read_json

ENGINES_KEPT = 512
STATES_KEPT = 2048
"""Remembered states of all engines together: a few kB each."""

_BANNER = "-= Welcome to TextWorld, ALFRED! =-"
_WORD = re.compile(r"\S+")
# What TextWorld raises on a broken file is of every kind, SystemExit included (the translator).
_LOAD_ERRORS = (Exception, SystemExit)

_free_cores: list[Core] = []

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Held while TextWorld works: its parsers, the PDDL translator with its `sys.argv` and `sys.stdout`,
# and what `memo` replaces in TextWorld's modules are the process's. Reentrant: engines are loaded
# in `get_engine`, and one engine lets another forget.
_textworld = threading.RLock()


def _alone(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let one thread at a time call the functions decorated with this."""

    @functools.wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with _textworld:
            return function(*args, **kwargs)

    return wrapper


@dataclass(frozen=True, eq=False, slots=True)
class State:
    """A situation in a game, valid as long as its engine lives.

    Attributes:
        admissible: the commands that do something here, sorted, without "help".
        won: whether the goal is reached.
        state_hash: hex digest of what is true and can change, without what the player has merely
            looked at: equal exactly where two situations of a game are the same.
    """

    admissible: tuple[str, ...]
    won: bool
    state_hash: str
    _snapshot: "_Snapshot" = field(repr=False)


@dataclass(frozen=True, eq=False, slots=True)
class _Snapshot:
    """All that the engine needs to go on from a state."""

    state_id: int
    facts: dict[Any, frozenset[Any]]  # of the signatures that change, no others
    operators: tuple["_Operator", ...]
    commands: list[str]
    actions: list[Any]
    answers: dict[str | None, tuple[State, str]] = field(default_factory=dict)


class _Operator:
    """What applying an operator needs of it (the engine's own record takes 1 kB)."""

    __slots__ = ("id", "nb_effect_atoms")

    def __init__(self, operator: Any) -> None:
        self.id = operator.id
        self.nb_effect_atoms = operator.nb_effect_atoms


class GameEngine:
    """A loaded game: ``reset`` and ``step`` are pure functions of their arguments."""

    @_alone
    def __init__(self, game: str | Path | Mapping[str, Any], trusted: bool = False) -> None:
        """Load a game.

        Args:
            game: a ``game.tw-pddl`` file, or the content of one.
            trusted: whether code in the game's grammar may run; see ``trust``.

        Raises:
            DataError: it cannot be read or understood, or would have to be trusted.
        """
        core = _free_cores.pop() if _free_cores else Core()
        # An engine object goes back into use when no episode can reach this game any more.
        weakref.finalize(self, _free_cores.append, core)
        name = "a game" if isinstance(game, Mapping) else game
        try:
            content = game if isinstance(game, Mapping) else read_content(Path(game))
            core.load(content, trusted)
            first = core.reset()
        except DataError as error:
            raise DataError(f"cannot load {name}: {error}") from None
        except _LOAD_ERRORS as error:
            raise DataError(
                f"cannot load {name}: {type(error).__name__}: {_first_line(error)}; "
                "remove the file or fetch it again"
            ) from error
        self._core = core
        self._logical = core._pddl_state
        self._changing = changing_predicates(self._logical)
        self._read = _predicates_read(self._logical, core)
        # Only loading needs these: megabytes for a kitchen.
        self._logical.task = self._logical.sas = core._game_data = None
        self._operators: dict[tuple[int, int], _Operator] = {}
        self._states: dict[bytes, State] = {}
        self._root = self._state_of(first, None)
        self._root_key = self._digest(self._read)
        _memory.engines.add(self)
        self._intro = first["feedback"].replace(_BANNER, "").strip()

    @property
    def names(self) -> dict[str, str]:
        """The display name ("mug 2") of each entity id of the game's PDDL problem."""
        return {key: info.name.strip() for key, info in self._core._entity_infos.items()}

    def commands(self, plan: Sequence[str]) -> list[str]:
        """Return a plan in the words of the game: "mug 2" where it has the id of an entity."""
        names = self.names
        return [_WORD.sub(lambda word: names.get(word[0].lower(), word[0]), step) for step in plan]

    def reset(self) -> tuple[State, str]:
        """Return the first state and the introduction, which ends with the task."""
        return self._root, self._intro

    def step(self, state: State, command: str) -> tuple[State, str]:
        """Return the state after a command, and the engine's answer to it.

        Any string is allowed: what the engine does not understand changes nothing.
        """
        command = command.strip()
        snapshot = state._snapshot
        # Whatever is not understood gets one and the same answer: remember it once.
        key = command if command in snapshot.commands else None
        answer = snapshot.answers.get(key)
        if answer is None:
            answer = snapshot.answers[key] = self._ask(state, command)
        return answer

    @_alone
    def _ask(self, state: State, command: str) -> tuple[State, str]:
        self._restore(state._snapshot)
        after, _, _ = self._core.step(command)
        return self._state_of(after, state._snapshot), after["feedback"]

    def _restore(self, snapshot: _Snapshot) -> None:
        """Put the engine into a state it was in before."""
        self._core.downward_lib.set_state_id(snapshot.state_id)
        facts = self._logical._facts
        for signature in [s for s in facts if self._can_change(s.name)]:
            if signature not in snapshot.facts:
                del facts[signature]
        for signature, kept in snapshot.facts.items():
            facts[signature] = set(kept)
        self._logical._operators = {operator.id: operator for operator in snapshot.operators}
        self._core.state = GameState(
            _valid_commands=snapshot.commands, _valid_actions=snapshot.actions
        )

    def _state_of(self, raw: Mapping[str, Any], before: _Snapshot | None) -> State:
        """Return the state that the engine is in now; a state seen before is the same object."""
        key = self._digest(self._read)
        state = self._states.get(key)
        if state is None:
            _memory.make_room()
            positive = frozenset(name for name in self._read if not name.startswith("not_"))
            state = self._states[key] = State(
                admissible=tuple(c for c in raw["admissible_commands"] if c != "help"),
                won=bool(raw["won"]),
                state_hash=self._digest(positive).hex(),
                _snapshot=self._snapshot(raw, before),
            )
        return state

    def _snapshot(self, raw: Mapping[str, Any], before: _Snapshot | None) -> _Snapshot:
        facts: dict[Any, frozenset[Any]] = {}
        for signature, current in self._logical._facts.items():
            if self._can_change(signature.name):
                known = before.facts.get(signature) if before else None
                # Most sets are those of the state before: share them.
                facts[signature] = known if known and known == current else frozenset(current)
        return _Snapshot(
            state_id=self._core.downward_lib.get_state_id(),
            facts=facts,
            operators=tuple(map(self._shared, self._logical._operators.values())),
            commands=raw["_valid_commands"],
            actions=raw["_valid_actions"],
        )

    def _shared(self, operator: Any) -> "_Operator":
        """Return one record for all states in which an operator has the same effects."""
        key = (operator.id, operator.nb_effect_atoms)
        if key not in self._operators:
            self._operators[key] = _Operator(operator)
        return self._operators[key]

    @_alone
    def forget(self) -> None:
        """Drop all states but the first; episodes go on from the states that they hold."""
        for state in self._states.values():
            state._snapshot.answers.clear()
        self._states = {self._root_key: self._root}

    @property
    def states_kept(self) -> int:
        """How many states are remembered."""
        return len(self._states)

    def _can_change(self, name: str) -> bool:
        return name.removeprefix("not_") in self._changing

    def _digest(self, names: frozenset[str]) -> bytes:
        facts = self._logical._facts.items()
        lines = sorted(str(f) for sig, group in facts if sig.name in names for f in group)
        return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).digest()


class _Memory:
    """What all engines of this process remember together."""

    def __init__(self) -> None:
        self.engines: weakref.WeakSet[GameEngine] = weakref.WeakSet()
        self._states = 0

    def make_room(self) -> None:
        """Before one more state is remembered: let the fullest engine forget if they are many."""
        self._states += 1
        if self._states > STATES_KEPT:
            by_size = sorted(self.engines, key=lambda engine: engine.states_kept)
            for fullest in by_size[-1:]:  # the first engine's first state meets none
                fullest.forget()
            self._states = 1 + sum(engine.states_kept for engine in by_size)


_memory = _Memory()


def _predicates_read(logical: Any, core: Core) -> frozenset[str]:
    """Return the names of the changing facts that anything to come depends on.

    Those are the ones in preconditions, in the goal or in the text grammar ("not_..." facts, there
    also written "!...", only there). In ALFWorld this leaves out ``checked``, which records what
    was looked at.
    """
    changing = changing_predicates(logical)
    if not core.is_alfworld:  # its texts may read anything
        return changing | {f"not_{name}" for name in changing}
    task, grammar = logical.task, core._game_data["grammar"]
    asked = _predicates_in(task.goal)
    for action in task.actions:
        asked |= _predicates_in(action.precondition)
        asked |= {name for effect in action.effects for name in _predicates_in(effect.condition)}
    for axiom in task.axioms:
        asked |= _predicates_in(axiom.condition)
    positive = {name for name in changing if name in asked or name in grammar}
    negative = {name for name in changing if f"not_{name}" in grammar or f"!{name}" in grammar}
    return frozenset(positive | {f"not_{name}" for name in negative})


def _predicates_in(condition: Any) -> set[str]:
    names = {condition.predicate} if hasattr(condition, "predicate") else set()
    return names.union(*(_predicates_in(part) for part in condition.parts))


@functools.lru_cache(maxsize=ENGINES_KEPT)
def _cached_engine(game: str, trusted: bool) -> GameEngine:
    return GameEngine(game, trusted)


@_alone
def get_engine(game: str | Path, trusted: bool = False) -> GameEngine:
    """Return the engine of a game file, shared by all who ask for it in this process.

    The ``ENGINES_KEPT`` last used ones are kept.

    Raises:
        DataError: as for ``GameEngine``.
    """
    return _cached_engine(str(game), trusted)


def read_content(game: Path) -> Mapping[str, Any]:
    """Return what a game file holds.

    Raises:
        OSError, ValueError, TypeError: it cannot be read, or is no JSON object.
    """
    content = read_json(game)
    if not isinstance(content, Mapping):
        raise TypeError("not a JSON object")
    return content


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]
