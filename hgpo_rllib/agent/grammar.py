"""Grammar of responses whose action is admissible, for engines with structured outputs."""

import json
from collections.abc import Sequence

from hgpo_rllib.agent.parsing import ANY_SEARCH


def action_grammar(admissible_actions: Sequence[str]) -> str | None:
    """Return a structural tag, in the JSON form of xgrammar and vLLM; None if there is no limit.

    It permits any text, and after ``<action>`` only an admissible action, ``</action>`` and the end
    of the response. A response without ``<action>`` is permitted too. Pages with a search bar have
    no grammar, because the words of a search are free.
    """
    if ANY_SEARCH in admissible_actions or not admissible_actions:
        return None
    actions = [{"type": "const_string", "value": action} for action in admissible_actions]
    tag = {
        "type": "tag",
        "begin": "<action>",
        "content": {"type": "or", "elements": actions},
        "end": "</action>",
    }
    tags = {
        "type": "triggered_tags",
        "triggers": ["<action>"],
        "tags": [tag],
        "stop_after_first": True,
    }
    return json.dumps({"type": "structural_tag", "format": tags})
