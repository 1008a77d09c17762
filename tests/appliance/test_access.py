"""Keys, TLS and the settings of clients, for a box of real processes and for its commands."""

import json
import os
import shlex
import ssl
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from appliance import healthcheck
from appliance.certificate import own_certificate
from appliance.client import CLIENTS, Target
from engine.key_store import read_keys
from engine.tls import fingerprint
from tests.appliance.box import ROOT, Box


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path)
    yield made
    made.close()


def test_keys_from_the_command_line(box: Box) -> None:
    assert "no key was ever made" in box.command("keys", "list").stdout
    added = box.command("keys", "add", "laptop")
    assert added.returncode == 0, added.stderr
    key = added.stdout.strip()
    assert len(key.split()) == 1
    assert "every client needs a key" in added.stderr
    assert key not in added.stderr
    assert json.loads(box.command("keys", "add", "boss", "--role", "admin", "--json").stdout)["role"] == "admin"
    (laptop, boss) = box.command("keys", "list").stdout.splitlines()
    assert laptop.split()[:2] == ["laptop", "user"]
    assert boss.split()[:2] == ["boss", "admin"]
    store = box.home / "state" / "keys.json"
    assert store.stat().st_mode & 0o777 == 0o600
    assert key not in store.read_text()
    again = box.command("keys", "add", "laptop")
    assert (again.returncode, again.stdout) == (2, "")
    assert "there is a key named 'laptop'" in again.stderr
    assert box.command("keys", "add").returncode == 2
    assert box.command("keys", "revoke", "laptop").returncode == 0
    assert "refuses everybody" in box.command("keys", "revoke", "boss").stderr
    assert read_keys(store) == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_keys_that_root_makes_belong_to_the_box(box: Box) -> None:
    state = box.home / "state"
    state.mkdir(parents=True)
    os.chown(state, 12345, 12345)
    assert box.command("keys", "add", "laptop").returncode == 0
    assert {(path.name, path.stat().st_uid) for path in state.iterdir()} == {("keys.json", 12345), ("keys.lock", 12345)}


def test_a_box_does_not_open_itself_to_a_network(box: Box) -> None:
    refused = box.command("up", "--host", "0.0.0.0")
    assert refused.returncode == 2
    assert "--host 0.0.0.0 lets others on the network use this server, and no key is set" in refused.stderr
    assert not (box.home / "state" / "state.json").exists()
    assert box.command("keys", "add", "laptop").returncode == 0
    (box.home / "state" / "keys.json").write_text("damaged")
    damaged = box.command("up", "--host", "0.0.0.0")
    assert (damaged.returncode, "keys.json" in damaged.stderr) == (2, True)


def test_a_box_with_its_own_certificate(box: Box) -> None:
    key = box.command("keys", "add", "laptop").stdout.strip()
    flags = ["--tls", "self-signed", "--host", "0.0.0.0"]
    box.environment["NINFER_TLS"], box.environment["NINFER_HOST"] = flags[1], flags[3]
    box.start()
    state = box.ready()
    url = f"https://127.0.0.1:{box.port}"
    assert state.url == url
    certificate = box.home / "state" / "tls" / "certificate.pem"
    assert (certificate.parent / "key.pem").stat().st_mode & 0o777 == 0o600
    shown = fingerprint(certificate)
    while "try: curl" not in box.output:  # `up` has asked the api over TLS
        box.wait(lambda _: True)
    assert f"certificate SHA-256 {shown}" in box.output
    assert f"--cacert {certificate}" in box.output
    assert key not in box.output

    status = box.command("status")
    assert status.returncode == 0
    assert shown in status.stdout
    assert url in status.stdout
    # The container's check, as the image runs it, and by the port alone.
    check = [sys.executable, "-m", "appliance.healthcheck"]
    for environ in ({"NINFER_HOME": str(box.home)}, {"NINFER_PORT": str(box.port), "NINFER_TLS": "self-signed"}):
        done = subprocess.run(
            check, cwd=ROOT, env={"PATH": os.environ["PATH"], **environ}, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, "")
    trust = ssl.create_default_context(cafile=str(certificate))
    with urllib.request.urlopen(f"{url}/health", timeout=5, context=trust) as answer:
        assert answer.status == 200

    block = box.command("client", "claude-code")
    assert block.returncode == 0, block.stderr
    assert f"export ANTHROPIC_BASE_URL={url}" in block.stdout
    assert f"export NODE_EXTRA_CA_CERTS={certificate}" in block.stdout
    assert 'ANTHROPIC_AUTH_TOKEN="$NINFER_API_KEY"' in block.stdout
    codex = tomllib.loads(box.command("client", "codex", "--url", "https://box.local:8080").stdout)
    assert codex["model_context_window"] == 4096
    assert codex["model_providers"]["ninfer"]["base_url"] == "https://box.local:8080/v1"
    unknown = box.command("client", "emacs")
    assert (unknown.returncode, "known: claude-code, codex" in unknown.stderr) == (2, True)

    assert box.process is not None
    box.process.terminate()
    assert box.ended() == 0
    assert "no box runs" in box.command("client", "codex").stderr
    assert fingerprint(own_certificate(certificate.parent)[0]) == shown, "a restart keeps it"


