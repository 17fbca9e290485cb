"""A BPE tokenizer for a small vocabulary: short prompts, and nouns that a tiny model can copy.

Pre-tokenization isolates nouns and numbers and merges runs of function words and punctuation. So
"cabinet 4" is two tokens in every context, and ". On the" can become one.
"""

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, EOS = "<pad>", "<eos>"
TAGS = ("<think>", "</think>", "<action>", "</action>")
# The prompt is the message itself: the pocket model has no roles.
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def train_tokenizer(
    texts: Iterable[str], function_words: Iterable[str], vocabulary: int
) -> PreTrainedTokenizerFast:
    """Train the tokenizer on sample prompts and responses."""
    words = sorted(
        {form for word in function_words for form in (word, word.capitalize())},
        key=lambda word: (-len(word), word),
    )
    filler = rf"(?:[\s,.'\[\]:>(){{}}-]|\b(?:{'|'.join(words)})\b)+"
    pattern = rf" ?[0-9]+|{filler}?(?= ?[0-9])|{filler}|[A-Za-z]+"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
