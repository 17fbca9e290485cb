"""Tokens that a grammar permitted the engine to sample, for the learner's probabilities."""

from collections.abc import Sequence

import numpy as np
import xgrammar
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

CACHE_BYTES = 64 * 2**20  # of compiled grammars: members of a group often see the same page


class GrammarReader:
    """Follows responses through their grammars, with the library that vLLM samples with."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_token_ids: Sequence[int]):
        """`stop_token_ids`: tokens that end a response, as in `Sampling`."""
        vocabulary = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
        self._compiler = xgrammar.GrammarCompiler(
            vocabulary, max_threads=1, cache_limit_bytes=CACHE_BYTES
        )
        self._stop = list(stop_token_ids)
        self._bits = xgrammar.allocate_token_bitmask(1, len(tokenizer))
        self._tokens = len(tokenizer)

    def restrictions(self, grammar: str, response_ids: Sequence[int]) -> NDArray[np.int32]:
        """Return the restrictions of a response's tokens, shape ``(restrictions, 2)``.

        Each row has the index of a token in the response and a token id: ``id`` if this is one of
        the ids that were permitted there, ``~id`` if all but such ids were permitted. Of the two
        lists, the shorter one is given. A token without rows was sampled without restriction.
        xgrammar never permits special tokens in a text, which is not counted as a restriction.

        Raises:
            ValueError: the grammar does not permit the response.
        """
        compiled = self._compiler.compile_structural_tag(grammar)
        matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=self._stop)
        in_text, found = self._permitted(matcher), [np.empty((0, 2), np.int32)]
        for index, token in enumerate(response_ids):
            permitted = self._permitted(matcher)
            if not np.array_equal(permitted, in_text):
                ids, others = np.flatnonzero(permitted), np.flatnonzero(in_text & ~permitted)
                codes = ids if len(ids) <= len(others) else ~others
                found.append(np.column_stack([np.full(len(codes), index), codes]))
            if not matcher.accept_token(int(token)):
                raise ValueError(f"token {index} of the response is not permitted by its grammar")
        return np.concatenate(found).astype(np.int32)

    def _permitted(self, matcher: xgrammar.GrammarMatcher) -> NDArray[np.bool_]:
        matcher.fill_next_token_bitmask(self._bits)
        bits = self._bits.numpy().view(np.uint8)[0]
        return np.unpackbits(bits, count=self._tokens, bitorder="little").astype(bool)
