"""Each check finds its fault on a described machine, names the command, and says nothing when all is well."""

import dataclasses
import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest

from appliance import doctor
from appliance.doctor import Facts, Finding
from appliance.doctor.facts import Artifact, CdiSpec, Gpu, NvmlFault, Place
from appliance.doctor.look import cdi_specs, look, place
from appliance.doctor.packages import NEEDED
from appliance.nvml import Condition, Handle, NvidiaMl, NvmlError
from appliance.settings import Settings, load_settings

NANO = Path(__file__).resolve().parents[2] / "etc" / "nano" / "nano.ninfer"
GIB = 1 << 30
NOW = datetime(2026, 12, 1, tzinfo=UTC).timestamp()


def at(path: str, **more: Any) -> Place:
    return Place(path=Path(path), present=Path(path), **more)


GPU = Gpu(name="RTX 3090", power_limit=350.0, power_default=350.0)
A100 = Gpu(name="A100", ecc=True, ecc_after_reboot=True, uncorrected_errors=0)
WELL = Facts(
    places=(at("/box"), at("/box/cache"), at("/box/state")),
    state=at("/box/state"),
    secrets=(at("/box/state/api.key", folder=False, mode=0o600),),
    free_bytes=100 * GIB,
    memory_total=64 * GIB,
    memory_available=60 * GIB,
    packages=dict.fromkeys(NEEDED, "1.0"),
    cards=("0000:01:00.0",),
    module="580.95.05",
    nodes=frozenset({"nvidia0", "nvidiactl", "nvidia-uvm"}),
    nvml_library="13.580.95",
    gpus=(GPU, A100),
    runtimes=("podman",),
    cdi=(CdiSpec(path=Path("/etc/cdi/nvidia.yaml"), versions=frozenset({"580.95.05"})),),
    now=NOW,
    newest=NOW - 60,
    synchronised=True,
    triton_cache=at("/box/cache/triton"),
    artifact=Artifact(bytes=18 * GIB, name="qwen", verified=True),
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    found = load_settings({"home": str(tmp_path / "home"), "model": str(NANO)}, {})
    found.make_folders()
    return found


def test_a_well_machine(settings: Settings) -> None:
    findings = doctor.examine(settings, WELL)
    assert [found.check for found in findings] == [name for name, _ in doctor.CHECKS]
    assert [found.line() for found in findings if found.level != "ok"] == []
    assert all(found.sentence for found in findings)


REFUSED = NvmlFault(kind="no_permission", message="Insufficient Permissions")
FAULTS: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("disk", "bad", {"free_bytes": GIB // 2}, "0.5 GiB free", "du -xh"),
    ("disk", "bad", {"artifact": Artifact(present=False, bytes=18 * GIB), "free_bytes": 18 * GIB}, "19.0 GiB", "du"),
    ("memory", "warning", {"memory_available": GIB}, "at least 2.0 GiB", "ps -eo"),
    ("memory", "bad", {"cards": (), "memory_total": 8 * GIB, "memory_available": 7 * GIB}, "20.0 GiB needed", "ps"),
    ("port", "bad", {"port_holder": "nginx (pid 12)"}, "nginx (pid 12)", "ninfer-appliance up --port 8081"),
    ("permissions", "bad", {"places": (at("/box", writable=False),), "user": 7}, "for user 7", "sudo chown -R 7:0"),
    ("permissions", "bad", {"places": (at("/box", folder=False),)}, "/box is a file", "mv /box /box.old"),
    ("permissions", "bad", {"state": at("/box/state", mode=0o755)}, "open to other users", "chmod 700 /box/state"),
    ("keys", "bad", {"secrets": (at("/box/a key", mode=0o640),)}, "can be read by others", "chmod 600 '/box/a key'"),
    ("packages", "bad", {"packages": {**WELL.packages, "torch": None}}, "lacks torch", "--setup-only"),
    ("clock", "bad", {"now": 1_000.0}, "1970-01-01", "timedatectl set-ntp true"),
    ("clock", "bad", {"now": 1e13}, "no certificate is valid", "timedatectl"),
    ("clock", "warning", {"newest": NOW + 10 * 86_400}, "10 days before this home was last written", "timedatectl"),
    ("clock", "warning", {"synchronised": False}, "no time service", "timedatectl"),
    ("device", "bad", {"module": None}, "no driver is loaded", "modprobe nvidia"),
    ("device", "bad", {"module": "470.1"}, "older than 525", "updater"),
    # C1
    ("nodes", "bad", {"nodes": WELL.nodes - {"nvidia-uvm"}}, "/dev/nvidia-uvm is missing", "nvidia-modprobe -u -c 0"),
    ("nodes", "bad", {"nodes": WELL.nodes - {"nvidiactl"}}, "/dev/nvidiactl is missing", "nvidia-modprobe"),
    ("nodes", "bad", {"nodes": WELL.nodes - {"nvidia0"}}, "no /dev/nvidia0", "nvidia-modprobe"),
    ("nodes", "bad", {"closed_nodes": frozenset({"nvidia0"}), "user": 7}, "user 7 may not open", "usermod -aG"),
    # C11
    (
        "driver", "bad", {"nvml_fault": NvmlFault(kind="mismatch", message="x"), "nvml_library": "13.590.44"},
        "module 580.95.05, library 13.590.44): reboot", "sudo reboot",
    ),
    ("driver", "bad", {"nvml_fault": NvmlFault(kind="no_driver", message="x")}, "libraries are not found", "install"),
    ("driver", "bad", {"nvml_fault": NvmlFault(kind="lost", message="x")}, "needs a reset", "sudo reboot"),
    ("driver", "bad", {"nvml_fault": NvmlFault(kind="not_ready", message="Unknown Error")}, "Unknown Error", "dmesg"),
    (  # C2
        "driver", "bad", {"nvml_fault": NvmlFault(kind="not_ready", message="Unknown Error"), "container": "docker"},
        "must be made again", "docker run --gpus all",
    ),
    # C10
    (
        "container", "bad", {"container": "podman", "nodes": frozenset()},
        "not given /dev/nvidia-uvm", "podman run --device nvidia.com/gpu=all",
    ),
    (
        "container", "bad", {"container": "docker", "nodes": frozenset()},
        "not given /dev/nvidia-uvm", "docker run --gpus all",
    ),
    (
        "container", "bad", {"container": "podman", "nvml_fault": REFUSED, "confined": True},
        "SELinux keeps", "podman run --device nvidia.com/gpu=all --security-opt label=disable",
    ),
    (
        "container", "bad", {"container": "podman", "closed_nodes": frozenset({"nvidia0"}), "confined": True},
        "/dev/nvidia0 may not be opened: SELinux", "label=disable",
    ),
    ("container", "bad", {"container": "podman", "nvml_fault": REFUSED}, "dropped the group", "keep-groups"),
    ("container", "bad", {"container": "docker", "nvml_fault": REFUSED}, "without the NVIDIA runtime", "--gpus all"),
    ("container", "bad", {"nvml_fault": REFUSED}, "NVML refuses user", "CUDA_VISIBLE_DEVICES=MIG-"),  # V7
    # C3
    ("cdi", "warning", {"cdi": ()}, "no specification", "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
    (
        "cdi", "warning", {"cdi": (CdiSpec(path=Path("/etc/cdi/n.yaml"), missing=("/lib/libcuda.so.570.1", "/b")),)},
        "names /lib/libcuda.so.570.1 and 1 more", "nvidia-ctk cdi generate",
    ),
    (
        "cdi", "warning", {"cdi": (CdiSpec(path=Path("/etc/cdi/n.yaml"), versions=frozenset({"570.1"})),)},
        "is of driver 570.1, but 580.95.05 is loaded", "nvidia-ctk cdi generate",
    ),
    (
        "power", "warning", {"gpus": (A100, dataclasses.replace(GPU, power_limit=150.0))},
        "card 1 (RTX 3090) is limited to 150 W of 350 W", "sudo nvidia-smi -i 1 -pl 350",
    ),
    ("ecc", "bad", {"gpus": (dataclasses.replace(A100, uncorrected_errors=3),)}, "3 memory errors", "sudo reboot"),
    ("ecc", "warning", {"gpus": (dataclasses.replace(A100, ecc_after_reboot=False),)}, "off at the next", "reboot"),
    # C9
    ("triton", "warning", {"triton_cache": at("/ro", writable=False)}, "/ro is not writable", "export TRITON"),
    ("triton", "bad", {"triton_cache": at("/data", runs_code=False)}, "noexec", "export TRITON_CACHE_DIR="),
    ("triton", "bad", {"triton_cache": at("/data", folder=False)}, "/data is a file", "mv /data"),
    ("artifact", "bad", {"artifact": Artifact(verified=False)}, "not the pinned bytes", "ninfer-appliance up"),
    ("artifact", "bad", {"artifact": Artifact(fault="truncated")}, "truncated", "ninfer-appliance up"),
    ("artifact", "bad", {"artifact": Artifact(present=False)}, "not here yet", "ninfer-appliance up"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "level", "change", "sentence", "command"), FAULTS)
def test_a_fault(
    settings: Settings, check: str, level: str, change: dict[str, Any], sentence: str, command: str
) -> None:
    findings = doctor.examine(settings, dataclasses.replace(WELL, **change))
    (found,) = [found for found in findings if found.check == check]
    assert (found.level, found.good) == (level, level != "bad")
    assert sentence in found.sentence
    assert command in found.command
    assert "\n" not in found.line()


def test_every_check_has_a_fault() -> None:
    assert {check for check, *_ in FAULTS} == {name for name, _ in doctor.CHECKS}


def bad(settings: Settings, **change: Any) -> set[str]:
    return {one.check for one in doctor.examine(settings, dataclasses.replace(WELL, **change)) if one.level != "ok"}


def test_one_fault_is_one_finding(settings: Settings) -> None:
    """What follows from a fault is not told as faults of its own."""
    assert bad(settings, cards=(), gpus=(), nodes=frozenset()) == set(), "no card is no fault"
    assert bad(settings, module=None, nodes=frozenset(), cdi=(), gpus=()) == {"device"}
    assert bad(settings, container="docker", nodes=frozenset(), cdi=()) == {"container"}
    assert bad(settings, own_box=True, memory_available=0) == set()
    assert bad(settings, runtimes=(), cdi=()) == set()


def test_a_device_that_was_asked_for(tmp_path: Path) -> None:
    flags = {"home": str(tmp_path), "model": str(NANO)}
    assert bad(load_settings(flags | {"device": "0"}, {}), cards=(), gpus=()) == {"device"}
    assert bad(load_settings(flags | {"device": "cpu"}, {}), module=None, nodes=frozenset(), memory_total=GIB) == set()


def test_repairs(settings: Settings) -> None:
    settings.state.chmod(0o755)
    file = settings.home / "settings.toml"
    file.write_text('api-key = "secret"\n')
    file.chmod(0o644)
    before = {one.check: one for one in doctor.examine(settings)}
    assert {name for name, one in before.items() if one.repair is not None} == {"permissions", "keys"}
    assert doctor.repair(list(before.values())) == []
    assert settings.state.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600
    after = {one.check: one for one in doctor.examine(settings)}
    assert after["permissions"].level == after["keys"].level == "ok"
    assert "1 file with keys" in after["keys"].sentence


def test_a_repair_that_fails_is_told(tmp_path: Path) -> None:
    def refuse() -> None:
        raise PermissionError("not yours")

    (line,) = doctor.repair([Finding(check="keys", level="bad", sentence="x", command="chmod 600 f", repair=refuse)])
    assert line == "keys: not yours; type: chmod 600 f"


def test_this_machine(settings: Settings) -> None:
    """No card here or there, but every fact can be had, and nothing is changed by looking."""
    before = {path: path.stat() for path in settings.home.rglob("*")}
    facts = look(settings, nvml=Management())
    assert facts.unseen == {}
    assert {path: path.stat() for path in settings.home.rglob("*")} == before
    assert facts.artifact.name
    assert (facts.artifact.fault, facts.gpus[0].power_limit) == ("", 200.0)
    assert all(facts.packages.values())
    assert facts.memory_total >= facts.memory_available > 0
    told = [msgspec.to_builtins(one.told()) for one in doctor.examine(settings, facts)]
    assert json.loads(json.dumps(told)) == told


def test_what_cannot_be_seen_is_a_finding(settings: Settings) -> None:
    class Broken(Management):
        def start(self) -> None:
            raise RuntimeError("boom")

    facts = look(settings, nvml=Broken())
    (found,) = [one for one in doctor.examine(settings, facts) if "could not look" in one.sentence]
    assert (found.check, found.level) == ("driver", "bad")
    assert "boom" in found.sentence


def test_a_container_with_its_own_root(settings: Settings, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for folder in ("run", "dev", "proc/self/attr", "etc/cdi"):
        (root / folder).mkdir(parents=True)
    (root / "run/.containerenv").touch()
    (root / "dev/nvidiactl").touch()
    (root / "proc/self/attr/current").write_text("system_u:system_r:container_t:s0:c1,c2\0")
    facts = look(settings, nvml=Management("no_permission"), root=root, environ={"TRITON_CACHE_DIR": "/nowhere/x"})
    assert (str(facts.container), facts.confined, set(facts.nodes)) == ("podman", True, {"nvidiactl"})
    assert facts.nvml_fault is not None
    assert facts.nvml_fault.kind == "no_permission"
    assert facts.triton_cache.present == Path("/")


class Management:
    """NVML with one card, or with a fault."""

    def __init__(self, fault: Any = None) -> None:
        self.fault = fault

    def start(self) -> None:
        if self.fault:
            raise NvmlError(self.fault, "refused")

    def stop(self) -> None:
        pass

    def library_version(self) -> str:
        return "13.580"

    def devices(self) -> list[Handle]:
        return [Handle("h", "card", "GPU-0", (8, 6))]

    def condition(self, handle: Handle) -> Condition:
        return Condition(200.0, 350.0, ecc=None, ecc_after_reboot=None, uncorrected_errors=None)


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_cdi_specifications(tmp_path: Path, form: str) -> None:
    library, gone = tmp_path / "libcuda.so.580.95.05", tmp_path / "libnvidia-ml.so.570.10"
    library.touch()
    if form == "yaml":
        mounts = "".join(f"  - hostPath: {path}\n    containerPath: /c\n" for path in (library, gone))
        text = f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits:\n  mounts:\n{mounts}"
    else:
        edits = {"mounts": [{"hostPath": str(path), "containerPath": "/c"} for path in (library, gone)]}
        text = json.dumps({"kind": "nvidia.com/gpu", "containerEdits": edits})
    (tmp_path / f"nvidia.{form}").write_text(text)
    (tmp_path / "other.yaml").write_text("kind: vendor.com/net\nhostPath: /not/there\n")
    (spec,) = cdi_specs([tmp_path, tmp_path / "absent"])
    assert spec.missing == (str(gone),)
    assert spec.versions == {"580.95.05", "570.10"}


def test_places(tmp_path: Path) -> None:
    assert place(tmp_path).exists
    deep = place(tmp_path / "a" / "b")
    assert (deep.exists, deep.present, deep.folder, deep.writable) == (False, tmp_path, True, True)
    (tmp_path / "a").touch(mode=0o640)
    blocked = place(tmp_path / "a" / "b")
    assert (blocked.present, blocked.folder, blocked.mode) == (tmp_path / "a", False, 0o640)


class Library:
    """The NVML module, as far as a card's condition goes. `refuses` answer with an error of that number."""

    NVMLError = pynvml.NVMLError
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0

    def __init__(self, **refuses: int) -> None:
        self._refuses = refuses

    def _answer(self, name: str, value: Any) -> Any:
        if name in self._refuses:
            raise pynvml.NVMLError(self._refuses[name])
        return value

    def nvmlDeviceGetEnforcedPowerLimit(self, raw: Any) -> Any:  # noqa: N802
        return self._answer("limit", 250_000)

    def nvmlDeviceGetPowerManagementDefaultLimit(self, raw: Any) -> Any:  # noqa: N802
        return self._answer("default", 350_000)

    def nvmlDeviceGetEccMode(self, raw: Any) -> Any:  # noqa: N802
        return self._answer("ecc", [1, 0])

    def nvmlDeviceGetTotalEccErrors(self, raw: Any, kind: int, counter: int) -> Any:  # noqa: N802
        assert (kind, counter) == (1, 0)
        return self._answer("errors", 2)


def test_a_cards_condition_by_nvml() -> None:
    handle = Handle("h", "card", "GPU-0", (8, 6))
    found = NvidiaMl(Library()).condition(handle)
    assert found == Condition(250.0, 350.0, ecc=True, ecc_after_reboot=False, uncorrected_errors=2)
    absent = pynvml.NVML_ERROR_NOT_SUPPORTED
    found = NvidiaMl(Library(limit=absent, default=absent, ecc=absent, errors=absent)).condition(handle)
    assert found == Condition(None, None, ecc=None, ecc_after_reboot=None, uncorrected_errors=None)
    with pytest.raises(NvmlError):
        NvidiaMl(Library(ecc=pynvml.NVML_ERROR_GPU_IS_LOST)).condition(handle)


def test_commands_are_quoted(tmp_path: Path) -> None:
    home = tmp_path / "my box"
    settings = load_settings({"home": str(home), "model": str(NANO)}, {})
    facts = dataclasses.replace(WELL, state=at(str(home / "state"), mode=0o755))
    (found,) = [one for one in doctor.examine(settings, facts) if one.check == "permissions"]
    assert shlex.split(found.command) == ["chmod", "700", str(home / "state")]
