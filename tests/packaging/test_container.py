"""Dockerfile, compose, quadlet and the health check, as far as they can be held against each other without an engine.

The nightly tests build and start the image (tools/build_image_test.sh) and run Podman's own quadlet generator.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml  # type: ignore[import-untyped]

from appliance import healthcheck
from engine.options import Options, rows_of
from tests.packaging.units import read_unit

ROOT = Path(__file__).resolve().parents[2]
CONTAINER = ROOT / "etc" / "container"
QUADLET = ROOT / "etc" / "quadlet"
FOLDERS = {"models": "/workspace/models", "cache": "/workspace/cache", "state": "/workspace/state"}
GENERATOR = Path("/usr/libexec/podman/quadlet")


def _instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, argument) of a Dockerfile, continuation lines joined."""
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    return [(line.split(None, 1)[0], line.split(None, 1)[1].strip()) for line in joined.splitlines() if line.strip()]


DOCKERFILE = _instructions((ROOT / "Dockerfile").read_text())
FINAL = DOCKERFILE[max(place for place, (word, _) in enumerate(DOCKERFILE) if word == "FROM") :]


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_the_base_is_pinned_by_digest() -> None:
    base = next(argument for word, argument in DOCKERFILE if word == "ARG" and argument.startswith("BASE="))
    assert re.fullmatch(r"BASE=debian:bookworm-slim@sha256:[0-9a-f]{64}", base)
    stages = [argument for word, argument in DOCKERFILE if word == "FROM"]
    assert stages == ["${BASE} AS build", "${BASE}"]


def test_the_image_runs_as_nobody_special_with_declared_folders_and_a_check() -> None:
    words = dict(FINAL)
    assert words["USER"] == "10001:10001"
    assert json.loads(words["VOLUME"]) == list(FOLDERS.values())
    assert words["WORKDIR"] == "/workspace", "the seed's mount is /workspace/models"
    assert json.loads(words["CMD"]) == ["ninfer-appliance", "up", "--host", "0.0.0.0"]
    assert "ENTRYPOINT" not in words, "ninfer-serve models/FILE must work as a command"
    assert "--start-period=" in words["HEALTHCHECK"]
    assert "appliance.healthcheck" in words["HEALTHCHECK"]
    assert words["EXPOSE"] == str(dict(rows_of(Options))["port"].default)
    environment = words["ENV"]
    for name in ("HOME", "XDG_CACHE_HOME", "TRITON_CACHE_DIR"):
        assert re.search(rf"\b{name}=/workspace/cache", environment), f"{name} must lie where the image may write"


def test_a_compiler_comes_with_cuda_only() -> None:
    for command in (argument for word, argument in DOCKERFILE if word == "RUN" and "gcc" in argument):
        assert re.search(r'if \[ "\$NINFER_TORCH_BUILD" != cpu \]; then [^;]*\bgcc\b[^;]*; fi', command)


def test_the_context_holds_all_that_is_copied_and_nothing_else() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for word, argument in DOCKERFILE
        if word == "COPY" and not argument.startswith("--from")
        for source in argument.split()[:-1]
    }
    assert {source for source in copied if not any(source == k or source.startswith(f"{k}/") for k in kept)} == set()
    assert {k for k in kept if k not in copied} == set()
    for source in copied:
        assert (ROOT / source).exists(), source


def test_all_packages_are_in_the_image() -> None:
    assert {f"{name} {name}" for name in ("appliance", "downloader", "engine", "kernels", "etc")} <= {
        argument for word, argument in DOCKERFILE if word == "COPY"
    }


def test_compose_mounts_what_the_image_declares() -> None:
    compose = _yaml(CONTAINER / "compose.yaml")
    service = compose["services"]["ninfer"]
    assert dict(volume.split(":") for volume in service["volumes"]) == FOLDERS
    assert compose["volumes"].keys() == FOLDERS.keys()
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert any(mount.startswith("/tmp:") for mount in service["tmpfs"])
    assert service["ports"] == ["${NINFER_PUBLISH:-127.0.0.1}:${NINFER_PUBLISH_PORT:-8080}:8080"]
    assert service["env_file"] == [{"path": "ninfer.env", "required": False}]
    assert (CONTAINER / service["build"]["context"] / "Dockerfile").exists()


