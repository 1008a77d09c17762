"""The probe against described hardware: it waits for what is coming, never for ever, and names what is wrong."""

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from appliance.cuda_memory import query, runtime_memory
from appliance.machine import Machine
from appliance.nvml import FaultKind, Handle, NvidiaMl, NvmlError
from appliance.probe import DRIVER_SECONDS, SETTLE_SECONDS, LinuxHost, Senses, SystemClock, probe
from engine.plan import GIB, MIB
from tests.appliance.described import DescribedHost, DescribedNvml, HandClock


def look(
    nvml: DescribedNvml,
    host: DescribedHost | None = None,
    *,
    environ: dict[str, str] | None = None,
    runtime: tuple[int, int] | None = None,
    patient: bool = True,
    gone: tuple[int, ...] = (),
) -> tuple[Machine, list[str]]:
    lines: list[str] = []
    senses = Senses(
        host=host or DescribedHost(nvml.clock),
        nvml=nvml,
        clock=nvml.clock,
        runtime_memory=lambda uuid: runtime,
        environ=environ or {},
        report=lines.append,
    )
    found = probe(senses, folder=Path("/models"), wait_for_driver=patient, gone=gone)
    assert nvml.stops == (1 if nvml.clock.now >= nvml.up_at else 0)
    return found, lines


def test_a_settled_card_is_read_in_a_second() -> None:
    clock = HandClock()
    found, lines = look(DescribedNvml(clock))
    assert clock.now - 100 == 1.0
    assert lines == []
    card = found.cards[0]
    # Free is what the driver calls free; what it reserves is neither free nor used (case V9).
    assert card.free_bytes == 23_766 * MIB
    assert (card.used_bytes, card.reserved_bytes) == (500 * MIB, 310 * MIB)
    assert (found.driver, found.fault, found.cpu_count) == ("580.95.05", "", 8)


def test_memory_of_a_dying_process_is_waited_for() -> None:
    """Case V1: free memory rises from 6 to 22 GiB over 8 s."""
    rising = [(100 + 0.25 * step, 6144 + 512 * step) for step in range(33)]
    clock = HandClock()
    found, lines = look(DescribedNvml(clock, free_mib=[(0.0, 6144), *rising]))
    assert found.cards[0].free_bytes == 22 * GIB
    assert 8 < clock.now - 100 < 12
    assert any("waiting for free memory" in line for line in lines)
    assert found.notes == ()


def test_memory_that_never_settles_is_planned_from_the_least_reading_and_said() -> None:
    moving = [(100 + 0.5 * step, 8000 + (500 if step % 2 else 0)) for step in range(200)]
    clock = HandClock()
    found, _ = look(DescribedNvml(clock, free_mib=moving))
    assert found.cards[0].free_bytes == 8000 * MIB
    assert clock.now - 100 <= SETTLE_SECONDS + 1
    assert "did not settle in 60 s (it kept changing)" in found.notes[0]


def test_our_own_process_must_be_gone() -> None:
    clock = HandClock()
    nvml = DescribedNvml(clock, holders=((77, 105.0), (78, 999.0)))
    host = DescribedHost(clock, names={78: "Xorg"})
    found, _ = look(nvml, host, gone=(77,))
    assert 105 <= clock.now < 107
    assert [(process.pid, process.name) for process in found.cards[0].processes] == [(78, "Xorg")]
    clock = HandClock()
    found, _ = look(DescribedNvml(clock, holders=((77, 999.0),)), gone=(77,))
    assert "process 77 still holds memory" in found.notes[0]


def test_a_driver_that_is_still_coming_up_is_waited_for() -> None:
    """Case C1: CUDA's nodes are missing for 20 s after power-on."""
    clock = HandClock()
    nvml = DescribedNvml(clock, up_at=112.0)
    found, lines = look(nvml, DescribedHost(clock, nodes_at=120.0))
    assert len(found.cards) == 1
    assert lines[0] == "waiting for GPU: /dev/nvidiactl missing"
    assert 120 <= clock.now < 125
    assert nvml.starts < 10


def test_a_driver_that_never_comes_is_a_fault_within_a_bounded_time() -> None:
    clock = HandClock()
    found, lines = look(DescribedNvml(clock, up_at=1e9))
    assert found.cards == ()
    assert found.fault == "NVML says Unknown Error; a container that lost its device must be made again"
    assert found.pci_cards == ("0000:01:00.0",)
    assert clock.now - 100 <= DRIVER_SECONDS
    assert lines[-1] == "waiting for GPU: Unknown Error"


