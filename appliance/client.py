"""`ninfer-appliance client NAME`: the settings that point a program at the running box.

The block goes to standard output as its file or shell wants it, and where to put it to standard error. Keys are not
stored here, so the blocks name a variable.
"""

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from appliance.access import running_config
from appliance.owner import running_owner
from appliance.run_folder import RunFiles
from appliance.settings import Settings, load_settings
from engine.exits import ConfigurationError
from engine.key_store import read_keys
from engine.options import parser
from engine.state_file import read_state

PROGRAM = "ninfer-appliance client"
VARIABLE = "NINFER_API_KEY"
NO_KEY = "none"  # programs want something
LONGEST_ANSWER = 32_000


@dataclass(frozen=True, kw_only=True)
class Target:
    """The box as its clients see it. `context` is in tokens; `certificate` is one to be trusted, if it is our own."""

    url: str
    model: str
    context: int
    key: bool
    certificate: Path | None = None

    @property
    def output(self) -> int:
        """How long an answer may be, in tokens: a quarter of the context at most, so that a prompt has room."""
        return max(1, min(LONGEST_ANSWER, self.context // 4))

    @property
    def openai(self) -> str:
        """What OpenAI clients call the base URL."""
        return f"{self.url}/v1"


@dataclass(frozen=True)
class Client:
    """How one program is set up, and where the block goes."""

    block: Callable[[Target], str]
    place: str


def main(rest: Sequence[str]) -> int:
    """Entry point; returns the exit status.

    Raises:
        ConfigurationError: the program is unknown, or no box is ready in this home.
    """
    made = parser("appliance", PROGRAM, "Show how to point a program at the running box.")
    made.add_argument("client", metavar="NAME", help=", ".join(CLIENTS))
    made.add_argument("--url", help="the box as the client sees it, for example https://box.local:8080")
    flags = vars(made.parse_args(rest))
    name, url = flags.pop("client"), flags.pop("url")
    if name not in CLIENTS:
        raise ConfigurationError(f"unknown client {name!r}; known: {', '.join(CLIENTS)}")
    if url is not None and urlsplit(url).scheme not in ("http", "https"):
        raise ConfigurationError(f"--url {url}: http://HOST:PORT or https://HOST:PORT works")
    target = look(load_settings(flags), url)
    client = CLIENTS[name]
    trust = f"; with NODE_EXTRA_CA_CERTS={target.certificate}" if name == "opencode" and target.certificate else ""
    print(f"{client.place}{trust}{_key_hint(target)}", file=sys.stderr)
    print(client.block(target))
    return 0


def look(settings: Settings, url: str | None = None) -> Target:
    """The box that runs in this home.

    Raises:
        ConfigurationError: none does, or it is not ready.
    """
    owner = running_owner(settings.state)
    if owner is None:
        raise ConfigurationError(f"no box runs in {settings.home}; ninfer-appliance up starts one")
    try:
        state = read_state(settings.state_file)
    except (OSError, msgspec.MsgspecError):
        state = None
    context = 0 if state is None else state.plan.get("max_context", 0)
    if state is None or not context:
        raise ConfigurationError("the box is not ready; ninfer-appliance status says how far it is")
    config = running_config(RunFiles(Path(owner.run)))
    certificate = None if config.tls_certificate is None else Path(config.tls_certificate)
    own = certificate is not None and certificate.is_relative_to(settings.tls_folder)
    stored = None if config.key_store is None else read_keys(Path(config.key_store))
    return Target(
        url=(url or state.url or settings.url).rstrip("/").removesuffix("/v1"),
        model=config.model_id or settings.public_name,
        context=context,
        key=stored is not None or config.api_key_file is not None,
        certificate=certificate if own else None,
    )


def _key_hint(target: Target) -> str:
    if not target.key:
        return "; this box needs no key"
    return f"; {VARIABLE} is the key that ninfer-appliance keys add NAME shows"


def _exports(values: dict[str, str], target: Target, trust: str, key: str, command: str) -> str:
    """Lines for a shell."""
    lines = [f"export {name}={shlex.quote(text)}" for name, text in values.items()]
    lines.append(f'export {key}="${VARIABLE}"' if target.key else f"export {key}={NO_KEY}")
    if target.certificate is not None:
        lines.append(f"export {trust}={shlex.quote(str(target.certificate))}")
    return "\n".join([*lines, command])


def _claude_code(target: Target) -> str:
    values = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_MODEL": target.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": target.model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": target.model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": target.model,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(target.context),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(target.output),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
    }
    return _exports(values, target, "NODE_EXTRA_CA_CERTS", "ANTHROPIC_AUTH_TOKEN", "claude")


def _codex(target: Target) -> str:
    # JSON's strings are TOML's. The first lines must stand above every table of the file.
    lines = [
        f"model = {json.dumps(target.model)}",
        'model_provider = "ninfer"',
        f"model_context_window = {target.context}",
        "",
        "[model_providers.ninfer]",
        'name = "NInfer"',
        f"base_url = {json.dumps(target.openai)}",
        'wire_api = "responses"',
    ]
    if target.key:
        lines.append(f'env_key = "{VARIABLE}"')
    if target.certificate is not None:
        lines.append(f"# before codex, type: export SSL_CERT_FILE={shlex.quote(str(target.certificate))}")
    return "\n".join(lines)


def _qwen_code(target: Target) -> str:
    values = {"OPENAI_BASE_URL": target.openai, "OPENAI_MODEL": target.model}
    return _exports(values, target, "NODE_EXTRA_CA_CERTS", "OPENAI_API_KEY", "qwen --auth-type openai")


def _opencode(target: Target) -> str:
    key = f"{{env:{VARIABLE}}}" if target.key else NO_KEY
    name = f"ninfer/{target.model}"
    limit = {"context": target.context, "output": target.output}
    block = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {
            "ninfer": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "NInfer",
                "options": {"baseURL": target.openai, "apiKey": key},
                "models": {target.model: {"name": target.model, "limit": limit}},
            }
        },
        "model": name,
        "small_model": name,
        "share": "disabled",
    }
    return json.dumps(block, indent=2, ensure_ascii=False)


