"""`ninfer MODEL --prompt TEXT`: one request, then exit (spec/cli.md §2). The core subset of the seed's flags.

It asks a running box (`--url`), or starts an engine for itself and hands it the request the way the API does.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from pydantic import ValidationError

from engine.api.chat import ask_of
from engine.api.config import from_options
from engine.api.errors import ApiError, from_validation
from engine.api.generation import Account, TextDelta, generate, prepare
from engine.api.model import Load, load_model
from engine.api.schemas import ChatRequest
from engine.api.service import Service
from engine.api.tools import NO_TOOLS
from engine.cli.child import ENGINE, engine_config, run_folder, start_engine, stop_engine
from engine.core.config import check_config
from engine.exits import ConfigurationError, NInferError
from engine.log import configure
from engine.options import Options, parser, refuse_unknown, resolve
from engine.version import version

PROGRAM = "ninfer"
MAX_CONTEXT = 2048
MAX_NEW = 128
SEED = 0

REFUSED = {
    "--reasoning-stop": "is not in this version; --stop applies to thought and answer",
    "--stop-token-id": "is not in this version; use --stop TEXT",
    "--raw-output": "is not in this version; thought goes to stderr and the answer to stdout",
}


class GenerateError(NInferError):
    """The request failed."""


def main(
    arguments: Sequence[str] | None = None, *, command: Sequence[str] = ENGINE, load: Load = load_model
) -> int:  # fmt: skip
    """Answer one request on stdout; the exit status is 0 or 1."""
    arguments = sys.argv[1:] if arguments is None else arguments
    flags = _flags()
    try:
        for argument in arguments:
            flag = argument.split("=", 1)[0]
            if flag in REFUSED:
                raise ConfigurationError(f"{flag} {REFUSED[flag]}")
        refuse_unknown(arguments)
        given = flags.parse_args(arguments)
        names = {field.name for field in dataclasses.fields(Options)}
        resolved = resolve({name: value for name, value in vars(given).items() if name in names})
        options = resolved.options
        if not resolved.explicit("max_context"):
            options = dataclasses.replace(options, max_context=MAX_CONTEXT)
        if not resolved.explicit("log_level"):
            options = dataclasses.replace(options, log_level="warning")
        configure(PROGRAM, options.log_level, json=options.log_json)
        body = _body(given, options)
        if given.url is not None:
            asyncio.run(_ask_box(given.url, given.artifact, body))
        elif given.artifact is None:
            raise ConfigurationError("give the path of an artifact, or --url of a running box")
        else:
            ids: bool = given.print_token_ids
            asyncio.run(_ask_engine(Path(given.artifact), options, body, print_ids=ids, command=command, load=load))
    except ApiError as error:
        print(f"{PROGRAM}: {error.message}", file=sys.stderr)
        return 1
    except NInferError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        if isinstance(error, ConfigurationError):
            print(flags.format_usage(), file=sys.stderr, end="")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _flags() -> argparse.ArgumentParser:
    flags = parser("generate", PROGRAM, "Answer one request.")
    flags.add_argument("artifact", nargs="?", metavar="MODEL", help="path of an artifact; with --url, a model name")
    flags.add_argument("--version", action="version", version=version(), help="print the version and exit")
    request = flags.add_argument_group("request")
    source = request.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="the user's message")
    source.add_argument("--messages", type=Path, metavar="FILE", help="JSON array of messages, or {messages: [...]}")
    request.add_argument("--url", help="ask a running box, for example http://127.0.0.1:8080 (key: NINFER_API_KEY)")
    request.add_argument("--max-new", type=int, default=MAX_NEW, metavar="N", help=f"longest answer [{MAX_NEW}]")
    request.add_argument("--thinking-budget", type=int, metavar="N", help="longest thought [--max-new]")
    request.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before TEXT; four at most")
    request.add_argument("--print-token-ids", action="store_true", help="print the ids of the answer on stderr")
    forms = flags.add_argument_group("form of the answer", "one of them; without --stop").add_mutually_exclusive_group()
    forms.add_argument("--json-object", action="store_true", help="a JSON object")
    forms.add_argument("--json-schema-file", type=Path, metavar="FILE", help="JSON that fits a schema")
    forms.add_argument("--regex", metavar="EXPRESSION", help="text that the expression matches as a whole")
    forms.add_argument("--choice", action="append", metavar="TEXT", help="one of the texts of all --choice")
    forms.add_argument("--grammar-file", type=Path, metavar="FILE", help="text of a GBNF grammar's rule root")
    return flags


def _form(given: argparse.Namespace) -> dict[str, Any]:
    """The request fields of the form that the flags ask for."""
    if given.json_object:
        return {"response_format": {"type": "json_object"}}
    if given.json_schema_file is not None:
        try:
            schema = json.loads(_text_of("--json-schema-file", given.json_schema_file))
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"--json-schema-file {given.json_schema_file} is not JSON: {error}") from error
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}
    if given.grammar_file is not None:
        return {"structured_outputs": {"grammar": _text_of("--grammar-file", given.grammar_file)}}
    asked = {name: value for name in ("regex", "choice") if (value := getattr(given, name)) is not None}
    return {"structured_outputs": asked} if asked else {}


def _text_of(flag: str, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{flag} {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{flag} {file} is not UTF-8: {error}") from error


def _body(given: argparse.Namespace, options: Options) -> dict[str, Any]:
    """The Chat Completions request that the flags amount to; its validation is the API's."""
    if given.max_new < 1:
        raise ConfigurationError(f"--max-new {given.max_new} must be at least 1")
    if given.url is not None and given.print_token_ids:
        raise ConfigurationError("--print-token-ids needs an engine of its own; a box returns text, not ids")
    fields: dict[str, Any] = {
        "max_tokens": given.max_new,
        "thinking_budget": given.thinking_budget,
        "stop": given.stop or None,
        "temperature": 0 if options.greedy else options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "min_p": options.min_p,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "seed": _signed(SEED if options.seed is None else options.seed),
        "enable_thinking": False if options.no_thinking else None,
        "reasoning_effort": options.reasoning_effort,
    }
    body = {name: value for name, value in fields.items() if value is not None}
    return _conversation(given) | body | _form(given)


