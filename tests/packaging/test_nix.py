"""The flake and the NixOS module. The nightly tests evaluate them with the stand-in for nixpkgs beside this file.

NINFER_NIXPKGS_LIB may name a folder with nixpkgs' own lib; then the module meets the real module system too.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.units import read_unit, systemd_version, write_unit

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).parent / "nixpkgs"
REAL_LIB = os.environ.get("NINFER_NIXPKGS_LIB")
LIBS = ["own", pytest.param("real", marks=pytest.mark.skipif(REAL_LIB is None, reason="needs NINFER_NIXPKGS_LIB"))]
nix = pytest.mark.skipif(shutil.which("nix") is None, reason="needs nix: tools/nightly_packages.sh")
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze: apt-get install systemd"
)
NIX_CONFIG = "experimental-features = nix-command flakes\nsandbox = false\nbuild-users-group =\nsubstitute = false\n"


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "NIX_CONFIG": NIX_CONFIG}
    return subprocess.run(command, capture_output=True, text=True, env=environ, check=False)


def _evaluate(given: str, *arguments: str, lib: str = "own") -> Any:
    """The module's result for the Nix text `given`, or the error as a text."""
    extra = ["--arg", "libPath", REAL_LIB or ""] if lib == "real" else []
    file = STAND_IN / "evaluate.nix"
    command = [
        "nix-instantiate",
        "--eval",
        "--strict",
        "--json",
        str(file),
        "--arg",
        "given",
        given,
        *arguments,
        *extra,
    ]
    done = _run(*command)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def _render(unit: dict[str, Any]) -> str:
    """The text that NixOS makes of a unit."""

    def values(value: Any) -> list[str]:
        if isinstance(value, list):
            return [item for each in value for item in values(each)]
        return [("true" if value else "false") if isinstance(value, bool) else str(value)]

    service = {key: values(value) for key, value in unit["serviceConfig"].items()}
    if systemd_version() < 254:
        service = {key: value for key, value in service.items() if key not in ("RestartSteps", "RestartMaxDelaySec")}
    service["Environment"] = [f'"{name}={value}"' for name, value in unit["environment"].items()]
    head = {"Description": [unit["description"]], "Wants": unit["wants"], "After": unit["after"]}
    head |= {key: values(value) for key, value in unit["unitConfig"].items()}
    return write_unit({"Unit": head, "Service": service})


# What needs no evaluator


def test_the_lock_holds_a_revision_and_its_hash() -> None:
    lock = json.loads((ROOT / "flake.lock").read_text())
    locked = lock["nodes"]["nixpkgs"]["locked"]
    assert re.fullmatch(r"[0-9a-f]{40}", locked["rev"])
    assert len(base64.b64decode(locked["narHash"].removeprefix("sha256-"), validate=True)) == 32
    original = lock["nodes"]["nixpkgs"]["original"]
    url = f"github:{original['owner']}/{original['repo']}/{original['ref']}"
    assert f'inputs.nixpkgs.url = "{url}";' in (ROOT / "flake.nix").read_text()


def test_every_download_of_the_flake_is_in_the_catalog() -> None:
    names = re.findall(r'^ +download-\S+ = "(.+)";$', (ROOT / "flake.nix").read_text(), re.MULTILINE)
    catalog = tomllib.loads((ROOT / "etc" / "models.toml").read_text())["models"]
    assert len(names) == 4
    assert set(names) <= catalog.keys()


# What needs one


@nix
@pytest.mark.nightly
def test_the_flake_offers_what_it_should() -> None:
    flake = f"path:{ROOT}"
    override = ["--override-input", "nixpkgs", f"path:{STAND_IN}", "--no-write-lock-file"]
    done = _run("nix", "flake", "check", "--no-build", *override, flake)
    assert done.returncode == 0, done.stderr
    shown = _run("nix", "flake", "show", "--json", *override, flake)
    assert shown.returncode == 0, shown.stderr
    outputs = json.loads(shown.stdout)
    downloads = {"download-qwen38-27b", "download-qwen36-27b", "download-qwen36-35b", "download-qwen36-35b-v2"}
    assert outputs["packages"]["x86_64-linux"].keys() == {"default", "ninfer", "ninfer-cpu"} | downloads
    assert outputs["apps"]["x86_64-linux"].keys() == {"default", "serve", "cli"} | downloads
    assert outputs["checks"]["x86_64-linux"].keys() == {"package", "appliance"}
    assert outputs["devShells"]["x86_64-linux"].keys() == {"default"}
    assert outputs["nixosModules"].keys() == {"default", "ninfer"}
    wrapper = _run(
        "nix", "eval", "--json", *override, f"{flake}#packages.x86_64-linux.ninfer.arguments.makeWrapperArgs"
    )
    words = json.loads(wrapper.stdout)
    for name in ("TRITON_LIBCUDA_PATH", "TRITON_PTXAS_PATH", "CC", "LD_LIBRARY_PATH"):
        assert name in words, f"{name}: without it Triton finds no driver on NixOS (case C4)"


