"""From settings and a machine to a plan: which device, which bytes, which rung."""

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from appliance import cuda_memory
from appliance.machine import Card, Machine
from appliance.model_facts import ModelFacts, facts
from appliance.nvml import NvidiaMl
from appliance.probe import LinuxHost, Senses, SystemClock, probe
from appliance.profiles import apply, launch_profile
from engine.exits import ConfigurationError, NoDeviceError
from engine.log import get_logger
from engine.options import Resolved
from engine.plan import (
    GIB,
    MIB,
    SUPPORTED,
    TORCH,
    TORCH_CPU,
    Constants,
    Plan,
    Request,
    Settings,
    explain,
    make,
    required,
    unsupported,
)
from engine.plan.ladder import FLAGS

log = get_logger(__name__)

LEAST_CAPABILITY = (8, 0)
HOST_RESERVE_BYTES = GIB  # stays with the rest of the machine when the engine runs on the host


class Box(Protocol):
    """What sizing needs of the box's settings."""

    @property
    def resolved(self) -> Resolved: ...
    @property
    def model(self) -> str:
        """Catalog name, or path of an artifact."""
        ...

    @property
    def artifact(self) -> Path:
        """Where the artifact is, or will be."""
        ...

    @property
    def catalog(self) -> Path: ...
    @property
    def variables(self) -> Mapping[str, str]:
        """Launch variables, which adjust the profile."""
        ...

    @property
    def models(self) -> Path:
        """Folder of artifacts."""
        ...


@dataclass(frozen=True, kw_only=True)
class Device:
    """The device that was chosen. `card` is None for the host. `free_bytes` is what a plan may take."""

    name: str
    card: Card | None
    free_bytes: int
    notes: tuple[str, ...] = ()


def probe_machine(box: Box, report: Callable[[str], None], gone: Collection[int] = ()) -> Machine:
    """Look at this machine; `report` gets a line for each wait.

    A driver that is still coming up is waited for when the model needs it. `gone` are processes of ours that have
    ended and whose memory must be back first.
    """
    model = facts(box.model, box.artifact, box.catalog)
    device = box.resolved.options.device
    senses = Senses(
        host=LinuxHost(),
        nvml=NvidiaMl(),
        clock=SystemClock(),
        runtime_memory=cuda_memory.runtime_memory,
        environ=os.environ,
        report=report,
    )
    patient = device != "cpu" and not (model.small and device == "auto")
    return probe(senses, folder=box.models, wait_for_driver=patient, gone=gone)


