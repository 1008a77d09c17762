"""The command-line clients, each with the configuration that docs/clients.md tells people to use."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FOLDER = "NINFER_CLIENTS"  # the environment variable; tools/nightly_clients.sh fills the folder
PATIENCE = 240.0  # seconds for one run
MODEL = "nano"


def binaries() -> Path | None:
    """Where the clients are installed, if they are."""
    folder = os.environ.get(FOLDER)
    found = None if folder is None else Path(folder) / "node_modules" / ".bin"
    return found if found is not None and found.is_dir() else None


@dataclass(frozen=True)
class Place:
    """Where a client runs: an empty home, a working folder, and the server's address without a path."""

    home: Path
    work: Path
    url: str
    context: int  # tokens


@dataclass(frozen=True)
class Said:
    """The answer that a client prints, and the tokens that it says were used for it."""

    text: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Program:
    """How one client is called. `arguments` are given the prompt; `said` reads what it prints."""

    name: str
    arguments: Callable[[str], list[str]]
    environment: Callable[[Place], dict[str, str]]
    said: Callable[[str], Said]
    prepare: Callable[[Place], None] = lambda _: None

    def run(self, place: Place, prompt: str) -> subprocess.CompletedProcess[str]:
        """Run it once, with nothing of our own environment."""
        folder = binaries()
        assert folder is not None
        place.home.mkdir()
        place.work.mkdir()
        self.prepare(place)
        system = {"HOME": str(place.home), "PATH": f"{folder}:/usr/bin:/bin", "TERM": "xterm", "LANG": "C.UTF-8"}
        name, *arguments = self.arguments(prompt)
        return subprocess.run(
            [str(folder / name), *arguments],
            cwd=place.work,
            env=system | self.environment(place),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )


def _claude_code_environment(place: Place) -> dict[str, str]:
    models = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{name}_MODEL" for name in ("HAIKU", "SONNET", "OPUS")))
    return {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(place.context),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    } | dict.fromkeys(models, MODEL)


def _claude_code_said(printed: str) -> Said:
    result = json.loads(printed)
    assert result["is_error"] is False
    used = result["usage"]
    return Said(result["result"], used["input_tokens"] + used["cache_read_input_tokens"], used["output_tokens"])


CLAUDE_CODE = Program(
    "claude-code",
    lambda prompt: ["claude", "-p", prompt, "--output-format", "json", "--permission-mode", "acceptEdits"],
    _claude_code_environment,
    _claude_code_said,
)


def _codex_configure(place: Place) -> None:
    folder = place.home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(
        f"""\
model = "{MODEL}"
model_provider = "ninfer"
model_context_window = {place.context}

[model_providers.ninfer]
name = "ninfer"
base_url = "{place.url}/v1"
wire_api = "responses"
env_key = "NINFER_API_KEY"
"""
    )


def _codex_said(printed: str) -> Said:
    events = [json.loads(line) for line in printed.splitlines()]
    assert all(event["type"] not in ("error", "turn.failed") for event in events), printed
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    texts = [item["text"] for item in items if item["type"] == "agent_message"]
    used = events[-1]["usage"]
    return Said(texts[-1], used["input_tokens"], used["output_tokens"])


# Its sandbox needs user namespaces, which a container often lacks; here the temporary folder is all there is to harm.
CODEX = Program(
    "codex",
    lambda prompt: [
        "codex", "exec", "--json", "--ephemeral", "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox", prompt,
    ],
    lambda _: {"NINFER_API_KEY": "none"},
    _codex_said,
    _codex_configure,
)  # fmt: skip


def _qwen_code_said(printed: str) -> Said:
    result = json.loads(printed)[-1]
    assert (result["type"], result["is_error"]) == ("result", False)
    return Said(result["result"], result["usage"]["input_tokens"], result["usage"]["output_tokens"])


QWEN_CODE = Program(
    "qwen-code",
    lambda prompt: ["qwen", "--auth-type", "openai", "--yolo", "--output-format", "json", prompt],
    lambda place: {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{place.url}/v1", "OPENAI_MODEL": MODEL},
    _qwen_code_said,
)


def _opencode_configure(place: Place) -> None:
    limit = {"context": place.context, "output": min(8192, place.context // 4)}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "ninfer",
        "options": {"baseURL": f"{place.url}/v1", "apiKey": "none"},
        "models": {MODEL: {"name": MODEL, "limit": limit}},
    }
    name = f"ninfer/{MODEL}"
    settings = {"model": name, "small_model": name, "share": "disabled", "autoupdate": False}
    (place.work / "opencode.json").write_text(json.dumps({"provider": {"ninfer": provider}} | settings))


def _opencode_said(printed: str) -> Said:
    events = [json.loads(line) for line in printed.splitlines()]
    assert all(event["type"] != "error" for event in events), printed
    texts = [event["part"]["text"] for event in events if event["type"] == "text"]
    used = [event["part"]["tokens"] for event in events if event["type"] == "step_finish"]
    prompt = sum(one["input"] + one["cache"]["read"] for one in used)
    return Said("".join(texts[-1:]), prompt, sum(one["output"] + one["reasoning"] for one in used))


OPENCODE = Program(
    "opencode",
    lambda prompt: ["opencode", "run", "--format", "json", prompt],
    lambda _: {"OPENCODE_DISABLE_MODELS_FETCH": "1"},
    _opencode_said,
    _opencode_configure,
)

PROGRAMS = (CLAUDE_CODE, CODEX, QWEN_CODE, OPENCODE)