def test_nobody_waits_who_does_not_need_the_card() -> None:
    clock = HandClock()
    found, _ = look(DescribedNvml(clock, up_at=1e9, down="no_driver"), DescribedHost(clock, module=None), patient=False)
    assert clock.now == 100
    assert "no NVIDIA driver is loaded" in found.fault
    clock = HandClock()
    found, _ = look(DescribedNvml(clock, up_at=1e9, down="no_driver"), DescribedHost(clock, cards=()))
    assert clock.now == 100
    assert (found.fault, found.pci_cards) == ("", ())


def test_missing_nodes_are_noted_when_they_never_come() -> None:
    clock = HandClock()
    found, _ = look(DescribedNvml(clock), DescribedHost(clock, nodes_at=1e9))
    assert len(found.cards) == 1
    assert "/dev/nvidiactl is missing" in found.notes[0]


@pytest.mark.parametrize(
    ("kind", "module", "words"),
    [
        ("mismatch", "580.95.05", "differ (module 580.95.05, library 13.590.44): reboot"),
        ("no_driver", "580.95.05", "kernel driver 580.95.05 is loaded but NVML is not found"),
        ("no_driver", None, "no NVIDIA driver is loaded"),
        ("lost", "580.95.05", "needs a reset or a reboot"),
        ("other", "580.95.05", "NVML says"),
    ],
)
def test_faults_say_what_to_do(kind: FaultKind, module: str | None, words: str) -> None:
    clock = HandClock()
    nvml = DescribedNvml(clock, up_at=1e9, down=kind)
    found, _ = look(nvml, DescribedHost(clock, module=module))
    assert words in found.fault
    if kind in ("mismatch", "lost"):
        assert clock.now == 100  # waiting cannot help (case C11)


def test_a_slice_whose_memory_nvml_refuses_is_sized_by_the_runtime() -> None:
    """Case V7: never from the card that the slice is part of."""
    clock = HandClock()
    nvml = DescribedNvml(clock, refuses_memory="no_permission")
    found, _ = look(nvml, runtime=(9 * GIB, 10 * GIB))
    assert (found.cards[0].free_bytes, found.cards[0].total_bytes) == (9 * GIB, 10 * GIB)
    assert found.notes == (
        "NVML refuses the memory of NVIDIA GeForce RTX 3090 (Insufficient Permissions); "
        "sized from the CUDA runtime instead",
    )
    found, _ = look(DescribedNvml(HandClock(), refuses_memory="no_permission"), runtime=None)
    assert found.cards == ()
    assert "CUDA_VISIBLE_DEVICES=MIG-" in found.fault


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("1", ["MIG-b"]),
        ("1,0", ["MIG-b", "GPU-a"]),
        ("MIG-b", ["MIG-b"]),
        ("GPU-a,9,MIG-b", ["GPU-a"]),
        ("-1", []),
        ("", []),
    ],
)
def test_only_devices_that_cuda_sees_are_counted(visible: str, uuids: list[str]) -> None:
    handles = (Handle(0, "A", "GPU-a", (8, 6)), Handle(1, "B", "MIG-b", (8, 0)))
    found, _ = look(DescribedNvml(HandClock(), handles=handles), environ={"CUDA_VISIBLE_DEVICES": visible})
    assert [card.uuid for card in found.cards] == uuids
    assert [card.index for card in found.cards] == list(range(len(uuids)))
    assert bool(found.notes) == (len(uuids) < 2)


class Library(SimpleNamespace):
    """The module nvidia-ml-py with answers of our choice; constants and errors are the real ones."""

    def __init__(self, **answers: Any) -> None:
        real = {name: getattr(pynvml, name) for name in ("NVMLError", "nvmlMemory_v2", "NVML_DEVICE_MIG_ENABLE")}
        super().__init__(
            **real,
            nvmlInit=lambda: None,
            nvmlDeviceGetCount=lambda: 1,
            nvmlDeviceGetHandleByIndex=lambda index: f"card{index}",
            nvmlDeviceGetMigMode=refuse(pynvml.NVML_ERROR_NOT_SUPPORTED),
            nvmlDeviceGetName=lambda raw: f"name of {raw}",
            nvmlDeviceGetUUID=lambda raw: f"uuid of {raw}",
            nvmlDeviceGetCudaComputeCapability=lambda raw: [8, 6],
        )
        self.__dict__.update(answers)