@nix
@pytest.mark.nightly
@pytest.mark.parametrize("lib", LIBS)
def test_a_plain_configuration(lib: str) -> None:
    result = _evaluate("{ enable = true; }", lib=lib)
    assert result["failed"] == []
    assert result["ports"] == [], "the firewall stays closed"
    unit = result["units"]["ninfer"]
    assert unit["serviceConfig"]["ExecStart"] == "/nix/store/fake-ninfer/bin/ninfer-appliance up"
    environment = unit["environment"]
    assert environment["TRITON_LIBCUDA_PATH"] == "/run/opengl-driver/lib"
    assert environment["LD_LIBRARY_PATH"] == "/run/opengl-driver/lib"
    assert environment["CC"].endswith("/bin/cc")
    assert {name for name in environment if name.startswith("NINFER_")} == {"NINFER_HOME"}, "defaults are the program's"
    assert result["path"], "Triton starts a compiler"
    fetch = result["units"]["ninfer-fetch"]
    assert fetch["serviceConfig"]["ExecStart"] == [
        "/nix/store/fake-ninfer/bin/download-model nano --dir /var/lib/ninfer/models"
    ]
    assert "ninfer-fetch.service" in unit["after"]


@nix
@pytest.mark.nightly
@pytest.mark.parametrize("lib", LIBS)
def test_settings_become_environment(lib: str) -> None:
    given = """{
      enable = true;
      openFirewall = true;
      environmentFile = "/run/secrets/ninfer.env";
      settings = {
        host = "0.0.0.0"; port = 8081; model = "qwen38-27b"; max-concurrency = 2; kv-capacity = "auto";
        temperature = 0.25; top-p = 1; gdn-state-fp16 = true; fallback = false; model-dir = "/srv/models";
      };
    }"""
    result = _evaluate(given, lib=lib)
    assert result["failed"] == []
    assert result["ports"] == [8081]
    unit = result["units"]["ninfer"]
    wanted = {
        "NINFER_HOST": "0.0.0.0",
        "NINFER_PORT": "8081",
        "NINFER_MODEL": "qwen38-27b",
        "NINFER_CONCURRENCY": "2",
        "NINFER_KV_CAPACITY": "auto",
        "NINFER_TEMPERATURE": "0.25",
        "NINFER_TOP_P": "1",
        "NINFER_GDN_STATE_FP16": "on",
        "NINFER_FALLBACK": "off",
        "NINFER_MODEL_DIR": "/srv/models",
        "NINFER_HOME": "/var/lib/ninfer",
    }
    assert {name: value for name, value in unit["environment"].items() if name.startswith("NINFER_")} == wanted
    from engine.options import resolve

    options = resolve({}, wanted).options
    assert (options.port, options.temperature, options.fallback) == (8081, 0.25, False)
    assert unit["serviceConfig"]["EnvironmentFile"] == ["/run/secrets/ninfer.env"]
    assert unit["serviceConfig"]["ReadWritePaths"] == ["/srv/models"]
    assert "qwen38-27b --dir /srv/models" in result["units"]["ninfer-fetch"]["serviceConfig"]["ExecStart"][0]


@nix
@pytest.mark.nightly
@pytest.mark.parametrize("lib", LIBS)
@pytest.mark.parametrize(
    ("setting", "option"),
    [
        ("port = 99999999", "port"),
        ("prefill-chunk = 1000", "prefill-chunk"),
        ('kv-dtype = "fp4"', "kv-dtype"),
        ("temperature = 2.5", "temperature"),
        ('kv-capacity = "all"', "kv-capacity"),
        ("seed = -1", "seed"),
        ('greedy = "yes"', "greedy"),
        ('api-key = "secret"', "api-key"),
        ("no-such-option = 1", "no-such-option"),
    ],
)
def test_a_wrong_setting_names_the_option(setting: str, option: str, lib: str) -> None:
    said = _evaluate(f"{{ enable = true; settings.{setting}; }}", lib=lib)
    assert isinstance(said, str), "it was accepted"
    assert f"services.ninfer.settings.{option}" in said