def test_each_overlay_adds_a_card_and_a_build_that_exists() -> None:
    import tomllib

    builds = tomllib.loads((ROOT / "etc" / "wheels.toml").read_text())
    gpus = _yaml(CONTAINER / "compose.gpus.yaml")["services"]["ninfer"]
    cdi = _yaml(CONTAINER / "compose.cdi.yaml")["services"]["ninfer"]
    (device,) = gpus["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert cdi["devices"] == ["nvidia.com/gpu=all"]
    assert "label=disable" in cdi["security_opt"]
    for overlay in (gpus, cdi):
        (default,) = re.findall(r":-(\w+)\}", overlay["build"]["args"]["NINFER_TORCH_BUILD"])
        assert default in builds


def test_the_quadlet_has_the_same_folders_and_lets_selinux_through() -> None:
    text = (QUADLET / "ninfer.container").read_text()
    unit = read_unit(text)
    container = unit["Container"]
    assert dict(volume.split(":") for volume in container["Volume"]) == {
        f"ninfer-{name}.volume": path for name, path in FOLDERS.items()
    }
    for name in FOLDERS:
        volume = read_unit((QUADLET / f"ninfer-{name}.volume").read_text())
        assert volume["Volume"]["VolumeName"] == [f"ninfer-{name}"]
    assert container["AddDevice"] == ["nvidia.com/gpu=all"]
    assert container["SecurityLabelDisable"] == ["true"]
    comment = text.partition("SecurityLabelDisable")[0].rstrip().splitlines()[-2:]
    assert "SELinux" in " ".join(comment), "the line must say why it is there"
    assert container["ReadOnly"] == ["true"]
    assert container["DropCapability"] == ["all"]
    assert container["Notify"] == ["true"]
    assert "nvidia-cdi-refresh.service" in " ".join(unit["Unit"]["After"])
    assert container["PublishPort"] == ["127.0.0.1:8080:8080"]


class _Box(BaseHTTPRequestHandler):
    answers: ClassVar[list[int]] = []

    def do_GET(self) -> None:
        body = json.dumps({"status": "loading", "path": self.path}).encode()
        self.send_response(self.answers[0] if self.path == "/health" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


@pytest.fixture
def box() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Box)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_check_follows_the_box(box: str) -> None:
    _Box.answers[:] = [503]
    wrong = healthcheck.check(box)
    assert wrong is not None
    assert "503" in wrong
    assert "loading" in wrong
    _Box.answers[:] = [200]
    assert healthcheck.check(box) is None


def test_the_check_ends_with_one_where_nobody_listens(box: str, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "NINFER_HOME": str(tmp_path), "http_proxy": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "appliance.healthcheck"]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environ, check=False)

    environ["NINFER_PORT"] = "9"
    refused = run()
    assert refused.returncode == 1
    assert "127.0.0.1:9/health" in refused.stdout
    # The port that was given on the command line stands in state.json, and counts more.
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "state.json").write_text(json.dumps({"url": box}))
    _Box.answers[:] = [200]
    good = run()
    assert (good.returncode, good.stdout) == (0, "")


@pytest.mark.parametrize("text", ["", "[]", '{"url": null}', '{"url": "file:///etc/passwd"}'])
def test_a_strange_state_file_falls_back_to_the_port(text: str, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "state.json").write_text(text)
    environ = {"NINFER_HOME": str(tmp_path), "NINFER_PORT": "8181"}
    assert healthcheck.address(environ) == "http://127.0.0.1:8181"
    assert healthcheck.address({}) == "http://127.0.0.1:8080"


@pytest.mark.nightly
@pytest.mark.skipif(not GENERATOR.exists(), reason="needs Podman 4.4 or newer (Debian 13): apt-get install podman")
def test_podman_takes_the_quadlet(tmp_path: Path) -> None:
    for path in (*QUADLET.iterdir(), ROOT / "etc" / "ninfer.env"):
        shutil.copy(path, tmp_path)
    environ = {**os.environ, "QUADLET_UNIT_DIRS": str(tmp_path)}
    done = subprocess.run([GENERATOR, "-dryrun"], capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    assert "--device nvidia.com/gpu=all" in done.stdout
    assert f"--env-file {tmp_path}/ninfer.env" in done.stdout
    assert "--sdnotify=container" in done.stdout


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.skipif(os.geteuid() != 0, reason="building without an engine needs root")
def test_the_image_builds_and_serves() -> None:
    done = subprocess.run(
        [ROOT / "tools" / "build_image_test.sh"], capture_output=True, text=True, timeout=3500, check=False
    )
    if done.returncode == 77:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "== good" in done.stdout
