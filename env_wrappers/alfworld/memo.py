"""Cache the repeated work of TextWorld's PDDL engine.

TextWorld parses the same text templates at every step, and translates the same problem four times
per load. This class overrides only those methods and produces the same text, commands and results;
outside ``load`` and ``reset``, TextWorld's module globals are unchanged. The caches are used only
with ALFWorld's grammar, whose commands depend on the entities that they name, and not on the state.
A game with another grammar, which must be trusted, runs on plain TextWorld. The overrides rely on
internals of one TextWorld release, which ``memo_enabled`` checks.
"""

import functools
import json
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import CodeType, SimpleNamespace
from typing import Any

import fast_downward
import textworld
from alfworld.agents.utils.misc import Demangler
from textworld.envs.pddl import PddlEnv, textgen
from textworld.envs.pddl import logic as pddl_logic
from textworld.logic import Rule

from env_wrappers.alfworld.library import drop_debug_information
from env_wrappers.alfworld.translations import translate, translator_arguments
from env_wrappers.alfworld.trust import has_known_domain, has_known_grammar, require_alfworld

SUPPORTED_TEXTWORLD = "1.7.0"
MEMO_VARIABLE = "HGPO_ALFWORLD_MEMO"

# The task line as alfworld writes it; the grammars of games differ only in its goal.
_TASK_RULE = re.compile(r'("task":\s*\[\s*\{\s*"rhs":\s*)("(?:[^"\\]|\\.)*")(?=\s*\}\s*\])')


def memo_enabled() -> bool:
    """Return whether the cache is enabled and supports the installed TextWorld."""
    if os.environ.get(MEMO_VARIABLE, "1") == "0":
        return False
    if textworld.__version__ != SUPPORTED_TEXTWORLD:
        warnings.warn(
            f"textworld {textworld.__version__} is not {SUPPORTED_TEXTWORLD}: "
            "ALFWorld runs without its cache, many times slower",
            stacklevel=2,
        )
        return False
    return True


class CachedPddlEnv(PddlEnv):
    """TextWorld's engine with ALFWorld's entity names ("mug 2").

    Each engine object copies and loads a shared library that is never unloaded (about 1.4 MB), so
    prefer loading another game into an unused one.

    Attributes:
        is_alfworld: whether the loaded game has ALFWorld's grammar and domain.
        memoized: whether translations, parses and command strings are cached.
    """

    def __init__(self) -> None:
        drop_debug_information()
        super().__init__(textworld.EnvInfos(admissible_commands=True))

    def load(self, filename_or_data: Any, trusted: bool = False) -> None:
        """Load a game file's content; unless ``trusted``, it must pass ``require_alfworld``."""
        if not trusted:
            require_alfworld(filename_or_data)
        has_grammar = has_known_grammar(filename_or_data)
        self.is_alfworld = has_grammar and has_known_domain(filename_or_data)
        self.memoized = has_grammar and memo_enabled()
        self._actions: dict[int, Any] = {}
        self._commands: dict[int, str] = {}
        self._texts: dict[Any, str] = {}
        with translator_arguments(), _memoized_logic() if self.memoized else nullcontext():
            super().load(filename_or_data)
        self._unused_state: Any = self._pddl_state
        demangler = Demangler(game_infos=self._entity_infos)
        for info in self._entity_infos.values():
            info.name = demangler.demangle_alfred_name(info.id)

    def reset(self) -> textworld.GameState:
        """Reset the game; see TextWorld."""
        first = _memoized_logic(PddlState=self._first_state) if self.memoized else nullcontext()
        with translator_arguments(), first:
            return super().reset()

    def _first_state(self, *arguments: Any) -> Any:
        """Return the state that loading created, instead of creating it again."""
        state, self._unused_state = self._unused_state, None
        return state or _original_state(*arguments)

    def _gather_infos(self) -> None:
        """Set the fields that a step needs, without the unused ones that TextWorld sets."""
        if not self.memoized:
            super()._gather_infos()
            return
        state, logical = self.state, self._pddl_state
        state["won"] = logical.check_goal()
        state["lost"] = False
        # An operator's id identifies its action and arguments: share one object per id.
        state["_valid_actions"] = [
            self._actions.setdefault(action.id, action)
            for action in logical.all_applicable_actions()
        ]
        commands = [self._command(action) for action in state["_valid_actions"]]
        state["_valid_commands"] = commands
        state["admissible_commands"] = sorted(set(commands))

    def _command(self, action: Any) -> str:
        command = self._commands.get(action.id)
        if command is None:
            # The text does not depend on what the template cannot name, as where the player is.
            named = (v for ph, v in action.mapping.items() if ph.name in action.command_template)
            key = (action.name, *named)
            if key not in self._texts:
                self._texts[key] = self._derive_command(action)
            command = self._commands[action.id] = self._texts[key]
        return command

    def _derive_command(self, action: Any) -> str:
        context = {
            "state": self._pddl_state,
            "variables": {
                ph.name: self._entity_infos[var.name] for ph, var in action.mapping.items()
            },
            "mapping": action.mapping,
            "entity_infos": self._entity_infos,
        }
        return str(self._logic.grammar.derive(action.command_template, context))