def _signed(seed: int) -> int:
    # The API takes a signed number and reads it as an unsigned one; the flag is unsigned.
    return seed - 2**64 if seed >= 2**63 else seed


def _conversation(given: argparse.Namespace) -> dict[str, Any]:
    if given.prompt is not None:
        return {"messages": [{"role": "user", "content": given.prompt}]}
    file: Path = given.messages
    try:
        value = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"--messages {file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"--messages {file} is not JSON: {error}") from error
    if isinstance(value, list):
        return {"messages": value}
    if isinstance(value, dict) and set(value) <= {"messages", "tools"} and "messages" in value:
        return value
    raise ConfigurationError(f"--messages {file} must hold an array of messages, or an object with messages and tools")


class _Output:
    """Answer on stdout as it comes, thought on stderr."""

    def __init__(self) -> None:
        self._last = ""
        self._thought = False

    def write(self, *, reasoning: bool, text: str) -> None:
        if reasoning:
            self._thought = True
            print(text, end="", file=sys.stderr, flush=True)
            return
        if self._thought and not self._last:
            print(file=sys.stderr)
        self._last = text or self._last
        print(text, end="", flush=True)

    def close(self, finish: str, timings: dict[str, Any]) -> None:
        if self._thought and not self._last:
            print(file=sys.stderr)
        if not self._last.endswith("\n"):
            print(flush=True)
        print(
            f"finish {finish} · prompt {timings['prompt_n']} tokens in {timings['prompt_ms'] / 1000:.3f} s"
            f" ({timings['prompt_per_second']:.1f} tok/s), reused {timings['cache_n']}"
            f" · answer {timings['predicted_n']} tokens in {timings['predicted_ms'] / 1000:.3f} s"
            f" ({timings['predicted_per_second']:.1f} tok/s)",
            file=sys.stderr,
        )


