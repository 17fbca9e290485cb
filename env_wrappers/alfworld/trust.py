"""Refuse game files that could run code.

TextWorld evaluates every ``{...}`` in a game's grammar as a Python expression, and its planner is
written in C. All ALFWorld games share one grammar and one PDDL domain; they differ only in the
task description and the PDDL problem. The shared parts must therefore be known, and the others must
be plain data: no braces, which TextWorld would evaluate or format, and no names that overflow the
planner's buffers.
"""

import functools
import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from env_wrappers.errors import DataError

REMEDY = (
    "fetch the game again, or, if you trust who made it, allow it with env.options.trusted=true "
    "(--trusted in `hgpo data check`)"
)

# SHA-256 digests for the game files of ALFWorld's 0.4 releases. They differ from the files of the
# installed package in "help" and in one comment. The grammar is hashed with UNKNOWN GOAL as its
# task, the domain without comments and line breaks.
_RELEASED_GRAMMAR = "cce0702cd250cc6af6c3ea047a21f6c4c1c8d29a1739efefb5221ef4c3dcac57"
_RELEASED_DOMAIN = "9549a55d7ecd967fcbd3f32645c16b56b27a823bc72f2ab7c7e43660f794a063"

# The task in a grammar rule; without backslashes, JSON parsing does not change the text.
_TASK = re.compile(r'"Your task is to: [^"\\{}\[\]#]*"')
_UNKNOWN_TASK = '"Your task is to: UNKNOWN GOAL."'
_PDDL_COMMENT = re.compile(r";.*")
_NOT_IN_PDDL = re.compile(r"[^A-Za-z0-9_\s():?=.-]")
_LONGEST_WORD = 128  # 87 in ALFWorld; the planner's buffers hold 1,024 bytes per action


def require_alfworld(game: Mapping[str, Any]) -> None:
    """Raise an error unless TextWorld can evaluate the game's texts without running foreign code.

    Args:
        game: the content of a game file.

    Raises:
        DataError: the grammar or domain is not ALFWorld's, or the problem is not plain data.
    """
    if not has_known_grammar(game):
        raise DataError(f"its grammar is not ALFWorld's, and could run code: {REMEDY}")
    if not has_known_domain(game):
        raise DataError(f"its PDDL domain is not ALFWorld's: {REMEDY}")
    problem = game["pddl_problem"]
    if _NOT_IN_PDDL.search(problem) or max(map(len, problem.split()), default=0) > _LONGEST_WORD:
        raise DataError(f"its PDDL problem has names that could not be ALFWorld's: {REMEDY}")


def has_known_grammar(game: Mapping[str, Any]) -> bool:
    """Return whether a game has ALFWorld's grammar, with any task description."""
    installed = _grammar_digest(alfworld_data("alfred.twl2"))
    return _grammar_digest(game["grammar"]) in {_RELEASED_GRAMMAR, installed}


def has_known_domain(game: Mapping[str, Any]) -> bool:
    """Return whether a game has ALFWorld's PDDL domain, apart from comments and layout."""
    installed = _domain_digest(alfworld_data("alfred.pddl"))
    return _domain_digest(game["pddl_domain"]) in {_RELEASED_DOMAIN, installed}


@functools.cache
def alfworld_data(name: str) -> str:
    """Return the text of a file in the alfworld package."""
    return (resources.files("alfworld") / "data" / name).read_text(encoding="utf-8")


@functools.lru_cache(maxsize=8)
def _grammar_digest(grammar: str) -> str:
    return _digest(_TASK.sub(_UNKNOWN_TASK, grammar))


@functools.lru_cache(maxsize=8)
def _domain_digest(domain: str) -> str:
    return _digest(" ".join(_PDDL_COMMENT.sub("", domain).split()))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