# --- text -----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def parse_symbols(text: str) -> tuple[Any, ...]:
    return tuple(textgen._parse_and_convert(text, rule_name="symbols"))


@functools.lru_cache(maxsize=4096)
def parse_query(text: str) -> Rule:
    return Rule.parse_conjunctive_query(text)


@functools.lru_cache(maxsize=4096)
def _compile(expression: str) -> CodeType:
    return compile(expression, "<grammar>", "eval")


Context = dict[str, Any]


class MemoGrammar(textgen.ContextSensitiveGrammar):
    """TextWorld's text grammar, deriving without copies: contexts are never modified in place."""

    def derive(self, start: str, context: Context | None = None) -> str:
        """Return the text derived from ``start`` in the given context."""
        stack = [(symbol, context or {}) for symbol in reversed(parse_symbols(start))]
        derived: list[str] = []
        while stack:
            symbol, current = stack.pop()
            if isinstance(symbol, textgen.TerminalSymbol):
                derived.append(str(symbol))
            else:
                stack += reversed(self._expand(symbol, current))
        return "".join(derived)

    def _expand(self, symbol: Any, context: Context) -> list[tuple[Any, Context]]:
        match symbol:
            case textgen.NonterminalSymbol():
                return [(part, context) for part in self._rule_for(symbol, context).rhs]
            case textgen.ConditionalSymbol():
                contexts = _query(symbol.given, context) if symbol.given else [context]
                return [(symbol.expression, each) for each in contexts]
            case textgen.EvalSymbol():
                # The expression comes from the game file, as in TextWorld: see trust.py.
                value = eval(_compile(symbol.expression), {}, context["variables"])
                return [(textgen.TerminalSymbol(value), context)]
            case _:  # a list
                return _separated(self._expand(symbol.symbol, context), context)

    def _rule_for(self, symbol: Any, context: Context) -> Any:
        return next(r for r in self._rules[str(symbol)] if _applies(r.condition, context))


def _applies(condition: str, context: Context) -> bool:
    if not condition:
        return True
    matches = context["state"].all_assignments(parse_query(condition), context["mapping"])
    return next(iter(matches), None) is not None


def _query(expression: str, context: Context) -> list[Context]:
    """Return one context for each match of the query."""
    contexts = []
    for found in context["state"].all_assignments(parse_query(expression), context["mapping"]):
        mapping = dict(found)
        names = {ph.name: context["entity_infos"][var.name] for ph, var in mapping.items()}
        own = {"variables": context["variables"] | names, "mapping": context["mapping"] | mapping}
        contexts.append(context | own)
    return contexts


def _separated(items: list[tuple[Any, Context]], context: Context) -> list[tuple[Any, Context]]:
    """Format a list as "a, b, and c", or with the grammar's text for an empty list."""
    if not items:
        return [(textgen.NonterminalSymbol("list_empty"), context)]
    joined = [items[0]]
    for position, item in enumerate(items[1:], start=2):
        last = position == len(items)
        name = "list_last_separator" if last else "list_separator"
        joined += [(textgen.NonterminalSymbol(name), context), item]
    return joined


# --- translation and parsing -------------------------------------------------------------------


@contextmanager
def _memoized_logic(**more: Any) -> Iterator[None]:
    """Make TextWorld's loader use the cached functions within the block."""
    patches: dict[str, Any] = {
        "fast_downward": SimpleNamespace(**vars(fast_downward) | {"pddl2sas": _translate}),
        "_parse_and_convert": _parse_document,
        "ContextSensitiveGrammar": MemoGrammar,
    } | more
    saved = {name: getattr(pddl_logic, name) for name in patches}
    vars(pddl_logic).update(patches)
    try:
        yield
    finally:
        vars(pddl_logic).update(saved)


def _translate(
    domain: str, problem: str, verbose: bool = False, optimize: bool = False
) -> tuple[Any, str]:
    """Translate once; the second, optimized form is only for the planner, which is not used."""
    return (None, "") if optimize else translate(domain, problem)


def _parse_document(text: str, rule_name: str) -> tuple[dict[str, Any], MemoGrammar]:
    """Parse a game's logic file once for all games that differ only in their goal."""
    found = _TASK_RULE.search(text)
    assert found is not None, "ALFWorld's grammar has the rule"
    actions, shared = _parse_document_once(_TASK_RULE.sub(r'\1"TASK"', text, count=1))
    grammar = MemoGrammar()
    grammar.update(shared)
    symbols = parse_symbols(json.loads(found.group(2)))
    grammar._rules["task"] = [textgen.ProductionRule(lhs="task", rhs=list(symbols), condition="")]
    return actions, grammar


_original_state = pddl_logic.PddlState
_original_parse = pddl_logic._parse_and_convert


@functools.lru_cache(maxsize=8)
def _parse_document_once(text: str) -> tuple[dict[str, Any], MemoGrammar]:
    return _original_parse(text, rule_name="pddlStart")  # type: ignore[no-any-return]
