"""TextWorld's text grammar, without copying contexts and with each text parsed once."""

import functools
from types import CodeType
from typing import Any

from textworld.envs.pddl import textgen
from textworld.logic import Rule


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
            case textgen.ListSymbol():
                return _separated(self._expand(symbol.symbol, context), context)
        # The same error as in TextWorld's derive(): its grammar has no other symbols.
        raise NotImplementedError(f"Unknown symbol: {type(symbol)}")

    def _rule_for(self, symbol: Any, context: Context) -> Any:
        rules = self._rules.get(str(symbol))
        if not rules:
            raise textgen.CSGUnknownSymbolError(symbol)
        return next(rule for rule in rules if _applies(rule.condition, context))


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
        contexts.append(
            context
            | {
                "variables": context["variables"] | names,
                "mapping": context["mapping"] | mapping,
            }
        )
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
