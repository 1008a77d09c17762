"""Who may ask, under which name and over which transport: keys, Host, TLS, over real sockets."""

import hashlib
import hmac
import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.certificate import own_certificate
from engine.api.auth import Keys
from engine.api.hosts import Hosts
from engine.exits import ConfigurationError
from engine.key_store import PREFIX, add_key, read_keys, revoke_key
from engine.network import check_exposure, is_loopback, machine_names
from engine.options import resolve
from engine.tls import fingerprint, given_files
from tests.api.box import Box, Reply, running

ADDRESSES = ("127.0.0.1", "::1")


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _ask(box: Box, headers: dict[str, str]) -> Reply:
    body = {"model": "nano", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
    return box.request("POST", "/v1/chat/completions", body, headers)


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_named_keys_come_and_go_while_the_server_runs(tmp_path: Path) -> None:
    store, requests = tmp_path / "keys.json", tmp_path / "requests.jsonl"
    with running(tmp_path, key_store=str(store), request_log_jsonl=str(requests)) as box:
        assert _ask(box, {}).status == 200  # nobody ever made a key
        laptop, operator = add_key(store, "laptop", "user"), add_key(store, "operator", "admin")
        assert _ask(box, {}).status == 401
        assert _ask(box, _bearer(laptop)).status == 200
        assert _ask(box, {"x-api-key": operator}).status == 200
        first, second = (one["salt"] for one in box.seen("submit")[-2:])
        assert first != second
        assert first
        assert second
        for path in ("/metrics", "/v1/load"):
            refused = box.request("GET", path, headers=_bearer(laptop))
            assert (refused.status, refused.error["code"]) == (403, "admin_key_needed")
            assert "'laptop'" in refused.error["message"]
            assert box.request("GET", path, headers=_bearer(operator)).status == 200
        kept = box.request("POST", "/v1/responses", {"model": "nano", "input": "hi"}, _bearer(laptop)).json["id"]
        for headers, status in ((_bearer(operator), 404), (_bearer(laptop), 200)):
            assert box.request("GET", f"/v1/responses/{kept}", headers=headers).status == status
            more = {"model": "nano", "input": "and", "previous_response_id": kept, "store": False}
            assert box.request("POST", "/v1/responses", more, headers).status == status
        assert box.request("DELETE", f"/v1/responses/{kept}", headers=_bearer(operator)).status == 404
        for path in ("/v1/models", "/props"):
            assert box.request("GET", path, headers=_bearer(laptop)).status == 200
        metrics = box.request("GET", "/metrics", headers=_bearer(operator)).body.decode()
        assert 'ninfer_key_requests_total{key="laptop"} 3.0' in metrics
        assert 'ninfer_key_tokens_total{key="operator",kind="prompt"}' in metrics

        revoke_key(store, "laptop")
        assert _ask(box, _bearer(laptop)).status == 401
        assert _ask(box, _bearer(operator)).status == 200
        alone = box.seen("submit")[-1]["salt"]
        assert alone == second  # the last one left does not get what others left behind

        good = store.read_bytes()
        store.write_text("{")
        assert _ask(box, _bearer(operator)).status == 200  # a damaged file changes nothing
        store.write_bytes(good)
        revoke_key(store, "operator")
        assert _ask(box, _bearer(operator)).status == 401
        assert _ask(box, {}).status == 401  # revoking the last key closes the server
        store.unlink()
        assert _ask(box, {}).status == 401
        log, records = box.api_log.read_text(), requests.read_text()
        names = [json.loads(line)["request"]["api_key"] for line in records.splitlines() if '"request_done"' in line]
        assert names == [None, "laptop", "operator", *["laptop"] * 2, *["operator"] * 2]
        assert "keys_not_taken" in log
        for secret in (laptop, operator):
            assert secret not in log + records + metrics
            assert hashlib.sha256(secret.encode()).hexdigest() not in log + records + metrics


def test_a_key_is_shown_once_and_stored_as_a_digest(tmp_path: Path) -> None:
    store = tmp_path / "keys.json"
    assert read_keys(store) is None
    keys = {add_key(store, f"key-{number}", "user") for number in range(3)}
    assert len(keys) == 3
    assert all(key.startswith(PREFIX) and len(key) == len(PREFIX) + 43 for key in keys)  # 256 bits
    assert store.stat().st_mode & 0o777 == 0o600
    assert not any(key in store.read_text() for key in keys)
    stored = read_keys(store) or ()
    assert {one.sha256 for one in stored} == {hashlib.sha256(key.encode()).hexdigest() for key in keys}
    assert {path.name for path in tmp_path.iterdir()} <= {"keys.json", "keys.lock"}


@pytest.mark.parametrize("name", ["", "with space", "-x", "x" * 65, 'quote"', "unnamed", "a\nb", "ü"])
def test_a_name_that_would_not_do_in_a_log_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot name a key"):
        add_key(tmp_path / "keys.json", name, "user")
    assert not (tmp_path / "keys.json").exists()


def test_what_is_wrong_with_keys_is_named(tmp_path: Path) -> None:
    store = tmp_path / "keys.json"
    add_key(store, "one", "user")
    with pytest.raises(ConfigurationError, match="there is a key named 'one'"):
        add_key(store, "one", "admin")
    with pytest.raises(ConfigurationError, match="no key named 'two'; there are: one"):
        revoke_key(store, "two")
    for text in ("", "[]", '{"keys": [{"name": "a", "role": "root", "sha256": ""}]}',
                 '{"keys": [{"name": "a", "role": "user", "sha256": "zz"}]}', '{"version": 2}'):  # fmt: skip
        store.write_text(text)
        with pytest.raises(ConfigurationError, match=r"keys in .*keys\.json"):
            Keys([], store=store)


def test_every_key_is_compared_in_constant_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X3: digests of one length are compared, each with each, whatever is found on the way."""
    store = tmp_path / "keys.json"
    named = add_key(store, "named", "user")
    keys = Keys(["first", "second"], store=store)
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for given, verdict in (("first", "accepted"), (named, "accepted"), ("firs", "refused"), ("x" * 5000, "refused")):
        compared.clear()
        assert keys.decide({"x-api-key": given}, "10.0.0.1").verdict == verdict
        assert compared == [(32, 32)] * 3


def test_a_page_that_was_rebound_to_us_gets_nothing(box: Box) -> None:
    def asked(host: str, path: str = "/v1/models") -> Reply:
        return box.request("GET", path, headers={"Host": host})

    for name in ("evil.example", f"evil.example:{box.port}", "localhost.evil.example", "127.0.0.1.evil.example"):
        assert asked(name).status == 403, name
    assert asked("evil.example").error["code"] == "host_not_allowed"
    assert "--allowed-hosts" in asked("evil.example").error["message"]
    assert asked("evil.example", "/health").status == 403
    anthropic = box.request("POST", "/v1/messages", {}, {"Host": "evil.example"})
    assert (anthropic.status, anthropic.json["error"]["type"]) == (403, "permission_error")
    for name in (
        "localhost", f"LOCALHOST:{box.port}", "box.localhost", "127.0.0.1:1", "192.0.2.7", "[2001:db8::1]:8080",
        *machine_names(), "host.docker.internal:8080",
    ):  # fmt: skip
        assert asked(name).status == 200, name
    with socket.create_connection(("127.0.0.1", box.port)) as old:
        old.sendall(b"GET /health HTTP/1.0\r\n\r\n")  # no name at all: no browser
        assert b" 200 " in old.recv(100)


def test_names_can_be_allowed() -> None:
    hosts = Hosts(["Box.Example.", ".lan.example", "10.0.0.1"], machine=["box"])
    for name in ("box.example", "BOX.example:8080", "a.lan.example", "a.b.lan.example:1", "box", "box."):
        assert hosts.allows(name), name
    for name in ("", ":8080", "lan.example", "evil.example", "box.example.evil", "evilbox", "box:8080x", "2130706433"):
        assert not hosts.allows(name), name
    assert Hosts(["*"], machine=[]).allows("anything.example")


def test_a_network_is_not_served_without_a_key_unless_told_so() -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        assert is_loopback(host)
        check_exposure(host, "refuse", key=False)
    for host in ("0.0.0.0", "::", "192.0.2.1", "no.such.host.invalid"):
        with pytest.raises(
            ConfigurationError, match=r"keys add NAME.*--host 127\.0\.0\.1.*--open-network without-a-key"
        ):
            check_exposure(host, "refuse", key=False)
        check_exposure(host, "refuse", key=True)
        check_exposure(host, "without-a-key", key=False)
    with pytest.raises(ConfigurationError, match="--open-network: 'yes' must be one of refuse, without-a-key"):
        resolve({"open_network": "yes"}, {})


def _shown(box: Box) -> str:
    """The fingerprint of what a new connection is shown."""
    blind = ssl._create_unverified_context()
    with (
        socket.create_connection(("127.0.0.1", box.port)) as plain,
        blind.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        shown = connection.getpeercert(binary_form=True)
        assert shown is not None
        assert connection.selected_alpn_protocol() is None
        return hashlib.sha256(shown).digest().hex(":").upper()


def test_tls_with_a_certificate_that_changes(tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path / "tls", names=["box.example"], addresses=ADDRESSES)
    other, other_key = own_certificate(tmp_path / "other", names=["box.example"], addresses=ADDRESSES)
    before = fingerprint(certificate)
    with running(tmp_path, tls_certificate=str(certificate), tls_key=str(key), keep_alive=0.2) as box:
        assert before in box.api_log.read_text()
        assert _shown(box) == before
        events = box.chat({"text": "hello there", "delay": 0.01}, stream=True).events
        assert events[-1] == "[DONE]"
        _strict(box, certificate)
        with socket.create_connection(("127.0.0.1", box.port)) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP" not in plain.recv(1000)  # no answer in the clear

        trust = ssl.create_default_context(cafile=str(certificate))
        standing = http.client.HTTPSConnection("127.0.0.1", box.port, context=trust, timeout=5)
        standing.request("GET", "/health")
        assert standing.getresponse().read()
        key.write_bytes(other_key.read_bytes())  # the pair does not match: the old one stays
        _until(lambda: "certificate_not_taken" in box.api_log.read_text())
        assert _shown(box) == before
        certificate.write_bytes(other.read_bytes())
        _until(lambda: _shown(box) == fingerprint(other))
        standing.request("GET", "/health")  # connections outlive the change
        assert standing.getresponse().status == 200
        standing.close()
        assert box.request("GET", "/v1/models").status == 200


def _strict(box: Box, certificate: Path) -> None:
    """As strict as newer Pythons are by default, for each name."""
    for name in ("127.0.0.1", "localhost"):
        trust = ssl.create_default_context(cafile=str(certificate))
        trust.verify_flags |= ssl.VERIFY_X509_STRICT
        connection = http.client.HTTPSConnection(name, box.port, context=trust, timeout=5)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()


def test_tls_files_that_do_not_work_are_named(tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path / "one", names=[], addresses=ADDRESSES)
    _, other = own_certificate(tmp_path / "two", names=[], addresses=ADDRESSES)
    flags = {"tls": "files", "tls_certificate": str(certificate), "tls_key": str(key)}
    assert given_files(resolve(flags, {}).options) == (certificate, key)
    assert given_files(resolve({"tls": "self-signed"}, {}).options) is None
    wrong: list[tuple[dict[str, str], str]] = [
        (flags | {"tls_key": str(other)}, "KEY_VALUES_MISMATCH"),
        (flags | {"tls_key": str(tmp_path / "absent")}, "absent: No such file"),
        (flags | {"tls_certificate": str(key)}, "a PEM certificate and its unencrypted"),
        (flags | {"tls": "off"}, "need --tls files; it is off"),
        ({"tls": "files", "tls_key": str(key)}, "needs both"),
    ]
    for given, message in wrong:
        with pytest.raises(ConfigurationError, match=message):
            given_files(resolve(given, {}).options)