def _open_webui(target: Target) -> str:
    values = {"OPENAI_API_BASE_URL": target.openai, "ENABLE_OLLAMA_API": "false"}
    return _exports(values, target, "SSL_CERT_FILE", "OPENAI_API_KEY", "open-webui serve")


def _litellm(target: Target) -> str:
    # YAML takes JSON's strings.
    key = f"os.environ/{VARIABLE}" if target.key else NO_KEY
    lines = [
        "model_list:",
        f"  - model_name: {json.dumps(target.model)}",
        "    litellm_params:",
        f"      model: {json.dumps('openai/' + target.model)}",
        f"      api_base: {json.dumps(target.openai)}",
        f"      api_key: {json.dumps(key)}",
        "    model_info:",
        f"      max_input_tokens: {target.context}",
        f"      max_output_tokens: {target.output}",
    ]
    if target.certificate is not None:
        lines += ["litellm_settings:", f"  ssl_verify: {json.dumps(str(target.certificate))}"]
    return "\n".join(lines)


CLIENTS: dict[str, Client] = {
    "claude-code": Client(_claude_code, "type this in the shell"),
    "codex": Client(_codex, "put this at the top of ~/.codex/config.toml"),
    "qwen-code": Client(_qwen_code, "type this in the shell"),
    "opencode": Client(_opencode, "put this into opencode.json in your project, or ~/.config/opencode/opencode.json"),
    "open-webui": Client(_open_webui, "type this in the shell, or give the variables to its container"),
    "litellm": Client(_litellm, "put this into config.yaml and type: litellm --config config.yaml"),
}