def test_the_blocks_are_what_their_programs_read() -> None:
    url, model = "http://127.0.0.1:8080", 'a "model" / $HOME'
    for target in (
        Target(url=url, model=model, context=65536, key=True),
        Target(url=url, model=model, context=300, key=False, certificate=Path("/a folder/c.pem")),
    ):
        blocks = {name: client.block(target) for name, client in CLIENTS.items()}
        key = "the key" if target.key else "none"
        for name, wanted in (
            ("claude-code", {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_MODEL": model, "ANTHROPIC_AUTH_TOKEN": key}),
            ("qwen-code", {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": model, "OPENAI_API_KEY": key}),
            ("open-webui", {"OPENAI_API_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": key}),
        ):
            assert wanted.items() <= _sourced(blocks[name]).items()
        codex = tomllib.loads(blocks["codex"])
        assert (codex["model"], codex["model_context_window"]) == (model, target.context)
        provider = codex["model_providers"][codex["model_provider"]]
        assert (provider["wire_api"], "env_key" in provider) == ("responses", target.key)
        opencode = json.loads(blocks["opencode"])
        options = opencode["provider"]["ninfer"]["options"]
        assert options == {"baseURL": f"{url}/v1", "apiKey": "{env:NINFER_API_KEY}" if target.key else "none"}
        limit = opencode["provider"]["ninfer"]["models"][model]["limit"]
        assert 0 < limit["output"] < limit["context"] == target.context
        lite = yaml.safe_load(blocks["litellm"])
        (entry,) = lite["model_list"]
        assert entry["litellm_params"]["model"] == f"openai/{model}"
        assert entry["model_info"]["max_input_tokens"] == target.context
        assert ("litellm_settings" in lite) is (target.certificate is not None)


def _sourced(block: str) -> dict[str, str]:
    """The variables after a real shell has read the block; its last line starts the program."""
    exports = "\n".join(block.splitlines()[:-1])
    show = f"{shlex.quote(sys.executable)} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    done = subprocess.run(
        ["/bin/sh", "-eu", "-c", f"{exports}\n{show}"],
        env={"NINFER_API_KEY": "the key"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_a_certificate_is_kept_until_it_must_go(tmp_path: Path) -> None:
    folder = tmp_path / "tls"

    def made(**more: Any) -> str:
        return fingerprint(own_certificate(folder, names=["box.example"], addresses=["127.0.0.1"], **more)[0])

    first = made()
    assert made() == first
    assert fingerprint(own_certificate(folder, names=["other.example"], addresses=["192.0.2.1"])[0]) == first
    soon = datetime.now(UTC) + timedelta(days=800)
    second = made(now=lambda: soon)
    assert second != first
    (folder / "key.pem").write_text("torn")
    third = made(now=lambda: soon)
    assert third not in (first, second)
    assert (folder / "key.pem").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in folder.iterdir()} == {"certificate.pem", "key.pem"}


def test_the_check_knows_tls_before_the_first_state() -> None:
    assert healthcheck.address({"NINFER_TLS": "files", "NINFER_PORT": "1"}) == "https://127.0.0.1:1"
    assert healthcheck.address({"NINFER_TLS": "off"}) == "http://127.0.0.1:8080"
