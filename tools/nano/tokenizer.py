"""Trains the tokenizer of the embedded models: `python -m tools.nano.tokenizer`.

Byte-level BPE like the Qwen family's (spec/model.md §13), with 8,192 tokens. It learns from what the models learn from,
the free text of `data/sources.py` and generated tasks, so `python -m tools.nano.data.prepare` runs before it (and again
behind it: token ids change). The committed files are the ones that count, and tests read those.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tools.nano.config import TOKEN_COUNT
from tools.nano.data.example import Split
from tools.nano.data.sources import SOURCES
from tools.nano.data.tasks import TASKS

FOLDER = Path(__file__).parents[2] / "etc" / "nano"
UNPACKED = Path(__file__).parents[2] / "build" / "nano" / "unpacked"
SOURCE_CHARACTERS = 6_000_000
EXAMPLES = 100  # a percent of the mixture

# One alternative a kind of word: contractions, letters with marks, single digits, punctuation, line ends, blanks.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# In id order. Tool and thinking tags are visible text, the others are never shown.
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
CONTROL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
    "<think>", "</think>",
)  # fmt: skip
# As in Qwen3.6, these stand in tokenizer_config.json alone.
CONTROL_IN_CONFIG = (
    "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>",
    "<|audio_pad|>",
)  # fmt: skip
# Plain text that code rarely has: the words of conversation, and scripts of other languages.
PHRASES = (
    "Hello! How can I help you today? I am a small language model. Yes, of course. No, I do not think so. Thank you. "
    "The user asks a question. First, let me think about it. Then I answer in a few short sentences. "
    "Guten Tag, wie geht es Ihnen? Ich möchte gern eine Antwort. Bonjour, comment ça va ? Je voudrais une réponse. "
    "Hola, ¿cómo estás? Me gustaría una respuesta. Olá, tudo bem? Ciao, come stai? Здравствуйте, как дела? "
    "你好，世界。请问你是谁？我是一个小模型。谢谢。 こんにちは、世界。 안녕하세요. مرحبا بالعالم. 🌍 🙂 👍 "
)


class _Scraps:
    """Materials without a corpus: pieces of the text at hand."""

    split: Split = "train"

    def __init__(self, text: str) -> None:
        self._text = text

    def prose(self, random: Random, tokens: int) -> str:
        begin = random.randrange(len(self._text) - 4 * tokens)
        return self._text[begin : begin + 4 * tokens]


def corpus() -> Iterator[str]:
    """Pieces of training text in a fixed order: phrases, documents, and conversations."""
    for _ in range(40):
        yield PHRASES
    sample = ""
    for source in SOURCES:
        left = SOURCE_CHARACTERS
        for document in source.read(UNPACKED / source.package):
            if left <= 0:
                break
            yield document.text
            left -= len(document.text)
            sample = document.text if len(document.text) > len(sample) else sample
    scraps = _Scraps(sample)
    for name, task in TASKS.items():
        random = Random(f"tokenizer {name}")
        for _ in range(round(EXAMPLES * task.share)):
            example = task.make(random, scraps)
            for message in example.messages:
                yield message.get("reasoning_content", "")
                yield str(message["content"])
            yield json.dumps(list(example.tools))


def train() -> tuple[bytes, bytes]:
    """Train and return the bytes of `tokenizer.json` and `tokenizer_config.json`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    base = TOKEN_COUNT - len(CONTROL) - len(CONTROL_IN_CONFIG)
    trainer = trainers.BpeTrainer(
        vocab_size=base, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, max_token_length=24
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    if tokenizer.get_vocab_size() != base:
        raise RuntimeError(f"the corpus gave {tokenizer.get_vocab_size()} tokens, {base} were wanted")
    tokenizer.add_tokens([AddedToken(text, special=text not in TAGS, normalized=False) for text in CONTROL])
    config = {
        "added_tokens_decoder": {
            str(base + place): _added(text) for place, text in enumerate((*CONTROL, *CONTROL_IN_CONFIG))
        },
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 32768,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    return tokenizer.to_str().encode(), json.dumps(config, indent=2).encode()


def _added(text: str) -> dict[str, Any]:
    return {
        "content": text,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": text not in TAGS,
    }


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, data in zip(("tokenizer.json", "tokenizer_config.json"), train(), strict=True):
        (FOLDER / name).write_bytes(data)
