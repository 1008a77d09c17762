"""A byte-level tokenizer with as many entries as the Qwen models' have, made from that of nano.

No published tokenizer is part of this project, and the time to encode depends on the size of the tables and on how
many merges a word takes. Each further token joins two that are there.
"""

import json
import random
import shutil
from pathlib import Path
from typing import Any

from tests.api.nano import FOLDER, frontend

ENTRIES = 248_320
LETTERS = "Ġabcdefghijklmnopqrstuvwxyz"


def write(folder: Path) -> int:
    """Write the text resources of nano to `folder`, with more tokens; returns how many there are."""
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("*.ninfer"))
    path = folder / "tokenizer.json"
    tokenizer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    model = tokenizer["model"]
    vocabulary: dict[str, int] = model["vocab"]
    choose = random.Random(1)
    heads = [text for text in vocabulary if len(text) > 1 and set(text) <= set(LETTERS)]
    tails = [text for text in heads if "Ġ" not in text]
    number = frontend().token_count  # after nano's own added tokens
    while number < ENTRIES:
        left, right = choose.choice(heads), choose.choice(tails)
        if left + right not in vocabulary:
            vocabulary[left + right] = number
            model["merges"].append([left, right])
            number += 1
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    return number