def make_plan(
    box: Box,
    machine: Machine,
    *,
    constants: Constants | None = None,
    supported: frozenset[str] | None = SUPPORTED,
) -> Plan:
    """The plan for this box on `machine`. The profile is applied here; applying it before changes nothing.

    `supported` are the features of the engine that is to run it; None plans for any.

    Raises:
        ConfigurationError: settings contradict each other, the model lacks what they select, or the engine does.
        NoDeviceError: no device may run this model.
        NoPlanError: nothing that may be changed makes it fit.
    """
    model = facts(box.model, box.artifact, box.catalog)
    profile = launch_profile(box.resolved, box.variables)
    resolved = apply(box.resolved, profile)
    options, extras = resolved.options, profile.extras
    device = choose_device(machine, options.device, model)
    on_card = device.card is not None
    settings = Settings(
        kv_dtype=options.kv_dtype,
        speculation=extras.speculation,
        prefill_chunk=options.prefill_chunk,
        prefill_cublas=extras.prefill_cublas,
        state_fp16=options.gdn_state_fp16,
        vision=extras.vision,
        device_state_slots=extras.device_state_slots,
    )
    packed = on_card and model.packed and not model.small
    weights = model.device_bytes(extras.speculation, mtp_experts_q4=extras.mtp_experts_q4)
    if not on_card:
        weights = model.host_bytes()
    elif not packed and model.parameters is not None:
        weights = max(weights, 2 * model.parameters)  # decoded to bf16
    notes = (*machine.notes, *device.notes)
    need = _need_on_disk(box, model)
    if machine.disk_free_bytes < need:
        notes += (f"{box.models} has {machine.disk_free_bytes >> 20} MiB free; the artifact needs {need >> 20} MiB",)
    limit = model.geometry.max_positions
    request = Request(
        model=box.model,
        device=device.name,
        geometry=model.geometry,
        settings=settings,
        weight_bytes=weights,
        free_bytes=device.free_bytes,
        max_context=options.max_context if resolved.explicit("max_context") else min(options.max_context, limit),
        lanes=options.max_concurrency,
        kv_capacity=_capacity(options.kv_capacity),
        explicit=frozenset(name for name in FLAGS if resolved.explicit(name)),
        fallback=options.fallback,
        requires=required(settings, cuda=on_card, packed_weights=packed, mtp_experts_q4=extras.mtp_experts_q4),
        notes=(*notes, f"sizes from {model.origin}"),
    )
    plan = make(request, constants or (TORCH if on_card else TORCH_CPU))
    missing = () if supported is None else unsupported(plan, supported)
    if missing:
        raise ConfigurationError(
            f"{box.model} with profile {profile.name or box.resolved.options.profile}: {explain(missing)}"
        )
    for row in plan.rejected:
        log.info("rung_rejected", max_context=row.max_context, lanes=row.lanes, short_mib=-(-row.short // MIB))
    log.info(
        "plan_made",
        model=plan.model,
        device=plan.device,
        max_context=plan.max_context,
        lanes=plan.lanes,
        kv_capacity=plan.kv_capacity,
        left_bytes=plan.left_bytes,
    )
    return plan


def choose_device(machine: Machine, asked: str, model: ModelFacts) -> Device:
    """The card with most free memory, the card that was asked for, or the host for a small artifact.

    A machine that has a card never falls back to the host silently, and a large artifact never runs there.

    Raises:
        ConfigurationError: `asked` is not auto, cpu or an index.
        NoDeviceError: no device may run the model; says why and what would work.
    """
    if asked == "cpu":
        if not model.small:
            raise NoDeviceError(
                f"--device cpu: {model.name} has {model.file_bytes / GIB:.1f} GiB and the host runs artifacts up to "
                "2 GiB; use a card of compute capability 8.0 or newer, or the embedded model (nano)"
            )
        return _host(machine)
    if asked != "auto":
        if not asked.isdigit():
            raise ConfigurationError(f"--device {asked}: must be auto, cpu, or the index of a card")
        match = [card for card in machine.cards if card.index == int(asked)]
        if not match:
            there = ", ".join(_describe(card) for card in machine.cards) or machine.fault or "no card was found"
            raise NoDeviceError(f"--device {asked}: there is no such card; {there}")
        if match[0].compute_capability < LEAST_CAPABILITY:
            raise NoDeviceError(f"--device {asked}: {_too_old(match[0])}")
        return Device(name=match[0].device, card=match[0], free_bytes=match[0].free_bytes, notes=_others(match[0]))
    usable = [card for card in machine.cards if card.compute_capability >= LEAST_CAPABILITY]
    if usable:
        best = max(usable, key=lambda card: (card.free_bytes, -card.index))
        notes = _others(best)
        if len(machine.cards) > 1:
            rest = ", ".join(_describe(card) for card in machine.cards if card is not best)
            notes = (f"chose {_describe(best)}, which has most free memory; there are also {rest}", *notes)
        return Device(name=best.device, card=best, free_bytes=best.free_bytes, notes=notes)
    why = _why_no_card(machine)
    if model.small:
        host = _host(machine)
        present = machine.cards or machine.pci_cards
        return dataclasses.replace(host, notes=(f"running on the CPU: {why}",)) if present else host
    raise NoDeviceError(
        f"{model.name} needs a card: {why}. Only the embedded model runs on the CPU (ninfer-appliance up --model nano)"
    )


def _host(machine: Machine) -> Device:
    free = max(0, machine.host_available_bytes - HOST_RESERVE_BYTES)
    note = f"{HOST_RESERVE_BYTES >> 20} MiB of {machine.host_available_bytes >> 20} MiB available stay with the system"
    return Device(name="cpu", card=None, free_bytes=free, notes=(note,))


def _why_no_card(machine: Machine) -> str:
    if machine.cards:
        return "; ".join(_too_old(card) for card in machine.cards)
    if machine.pci_cards:
        where = ", ".join(machine.pci_cards)
        reason = machine.fault or "; ".join(machine.notes) or "no device is visible to CUDA"
        return f"there is an NVIDIA card at {where}, but {reason}"
    return machine.fault or "there is no NVIDIA card on the bus"


def _too_old(card: Card) -> str:
    major, minor = card.compute_capability
    return f"{card.name} has compute capability {major}.{minor}; 8.0 or newer (RTX 30 series, A100) is needed"


def _describe(card: Card) -> str:
    return f"{card.name} ({card.device}, {card.free_bytes >> 20} MiB free)"


def _others(card: Card) -> tuple[str, ...]:
    shown = [
        f"{process.name or 'process'} {process.pid}"
        + (f" {process.used_bytes >> 20} MiB" if process.used_bytes is not None else "")
        for process in card.processes
    ]
    return (f"memory of {card.device} is held by {', '.join(shown)}",) if shown else ()


def _need_on_disk(box: Box, model: ModelFacts) -> int:
    return 0 if box.artifact.is_file() else model.file_bytes


def _capacity(value: int | str | None) -> int | Literal["auto"] | None:
    return "auto" if isinstance(value, str) else value