@nix
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("given", "arguments", "words"),
    [
        ("openFirewall = true;", [], "openFirewall"),
        ("", ["--arg", "cuda", "false"], "without CUDA"),
        ("", ["--arg", "videoDrivers", "[ ]"], "videoDrivers"),
        ("settings.max-context = 8192; settings.kv-capacity = 4096;", [], "kv-capacity is smaller"),
        ("settings.greedy = true; settings.temperature = 0.5;", [], "contradict"),
        ('settings.no-thinking = true; settings.reasoning-effort = "low";', [], "contradict"),
    ],
)
def test_impossible_combinations_are_refused(given: str, arguments: list[str], words: str) -> None:
    (failed,) = _evaluate(f"{{ enable = true; {given} }}", *arguments)["failed"]
    assert words in failed


@nix
@pytest.mark.nightly
def test_a_box_without_a_card_gets_no_driver_environment() -> None:
    result = _evaluate(
        '{ enable = true; settings.device = "cpu"; }', "--arg", "cuda", "false", "--arg", "videoDrivers", "[ ]"
    )
    assert result["failed"] == []
    assert "TRITON_LIBCUDA_PATH" not in result["units"]["ninfer"]["environment"]
    assert result["path"] == []


@nix
@pytest.mark.nightly
def test_fetching_can_be_left_to_the_box_and_paths_are_not_fetched() -> None:
    without = _evaluate("{ enable = true; fetch.enable = false; }")["units"]
    assert without.keys() == {"ninfer"}
    assert "ninfer-fetch.service" not in without["ninfer"]["after"] + without["ninfer"]["wants"]
    by_path = _evaluate('{ enable = true; settings.model = "/srv/mine.ninfer"; }')["units"]
    assert by_path.keys() == {"ninfer"}
    assert "NINFER_MODEL" in by_path["ninfer"]["environment"]


@nix
@pytest.mark.nightly
def test_switched_off_it_is_nothing() -> None:
    assert _evaluate("{ }") == {"failed": [], "ports": [], "units": {}, "path": []}


@nix
@needs_systemd
@pytest.mark.nightly
@pytest.mark.parametrize("name", ["ninfer", "ninfer-fetch"])
def test_the_units_of_the_module_are_clean_and_tight(name: str, tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "bin").mkdir(parents=True)
    for program in ("ninfer-appliance", "download-model"):
        (package / "bin" / program).write_text("#!/bin/sh\n")
        (package / "bin" / program).chmod(0o755)
    given = '{ enable = true; settings.model-dir = "/srv/models"; }'
    result = _evaluate(given, "--argstr", "package", str(package))
    file = tmp_path / f"{name}.service"
    file.write_text(_render(result["units"][name]))
    verified = _run("systemd-analyze", "verify", file)
    said = [line for line in verified.stderr.splitlines() if name in line]
    assert (verified.returncode, said) == (0, [])
    secured = _run("systemd-analyze", "security", "--offline=true", "--threshold=40", file)
    assert secured.returncode == 0, secured.stdout[-2000:]


@nix
@needs_systemd
@pytest.mark.nightly
def test_the_module_is_as_hard_as_the_plain_unit() -> None:
    def settings(text: str) -> dict[str, list[str]]:
        service = read_unit(text)["Service"]
        ours = {"ExecStart", "ExecStartPre", "Environment", "EnvironmentFile", "ReadWritePaths"}
        later = {"RestartSteps", "RestartMaxDelaySec"}  # Debian 12's systemd does not know them
        words = {"true": "yes", "false": "no"}
        return {
            key: sorted(" ".join(words.get(value, value) for value in values).split())
            for key, values in service.items()
            if key not in ours | later
        }

    module = settings(_render(_evaluate("{ enable = true; }")["units"]["ninfer"]))
    plain = settings((ROOT / "etc/systemd/ninfer.service").read_text())
    assert module == plain
