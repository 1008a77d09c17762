"""Each check finds its fault, names the command, and says nothing when all is well."""

import dataclasses
from pathlib import Path

import pytest

from appliance import doctor
from appliance.doctor import Finding, Surroundings
from appliance.pci import Card
from appliance.settings import Settings, load_settings

NANO = Path(__file__).resolve().parents[2] / "etc" / "nano" / "nano.ninfer"
CARD = Card("0000:01:00.0", 0x2204)
WELL = Surroundings(
    free_bytes=lambda folder: 100 << 30,
    can_listen=lambda host, port: True,
    port_owner=lambda port: "nginx (pid 12)",
    cards=lambda: [CARD],
    driver=lambda: (580, 95, 5),
    device_nodes=lambda: [Path("/dev/nvidia0"), Path("/dev/nvidiactl"), Path("/dev/nvidia-uvm")],
    package_version=lambda name: "1.0",
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    found = load_settings({"home": str(tmp_path / "home"), "model": str(NANO)}, {})
    found.make_folders()
    return found


def finding(name: str, settings: Settings, world: Surroundings) -> Finding:
    (found,) = [found for found in doctor.examine(settings, world) if found.check == name]
    return found


def test_a_well_machine(settings: Settings) -> None:
    findings = doctor.examine(settings, WELL)
    assert [found.check for found in findings] == [name for name, _ in doctor.CHECKS]
    assert [found.line() for found in findings if not found.good] == []


def test_disk(settings: Settings, tmp_path: Path) -> None:
    world = dataclasses.replace(WELL, free_bytes=lambda folder: 5 << 30)
    assert finding("disk", settings, world).good
    large = load_settings({"home": str(tmp_path / "home"), "model": "qwen38-27b"}, {})
    found = finding("disk", large, world)
    assert not found.good
    assert "5.0 GiB free" in found.sentence
    assert "18.7 GiB needed" in found.sentence


def test_port(settings: Settings) -> None:
    world = dataclasses.replace(WELL, can_listen=lambda host, port: False)
    found = finding("port", settings, world)
    assert not found.good
    assert "nginx (pid 12)" in found.sentence
    assert found.command == "ninfer-appliance up --port 8081"
    assert finding("port", settings, dataclasses.replace(world, own_box_runs=lambda: True)).good


def test_permissions_can_be_repaired(settings: Settings) -> None:
    settings.state.chmod(0o755)
    found = finding("permissions", settings, WELL)
    assert not found.good
    assert found.repair is not None
    assert "chmod 700" in found.command
    repaired = doctor.repair(settings, doctor.examine(settings, WELL), WELL)
    assert all(found.good for found in repaired)
    assert settings.state.stat().st_mode & 0o777 == 0o700


def test_a_file_in_the_way(settings: Settings, tmp_path: Path) -> None:
    settings.cache.rmdir()
    settings.cache.write_text("")
    found = finding("permissions", settings, WELL)
    assert not found.good
    assert "is a file" in found.sentence


@pytest.mark.parametrize(
    ("change", "sentence", "command"),
    [
        ({"driver": lambda: None}, "no driver is loaded", "modprobe"),
        ({"driver": lambda: (470, 1)}, "older than 525", "updater"),
        ({"device_nodes": lambda: [Path("/dev/nvidiactl")]}, "/dev/nvidia-uvm is missing", "nvidia-modprobe -u"),
    ],
)
def test_device(settings: Settings, change: dict[str, object], sentence: str, command: str) -> None:
    found = finding("device", settings, dataclasses.replace(WELL, **change))  # type: ignore[arg-type]
    assert not found.good
    assert sentence in found.sentence
    assert command in found.command


def test_no_card(settings: Settings, tmp_path: Path) -> None:
    world = dataclasses.replace(WELL, cards=list)
    assert finding("device", settings, world).good
    asked = load_settings({"home": str(tmp_path / "home"), "model": str(NANO), "device": "0"}, {})
    assert not finding("device", asked, world).good


def test_artifact(settings: Settings, tmp_path: Path) -> None:
    broken = tmp_path / "broken.ninfer"
    broken.write_bytes(NANO.read_bytes()[:5000])
    found = finding("artifact", load_settings({"home": str(tmp_path), "model": str(broken)}, {}), WELL)
    assert not found.good
    assert str(broken) in found.sentence


def test_packages(settings: Settings) -> None:
    world = dataclasses.replace(WELL, package_version=lambda name: None if name == "torch" else "1")
    found = finding("packages", settings, world)
    assert not found.good
    assert "lacks torch" in found.sentence


def test_a_check_that_breaks_is_a_finding(settings: Settings) -> None:
    def explode(folder: Path) -> int:
        raise OSError("gone")

    found = finding("disk", settings, dataclasses.replace(WELL, free_bytes=explode))
    assert not found.good
    assert "gone" in found.sentence
