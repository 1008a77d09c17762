from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.exits import ArtifactError
from engine.text import Frontend

NANO = Path(__file__).parents[2] / "etc" / "nano"
ROLES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


class Resources:
    """Resources in memory: those of the embedded model, some of them replaced (None: absent)."""

    def __init__(self, changed: Mapping[str, bytes | None] | None = None) -> None:
        self._contents: dict[str, bytes | None] = {role: (NANO / role).read_bytes() for role in ROLES}
        self._contents.update(changed or {})

    def resource(self, component: str, role: str, /) -> bytes:
        content = self._contents.get(role)
        if content is None:
            raise ArtifactError(f"component {component} has no resource {role}")
        return content


@pytest.fixture(scope="session")
def frontend() -> Frontend:
    return Frontend.load(Resources())


def text_of(frontend: Frontend, token_ids: list[int]) -> str:
    return b"".join(frontend.vocabulary[token_id] for token_id in token_ids).decode()
