"""The systemd units and their installer."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.units import read_unit

ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted((ROOT / "etc" / "systemd").glob("*.service"))
INSTALLER = ROOT / "tools" / "install_systemd.sh"
COMMANDS = ("ninfer-appliance", "ninfer-serve", "ninfer", "ninfer-artifact", "download-model")
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze: apt-get install systemd"
)


def _with_programs(unit: Path, folder: Path) -> Path:
    """A copy of the unit whose programs exist below `folder`."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name in COMMANDS:
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    # A template is checked as one of its instances.
    copy = folder / unit.name.replace("@.", "@qwen38-27b.")
    text = unit.read_text().replace("/opt/ninfer/venv/bin", str(programs))
    copy.write_text(re.sub(r"^Documentation=.*\n", "", text, flags=re.MULTILINE))
    return copy


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_are_clean(unit: Path, tmp_path: Path) -> None:
    copy = _with_programs(unit, tmp_path)
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    # It ends well after an unknown key, so what it says counts. Other units of this machine are not ours.
    said = [line for line in done.stderr.splitlines() if "ninfer" in line]
    assert (done.returncode, said) == (0, []), done.stderr


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_exposure_is_at_most_four(unit: Path, tmp_path: Path) -> None:
    copy = _with_programs(unit, tmp_path)
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=40", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


@needs_systemd
def test_a_wrong_key_would_be_seen(tmp_path: Path) -> None:
    copy = _with_programs(ROOT / "etc/systemd/ninfer.service", tmp_path)
    copy.write_text(copy.read_text().replace("ProtectHome=", "ProtectHouse="))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert "ProtectHouse" in done.stderr


def test_nothing_that_hides_a_card_from_cuda_is_on() -> None:
    service = read_unit((ROOT / "etc/systemd/ninfer.service").read_text())["Service"]
    reasons = (ROOT / "etc/systemd/ninfer.service").read_text().partition("# Left off, and why:")[2]
    for key in (
        "MemoryDenyWriteExecute",
        "PrivateDevices",
        "DevicePolicy",
        "DeviceAllow",
        "ProtectClock",
        "PrivateUsers",
    ):
        assert key not in service, f"{key} breaks CUDA or torch"
        assert key in reasons, f"the unit does not say why {key} is left off"
    assert service.get("ProcSubset", ["all"]) == ["all"]
    assert service["RestartPreventExitStatus"] == ["2"]
    assert service["Type"] == ["notify"]


def test_programs_and_folders_of_the_units_are_those_of_the_installer() -> None:
    text = INSTALLER.read_text()
    for unit in UNITS:
        service = read_unit(unit.read_text())["Service"]
        (start,) = service["ExecStart"]
        folder, _, name = start.split()[0].rpartition("/")
        assert folder == "/opt/ninfer/venv/bin"
        assert name in COMMANDS
        assert service["EnvironmentFile"] == ["-/etc/ninfer/ninfer.env"]
        assert unit.name in text
    assert f"commands=({' '.join(COMMANDS)})" in text


def _install(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # The two programs of systemd work on a folder; stand-ins take their place where they are not installed.
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:{_stand_ins(root.parent)}"}
    command = [str(INSTALLER), "--root", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def _stand_ins(folder: Path) -> Path:
    place = folder / "stand-ins"
    place.mkdir(exist_ok=True)
    for name in ("systemctl", "systemd-sysusers"):
        (place / name).write_text("#!/bin/sh\n")
        (place / name).chmod(0o755)
    return place


def _tree(root: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = f"{path.stat().st_mode:o} {path.read_bytes().hex()[:200]} {path.stat().st_size}"
        else:
            found[name] = f"{path.stat().st_mode:o}"
    # The user database is systemd-sysusers' own.
    return {
        name: what for name, what in found.items() if not re.match(r"etc/(\.pwd|passwd|group|shadow|gshadow)", name)
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "root"
    place.mkdir()
    return place


def test_installing_twice_is_installing_once(root: Path) -> None:
    first = _install(root)
    assert first.returncode == 0, first.stderr
    once = _tree(root)
    assert "opt/ninfer/app/engine/options.py" in once
    assert "etc/systemd/system/ninfer.service" in once
    assert once["usr/local/bin/ninfer-serve"] == "-> /opt/ninfer/venv/bin/ninfer-serve"
    assert once["etc/ninfer/ninfer.env"].startswith("100600 ")
    assert not [name for name in once if "__pycache__" in name or name.startswith("opt/ninfer/app/tests")]
    assert _install(root).returncode == 0
    assert _tree(root) == once


def test_an_update_keeps_settings_and_drops_files_that_went_away(root: Path) -> None:
    assert _install(root).returncode == 0
    (root / "etc/ninfer/ninfer.env").write_text("NINFER_PORT=9000\n")
    (root / "opt/ninfer/app/engine/old.py").write_text("")
    (root / "opt/ninfer/venv").mkdir()
    (root / "opt/ninfer/venv/stamp.json").write_text("{}")
    assert _install(root).returncode == 0
    assert (root / "etc/ninfer/ninfer.env").read_text() == "NINFER_PORT=9000\n"
    assert not (root / "opt/ninfer/app/engine/old.py").exists()
    assert (root / "opt/ninfer/venv/stamp.json").exists()


def test_uninstalling_leaves_models_and_settings_and_purging_leaves_nothing(root: Path) -> None:
    assert _install(root).returncode == 0
    (root / "var/lib/ninfer/state").mkdir(parents=True)
    (root / "var/lib/ninfer/state/keys").write_text("precious")
    done = _install(root, "--uninstall")
    assert done.returncode == 0, done.stderr
    left = {name for name in _tree(root) if not (root / name).is_dir()}
    assert left == {"etc/ninfer/ninfer.env", "var/lib/ninfer/state/keys"}
    assert _install(root, "--uninstall", "--purge").returncode == 0
    assert not {name for name in _tree(root) if not (root / name).is_dir()}
    assert _install(root, "--uninstall").returncode == 0, "taking away what is not there is no error"


def test_a_program_of_somebody_else_keeps_its_name(root: Path) -> None:
    (root / "usr/local/bin").mkdir(parents=True)
    (root / "usr/local/bin/ninfer").write_text("another one")
    done = _install(root)
    assert "belongs to something else" in done.stderr
    assert _install(root, "--uninstall").returncode == 0
    assert (root / "usr/local/bin/ninfer").read_text() == "another one"


def test_a_dry_run_touches_nothing(root: Path) -> None:
    done = _install(root, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "+ install -m 0644" in done.stdout
    assert _tree(root) == {}


@pytest.mark.parametrize("arguments", [["--purge"], ["--root", "/no/such/folder"], ["--verbose"]])
def test_wrong_arguments_end_with_two(arguments: list[str]) -> None:
    done = subprocess.run([str(INSTALLER), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "install_systemd:" in done.stderr