async def _ask_engine(
    artifact: Path, options: Options, body: dict[str, Any], *, print_ids: bool, command: Sequence[str], load: Load
) -> None:
    data = json.dumps(body | {"model": str(artifact)}).encode()
    try:
        chat = ChatRequest.model_validate_json(data)
    except ValidationError as error:
        raise from_validation(error, data) from error
    with run_folder() as folder:
        config = engine_config(options, artifact, folder / "engine.sock")
        check_config(config)
        api = from_options(options, artifact=artifact, socket=folder / "engine.sock")
        # One answer, and it is on the screen: nothing to report and nothing to record.
        service = Service(msgspec.structs.replace(api, log_stats_interval_ms=0, request_log_jsonl=None), load)
        engine = await start_engine(config, folder, command)
        running = asyncio.create_task(service.run())
        try:
            await _until_ready(service, engine)
            account = Account(arrived=time.monotonic())
            output = _Output()
            model, limits = service.serving
            prepared = await service.offload(
                lambda: prepare(ask_of(chat, NO_TOOLS), model, limits, service.config.generation)
            )
            await service.compiled(model, prepared.constraint)
            timeout = service.config.pending_timeout_ms
            async with aclosing(
                generate(service.link, prepared, account, pending_timeout_ms=timeout, silence=service.config.keep_alive)
            ) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        output.write(reasoning=event.reasoning, text=event.text)
            output.close(account.finish or "none", account.timings())
            if print_ids:
                print("token ids:", *account.token_ids, file=sys.stderr)
        finally:
            running.cancel()
            await asyncio.wait({running})
            service.close_checker()
            await stop_engine(engine)


async def _until_ready(service: Service, engine: asyncio.subprocess.Process) -> None:
    """Show the boot on stderr until it is over."""
    ended = asyncio.create_task(engine.wait())
    ready = asyncio.create_task(service.ready.wait())
    shown = ""
    try:
        while not ready.done():
            await asyncio.wait({ended, ready}, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise GenerateError(f"the engine ended during its start with status {engine.returncode}")
            status = service.readiness.status()
            if status.phase != shown:
                shown = status.phase
                print(f"{shown} {status.detail}".rstrip(), file=sys.stderr)
    finally:
        ended.cancel()
        ready.cancel()


async def _ask_box(url: str, model: str | None, body: dict[str, Any]) -> None:
    key = os.environ.get("NINFER_API_KEY")
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    base = url.rstrip("/").removesuffix("/v1")
    no_limit = aiohttp.ClientTimeout(total=None, sock_connect=10)
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=no_limit) as session:
            if model is None:
                async with session.get(f"{base}/v1/models") as response:
                    model = (await _answer(response))["data"][0]["id"]
            request = body | {"model": model, "stream": True}
            async with session.post(f"{base}/v1/chat/completions", json=request) as response:
                if response.status != 200:
                    await _answer(response)
                await _print_stream(response)
    except (aiohttp.ClientError, OSError) as error:
        raise GenerateError(f"{base}: {error}") from error


async def _answer(response: aiohttp.ClientResponse) -> Any:
    try:
        value = await response.json()
    except (aiohttp.ContentTypeError, ValueError) as error:
        raise GenerateError(f"{response.url} answered {response.status} with something else than JSON") from error
    if response.status != 200:
        _raise(value)
    return value


def _raise(value: Any) -> None:
    raise GenerateError(str(value.get("error", {}).get("message", value)))


async def _print_stream(response: aiohttp.ClientResponse) -> None:
    output, finish = _Output(), ""
    async for line in response.content:
        text = line.decode().strip()
        if not text.startswith("data: ") or text == "data: [DONE]":
            continue
        chunk = json.loads(text.removeprefix("data: "))
        if "error" in chunk:
            _raise(chunk)
        for choice in chunk["choices"]:
            for name in ("reasoning_content", "content"):
                if choice["delta"].get(name):
                    output.write(reasoning=name != "content", text=choice["delta"][name])
            finish = choice["finish_reason"] or finish
        if finish:
            output.close(finish, chunk["timings"])
    if not finish:
        raise GenerateError("the stream broke off")


if __name__ == "__main__":
    sys.exit(main())
