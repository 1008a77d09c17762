"""Make and keep the virtual environment beside the checkout. Standard library only.

`python3 tools/environment.py [--test]` prints the environment's folder when it is ready. A stamp holds the hash of
everything the environment was made from, so a second start only compares it. A half-made environment has no stamp
and is made again. Behaviours are those of `spec/setup.md`.
"""

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from appliance.pci import Card, driver_version, nvidia_cards  # noqa: E402 - runs without an installed package

LOCK = ROOT / "requirements.lock"
TEST_LOCK = ROOT / "requirements-test.lock"
WHEELS = ROOT / "etc" / "wheels.toml"
OLDEST, NEWEST = (3, 11), (3, 14)  # what the pinned wheels exist for
GIB = 2**30


@dataclass(frozen=True)
class Distribution:
    """Names of packages where this system keeps them."""

    name: str
    venv: str
    compiler: str
    update: str


def stop(message: str, status: int = 2) -> NoReturn:
    """End with one line that says what to type."""
    print(f"setup: {message}", file=sys.stderr)
    raise SystemExit(status)


def say(message: str) -> None:
    """One line of progress."""
    print(f"setup: {message}", file=sys.stderr, flush=True)


def distribution(os_release: Path = Path("/etc/os-release")) -> Distribution:
    """The system's family, from /etc/os-release."""
    text = os_release.read_text(encoding="utf-8") if os_release.exists() else ""
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    family = f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".replace('"', "")
    if "fedora" in family or "rhel" in family:
        return Distribution("fedora", "dnf install python3", "dnf install gcc python3-devel", "dnf update")
    if "arch" in family:
        return Distribution("arch", "pacman -S python", "pacman -S gcc python", "pacman -Syu")
    return Distribution(
        "debian", "apt install python3-venv", "apt install gcc python3-dev", "apt update && apt full-upgrade"
    )


def choose_build(
    wheels: dict[str, Any], cards: list[Card], driver: tuple[int, ...] | None, *, real_model: bool, forced: str = ""
) -> str:
    """The table of etc/wheels.toml for a machine with these cards and this kernel driver.

    A card without a driver stops a real model; the embedded one may run on the CPU.
    """
    if forced:
        if forced not in wheels:
            stop(f"NINFER_TORCH_BUILD is {forced!r}; {WHEELS.name} has {', '.join(wheels)}")
        return forced
    if not cards:
        return "cpu"
    if not any(card.supported for card in cards):
        say(f"the card at {cards[0].address} is older than compute capability 8.0: the CPU build is used")
        return "cpu"
    if driver is None:
        message = f"there is an NVIDIA card at {cards[0].address} but no loaded driver: install it, then reboot"
        if real_model:
            stop(message)
        say(f"{message}. The embedded model runs on the CPU meanwhile")
        return "cpu"
    for name, build in sorted(wheels.items(), key=lambda item: -item[1].get("minimum_driver", -1)):
        if driver[0] >= build.get("minimum_driver", 10**6):
            return name
    version = ".".join(map(str, driver))
    stop(f"driver {version} is too old for every build in {WHEELS.name}; update it: {distribution().update}")


def fingerprint(build: dict[str, Any], lock: Path) -> str:
    """Hash of everything an environment is made from."""
    digest = hashlib.sha256(lock.read_bytes())
    digest.update(json.dumps([build, sys.version, str(ROOT)], sort_keys=True).encode())
    digest.update((ROOT / "pyproject.toml").read_bytes())
    return digest.hexdigest()