def refuse(code: int) -> Any:
    def answer(*arguments: Any) -> Any:
        raise pynvml.NVMLError(code)

    return answer


def test_memory_of_version_two_is_preferred() -> None:
    """Case V9: version 1 counts what the driver reserves as used."""

    def memory(raw: str, version: int | None = None) -> SimpleNamespace:
        if version is None:
            return SimpleNamespace(total=24_576, used=810, free=23_766)
        return SimpleNamespace(total=24_576, used=500, free=23_766, reserved=310)

    nvml = NvidiaMl(Library(nvmlDeviceGetMemoryInfo=memory))
    [handle] = nvml.devices()
    assert handle == Handle("card0", "name of card0", "uuid of card0", (8, 6))
    reading = nvml.memory(handle)
    assert (reading.total, reading.free, reading.used, reading.reserved) == (24_576, 23_766, 500, 310)

    def old(raw: str, version: int | None = None) -> SimpleNamespace:
        if version is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return memory(raw)

    reading = NvidiaMl(Library(nvmlDeviceGetMemoryInfo=old)).memory(handle)
    assert (reading.free, reading.used, reading.reserved) == (23_766, 810, 0)


def test_a_split_card_is_its_slices() -> None:
    def slice_at(card: str, index: int) -> str:
        if index == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return f"slice{index}"

    library = Library(
        nvmlDeviceGetMigMode=lambda raw: [1, 1],
        nvmlDeviceGetMaxMigDeviceCount=lambda raw: 3,
        nvmlDeviceGetMigDeviceHandleByIndex=slice_at,
    )
    assert [handle.raw for handle in NvidiaMl(library).devices()] == ["slice0", "slice2"]


def test_programs_of_both_kinds_are_listed_once() -> None:
    library = Library(
        nvmlDeviceGetComputeRunningProcesses=lambda raw: [SimpleNamespace(pid=7, usedGpuMemory=5)],
        nvmlDeviceGetGraphicsRunningProcesses=lambda raw: [
            SimpleNamespace(pid=7, usedGpuMemory=5),
            SimpleNamespace(pid=8, usedGpuMemory=None),
        ],
    )
    handle = Handle("card0", "", "", (8, 6))
    assert NvidiaMl(library).processes(handle) == [(7, 5), (8, None)]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "mismatch"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no_permission"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "no_driver"),
        (pynvml.NVML_ERROR_UNKNOWN, "not_ready"),
        (pynvml.NVML_ERROR_MEMORY, "other"),
    ],
)
def test_error_codes_have_kinds(code: int, kind: str) -> None:
    nvml = NvidiaMl(Library(nvmlInit=refuse(code), nvmlDeviceGetMemoryInfo=refuse(code)))
    with pytest.raises(NvmlError) as caught:
        nvml.start()
    assert caught.value.kind == kind
    with pytest.raises(NvmlError):
        nvml.memory(Handle("card0", "", "", (8, 6)))


class Driver:
    """The CUDA driver library as `query` calls it."""

    def __init__(self, failing: str = "") -> None:
        self.failing, self.calls = failing, list[str]()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == "cuMemGetInfo_v2":
                for place, value in zip(arguments, (9, 10), strict=True):
                    ctypes.cast(place, ctypes.POINTER(ctypes.c_size_t))[0] = value
            return 100 if name == self.failing else 0

        return call


def test_the_runtime_is_asked_in_order() -> None:
    driver = Driver()
    assert query(driver) == (9, 10)
    assert driver.calls[0] == "cuInit"
    assert driver.calls[-1] == "cuMemGetInfo_v2"
    with pytest.raises(OSError, match="cuInit answered 100"):
        query(Driver("cuInit"))


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="a driver is loaded here")
def test_without_cuda_the_runtime_has_no_answer() -> None:
    assert runtime_memory("GPU-0") is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel")
def test_this_machine_can_be_probed(tmp_path: Path) -> None:
    senses = Senses(
        host=LinuxHost(), nvml=NvidiaMl(), clock=SystemClock(), runtime_memory=lambda uuid: None, environ={}
    )
    found = probe(senses, folder=tmp_path / "not" / "there", wait_for_driver=False)
    assert 0 < found.host_available_bytes <= found.host_total_bytes
    assert found.disk_free_bytes > 0
    assert found.cpu_count >= 1
