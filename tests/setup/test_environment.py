"""`tools/environment.py` and `run.sh`: which packages for which machine, and what is said when something is missing."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from appliance.pci import Card, driver_version, nvidia_cards
from tools import environment

ROOT = Path(__file__).resolve().parents[2]
WHEELS = tomllib.loads((ROOT / "etc" / "wheels.toml").read_text())
RTX_3090 = Card("0000:01:00.0", 0x2204)
RTX_2080 = Card("0000:01:00.0", 0x1E87)


@pytest.mark.parametrize(
    ("cards", "driver", "build"),
    [
        ([], None, "cpu"),
        ([RTX_3090], (580, 95, 5), "cuda130"),
        ([RTX_3090], (595,), "cuda130"),
        ([RTX_3090], (579, 1), "cuda126"),
        ([RTX_3090], (525,), "cuda126"),
        ([RTX_3090], None, "cpu"),
        ([RTX_2080], (580,), "cpu"),
        ([RTX_2080, RTX_3090], (580,), "cuda130"),
    ],
)
def test_the_build_follows_card_and_driver(cards: list[Card], driver: tuple[int, ...] | None, build: str) -> None:
    assert environment.choose_build(WHEELS, cards, driver, real_model=False) == build


def test_an_old_driver_names_the_update_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        environment.choose_build(WHEELS, [RTX_3090], (470, 1), real_model=False)
    assert stopped.value.code == 2
    assert "driver 470.1 is too old" in capsys.readouterr().err


def test_a_card_without_a_driver_stops_a_real_model_only(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        environment.choose_build(WHEELS, [RTX_3090], None, real_model=True)
    assert "no loaded driver: install it, then reboot" in capsys.readouterr().err


def test_an_unknown_forced_build_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        environment.choose_build(WHEELS, [], None, real_model=False, forced="rocm")
    assert "cpu, cuda130, cuda126" in capsys.readouterr().err


def test_cards_and_driver_are_read_from_the_kernel(tmp_path: Path) -> None:
    def device(address: str, vendor: str, kind: str, number: str) -> None:
        folder = tmp_path / address
        folder.mkdir()
        for name, value in (("vendor", vendor), ("class", kind), ("device", number)):
            (folder / name).write_text(value + "\n")

    device("0000:01:00.0", "0x10de", "0x030000", "0x2204")
    device("0000:01:00.1", "0x10de", "0x040300", "0x1aef")  # its audio function
    device("0000:02:00.0", "0x8086", "0x030000", "0x1234")
    assert nvidia_cards(tmp_path) == [RTX_3090]
    assert nvidia_cards(tmp_path / "absent") == []
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC: 13\n")
    assert driver_version(version) == (580, 95, 5)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May\n")
    assert driver_version(version) == (470, 256, 2)
    assert driver_version(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("os_release", "command"),
    [
        ('ID=debian\nVERSION_ID="12"\n', "apt install python3-venv"),
        ('ID=ubuntu\nID_LIKE="debian"\n', "apt install python3-venv"),
        ("ID=fedora\n", "dnf install python3"),
    ],
)
def test_package_names_follow_the_distribution(tmp_path: Path, os_release: str, command: str) -> None:
    file = tmp_path / "os-release"
    file.write_text(os_release)
    assert environment.distribution(file).venv == command


def checkout(tmp_path: Path) -> Path:
    """A copy of the scripts alone, in a folder with a blank in its name."""
    copy = tmp_path / "a checkout"
    copy.mkdir()
    for name in ("run.sh", "download-model.sh", "requirements.lock", "requirements-test.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, copy / name)
    for name in (
        "appliance/pci.py",
        "appliance/__init__.py",
        "tools/__init__.py",
        "tools/environment.py",
        "tools/environment.sh",
        "etc/wheels.toml",
    ):
        (copy / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    return copy


def run(copy: Path, *arguments: str, script: str = "run.sh", **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("NINFER_")}
    environ = clean | {"NINFER_PYTHON": sys.executable} | variables
    # In the copy: `python -m` looks beside itself first, and the whole program is where the tests run.
    return subprocess.run(
        [str(copy / script), *arguments],
        env=environ,
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_help_needs_nothing(tmp_path: Path) -> None:
    done = run(checkout(tmp_path), "--help")
    assert done.returncode == 0
    assert "qwen36-35b-a3b" in done.stdout


def test_no_room_names_the_folder_and_the_shortfall(tmp_path: Path) -> None:
    copy = checkout(tmp_path)
    wheels = copy / "etc" / "wheels.toml"
    wheels.write_text(wheels.read_text().replace("2_000_000_000", "2_000_000_000_000_000"))
    done = run(copy, "--setup-only", NINFER_TORCH_BUILD="cpu")
    assert done.returncode == 2
    assert str(copy) in done.stderr
    assert "GiB there, or set NINFER_VENV" in done.stderr
    assert not (copy / ".venv").exists()


def test_a_half_made_environment_is_removed(tmp_path: Path) -> None:
    copy = checkout(tmp_path)
    rubbish = copy / ".venv" / "lib" / "rubbish"
    rubbish.parent.mkdir(parents=True)
    rubbish.write_text("x")
    # Nothing can be installed here, so the second attempt ends at the installer, after the removal.
    done = run(copy, "--setup-only", NINFER_TORCH_BUILD="cpu", PIP_NO_INDEX="1", PIP_FIND_LINKS="", UV_OFFLINE="1")
    assert done.returncode == 1
    assert "half-made" in done.stderr
    assert not rubbish.exists()
    assert "set PIP_FIND_LINKS" in done.stderr.splitlines()[-1]
    assert not (copy / ".venv" / "stamp.json").exists()


def stamped(tmp_path: Path) -> Path:
    """A checkout whose environment is current: its Python is this one."""
    copy = checkout(tmp_path)
    script = "import json, sys, tomllib; sys.path.insert(0, {0!r}); from tools import environment as e\n"
    script += (
        "b = tomllib.loads(e.WHEELS.read_text())['cpu']; print(json.dumps({{'runtime': e.fingerprint(b, e.LOCK)}}))"
    )
    stamp = subprocess.run(
        [sys.executable, "-c", script.format(str(copy))], capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(stamp)
    python = copy / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (copy / ".venv" / "stamp.json").write_text(stamp)
    return copy


def test_a_stamped_environment_is_used_as_it_is(tmp_path: Path) -> None:
    copy = stamped(tmp_path)
    done = run(copy, "--setup-only", NINFER_TORCH_BUILD="cpu")
    assert (done.returncode, done.stderr) == (0, "")
    done = run(copy, NINFER_TORCH_BUILD="cpu")
    assert "appliance.cli" in done.stderr  # it went on to the appliance, which this copy does not have


REPORT = """
import json, os, sys
print(json.dumps([sys.argv[1:], {name: text for name, text in os.environ.items() if name.startswith("NINFER_")}]))
"""


def asked(copy: Path, *arguments: str, script: str = "run.sh", **variables: str) -> tuple[list[str], dict[str, str]]:
    """Arguments and variables that the program gets, from a program that only reports them."""
    (copy / "appliance" / "cli.py").write_text(REPORT)
    (copy / "downloader").mkdir(exist_ok=True)
    (copy / "downloader" / "__main__.py").write_text(REPORT)
    done = run(copy, *arguments, script=script, NINFER_TORCH_BUILD="cpu", **variables)
    assert done.returncode == 0, done.stderr
    words, environ = json.loads(done.stdout)
    return words, environ


def test_the_model_is_a_word_a_variable_or_the_embedded_one(tmp_path: Path) -> None:
    copy = stamped(tmp_path)
    assert asked(copy)[0] == ["up"]
    assert asked(copy, "--port", "1")[0] == ["up", "--port", "1"]
    assert asked(copy, "qwen38-27b", "c8", "--port", "1")[0] == [
        "up", "--model", "qwen38-27b", "--profile", "c8", "--port", "1",
    ]  # fmt: skip
    words, environ = asked(copy, NINFER_MODEL="qwen36-27b", NINFER_PROFILE="tuned")
    assert words == ["up"], "the appliance reads the variables itself"
    assert environ["NINFER_MODEL"] == "qwen36-27b"


def test_both_scripts_agree_where_artifacts_are(tmp_path: Path) -> None:
    copy = stamped(tmp_path)

    def folders(**variables: str) -> tuple[str, str]:
        """Home and folder of artifacts."""
        start = asked(copy, "qwen38-27b", **variables)[1]
        words, fetch = asked(copy, "qwen38-27b", "--verify", script="download-model.sh", **variables)
        assert words == ["qwen38-27b", "--verify"]
        assert start["NINFER_MODEL_DIR"] == fetch["NINFER_MODEL_DIR"]
        return start["NINFER_HOME"], start["NINFER_MODEL_DIR"]

    home, models = str(copy / ".ninfer"), copy / "models"
    assert folders() == (home, str(models)), "beside the scripts"
    assert folders(NINFER_MODEL_DIR="any/where") == (home, "any/where"), "taken literally"
    assert folders(NINFER_HOME="/srv/n") == ("/srv/n", "/srv/n/models")
    above = tmp_path / "models"
    above.mkdir()
    assert folders() == (home, str(models)), "an empty folder is nobody's"
    (above / "x.ninfer").write_bytes(b"")
    assert folders() == (home, str(above))
    (copy / ".ninfer").mkdir()
    (copy / ".ninfer" / "settings.toml").write_text('port = 1\nmodel-dir = "/mnt/big disk"\n')
    assert folders() == (home, "/mnt/big disk")
    assert "NINFER_MODEL_DIR" not in asked(copy, "nano", "--home", "/elsewhere")[1]


def test_the_downloader_says_how_it_is_used(tmp_path: Path) -> None:
    copy = checkout(tmp_path)
    done = run(copy, "--help", script="download-model.sh")
    assert done.returncode == 0
    assert "qwen38-27b" in done.stdout
    done = run(copy, script="download-model.sh")
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: ./download-model.sh MODEL" in done.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck: tools/nightly_packages.sh")
def test_the_scripts_are_clean() -> None:
    for name in ("run.sh", "download-model.sh", "tools/environment.sh"):
        assert b"\r" not in (ROOT / name).read_bytes()
        assert os.access(ROOT / name, os.X_OK) == (not name.startswith("tools/"))
    subprocess.run(["shellcheck", "-x", "run.sh", "download-model.sh", "tools/environment.sh"], cwd=ROOT, check=True)