def ensure(folder: Path, *, test: bool, real_model: bool, check: bool = False) -> Path:
    """Return the environment's folder, making what is missing; with `check`, end with status 3 instead."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        stop(f"Python {platform.python_version()} has no wheels here; install one of 3.11 to 3.14")
    wheels = tomllib.loads(WHEELS.read_text(encoding="utf-8"))
    forced = os.environ.get("NINFER_TORCH_BUILD", "")
    name = choose_build(wheels, nvidia_cards(), driver_version(), real_model=real_model, forced=forced)
    build = wheels[name]
    wanted = {"runtime": fingerprint(build, LOCK)}
    if test:
        wanted["test"] = fingerprint(build, TEST_LOCK)
    if wanted.items() <= _stamp(folder).items():
        return folder
    if check:
        stop(f"{folder} is not up to date", 3)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("a+") as lock:
        _lock(lock.fileno(), folder)
        have = _stamp(folder)
        if wanted.items() <= have.items():
            return folder
        if have.get("runtime") != wanted["runtime"]:
            _make(folder, name, build)
        _finish(folder, wanted, have, build)
    return folder


def _make(folder: Path, name: str, build: dict[str, Any]) -> None:
    _check_space(folder, int(build["disk_bytes"]))
    if name != "cpu":
        _check_compiler()
    if folder.exists():
        say(f"removing an environment of another version or a half-made one: {folder}")
        shutil.rmtree(folder)
    uv = shutil.which("uv")
    if uv is not None:
        say(f"making {folder} with uv")
        command = [uv, "venv", "--quiet", "--clear", "--seed", "--python", sys.executable, str(folder)]
        if subprocess.run(command, check=False).returncode == 0:
            return
        say("uv could not make it; trying without")
    _check_venv()
    say(f"making {folder}")
    venv.EnvBuilder(with_pip=True, symlinks=True, clear=True).create(folder)


def _finish(folder: Path, wanted: dict[str, str], have: dict[str, str], build: dict[str, Any]) -> None:
    (folder / "stamp.json").unlink(missing_ok=True)
    # Beside the environment: on Fedora /tmp is memory, and wheels are gigabytes.
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = os.environ | {"TMPDIR": str(temporary), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    lock = TEST_LOCK if "test" in wanted else LOCK
    say(f"installing locked packages ({lock.name})")
    _install(folder, ["--require-hashes", "-r", str(lock)], environment)
    if have.get("runtime") != wanted["runtime"]:
        _install_torch(folder, build, environment)
    _install(folder, ["--no-deps", "--no-build-isolation", "-e", str(ROOT)], environment, uv=False)
    shutil.rmtree(temporary, ignore_errors=True)
    stamp = folder / "stamp.json.new"
    stamp.write_text(json.dumps(wanted), encoding="utf-8")
    stamp.replace(folder / "stamp.json")
    say("ready")


def _install_torch(folder: Path, build: dict[str, Any], environment: dict[str, str]) -> None:
    requirements = list(build["requirements"])
    say(f"installing {' '.join(requirements)}")
    # A filled wheel folder serves a machine without a network, and is asked first because it answers at once.
    if _find_links_has(folder, requirements, environment):
        return
    index = os.environ.get("NINFER_TORCH_INDEX") or str(build["index"])
    advice = f"{index} (NINFER_TORCH_INDEX names another place): "
    _install(folder, ["--index-url", index, *requirements], environment, advice=advice)


def _find_links_has(folder: Path, requirements: list[str], environment: dict[str, str]) -> bool:
    command = [_python(folder), "-m", "pip", "install", "--quiet", "--no-index", *requirements]
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0


def _install(
    folder: Path, arguments: list[str], environment: dict[str, str], *, uv: bool = True, advice: str = ""
) -> None:
    program = shutil.which("uv") if uv else None
    if program is not None:
        command = [program, "pip", "install", "--quiet", "--python", _python(folder), *arguments]
        if subprocess.run(command, env=environment, check=False).returncode == 0:
            return
        say("uv could not install; trying pip")
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    command = [_python(folder), "-m", "pip", "install", *quiet, *arguments]
    done = subprocess.run(command, env=environment, stdout=sys.stderr, check=False)
    if done.returncode:
        stop(
            f"{advice}the installer failed (its message is above); check the network or proxy, or fill a wheel "
            "folder and set PIP_FIND_LINKS, then run again: ./run.sh",
            1,
        )


def _check_venv() -> None:
    try:
        import ensurepip  # noqa: F401, PLC0415 - its absence is what is asked
    except ImportError:
        stop(f"this Python has no ensurepip; install it: {distribution().venv}")


def _check_compiler() -> None:
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not any(map(shutil.which, ("cc", "gcc", "clang"))) or not header.exists():
        stop(f"GPU kernels are compiled here, which needs a C compiler and Python.h: {distribution().compiler}")


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder.parent).free
    if free < needed:
        stop(
            f"{folder.parent} has {free / GIB:.1f} GiB free and the environment needs {needed / GIB:.1f} GiB: "
            f"free {(needed - free) / GIB:.1f} GiB there, or set NINFER_VENV to a folder with room"
        )


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = os.pread(descriptor, 32, 0).decode(errors="replace") or "unknown"
        say(f"another setup of {folder} runs (process {owner}); waiting for it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)


def _stamp(folder: Path) -> dict[str, str]:
    try:
        stamp = json.loads((folder / "stamp.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) and Path(_python(folder)).exists() else {}


def _python(folder: Path) -> str:
    return str(folder / "bin" / "python")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--test", action="store_true", help="also what the tests need")
    parser.add_argument("--check", action="store_true", help="make nothing; status 3 when something is missing")
    parser.add_argument("--real-model", action="store_true", help="a model that needs a working card will be served")
    arguments = parser.parse_args()
    folder = Path(os.environ.get("NINFER_VENV") or ROOT / ".venv").absolute()
    try:
        print(ensure(folder, test=arguments.test, real_model=arguments.real_model, check=arguments.check))
    except OSError as error:
        stop(f"{error.filename or folder}: {error.strerror}; free the disk or set NINFER_VENV to another folder", 1)
    except subprocess.CalledProcessError as error:
        stop(f"{' '.join(map(str, error.cmd))} failed with status {error.returncode}", 1)


if __name__ == "__main__":
    main()
