"""State images and KV bytes per token against the tables of spec/model.md §10 and spec/kv-formats.md."""

import pytest

from engine.exits import ConfigurationError
from engine.plan import FORMATS, Geometry, key_value_bytes, kv_format, state_image_bytes
from engine.plan.geometry import replay_record_bytes
from engine.plan.speculation import DRAFTERS, Speculation
from tests.plan.models import (
    DENSE_27B,
    DFLASH,
    DFLASH2,
    DFLASH2_HEAD,
    MOE_35B,
    MTP3,
    MTP3_HEAD,
    WEIGHTS_27B,
    WEIGHTS_35B,
    gib,
)

PER_TOKEN = {
    "bf16": (65_536, 20_480, 69_632, 22_528),
    "int8": (33_792, 10_560, 35_904, 11_616),
    "fp8": (33_024, 10_320, 35_088, 11_352),
    "rk8v4": (26_112, 8_160, 27_744, 8_976),
    "rk4v4": (17_920, 5_600, 19_040, 6_160),
    "k8v4": (25_728, 8_040, 27_336, 8_844),
    "nvfp4": (18_432, 5_760, 19_584, 6_336),
}


@pytest.mark.parametrize(("name", "expected"), PER_TOKEN.items())
def test_key_value_bytes_a_token(name: str, expected: tuple[int, int, int, int]) -> None:
    form = kv_format(name)
    found = [key_value_bytes(geometry, form) for geometry in (DENSE_27B, MOE_35B)]
    with_mtp = [
        key_value_bytes(geometry, form) + key_value_bytes(geometry, form, layers=1) for geometry in (DENSE_27B, MOE_35B)
    ]
    assert (*found, *with_mtp) == expected


def test_the_table_has_all_seven_formats_and_no_other_is_known() -> None:
    assert set(FORMATS) == set(PER_TOKEN)
    with pytest.raises(ConfigurationError, match="'int4' is unknown; known: bf16"):
        kv_format("int4")


@pytest.mark.parametrize(
    ("geometry", "fp16", "expected"),
    [
        (DENSE_27B, False, 153_954_304),
        (DENSE_27B, True, 78_456_832),
        (MOE_35B, False, 64_393_216),
        (MOE_35B, True, 32_935_936),
    ],
)
def test_state_image(geometry: Geometry, fp16: bool, expected: int) -> None:
    assert state_image_bytes(geometry, fp16=fp16) == expected


def test_state_images_of_32_host_slots_cost_the_published_gib() -> None:
    costs = [
        round(gib(32 * state_image_bytes(geometry, fp16=fp16)), 2)
        for geometry in (DENSE_27B, MOE_35B)
        for fp16 in (False, True)
    ]
    assert costs == [4.59, 2.34, 1.92, 0.98]


def test_replay_records_and_drafter_rings() -> None:
    assert replay_record_bytes(DENSE_27B) == 1_787_904
    assert replay_record_bytes(MOE_35B) == 867_840
    assert DRAFTERS["dflash2"].ring_bytes == 41_943_040
    assert DRAFTERS["dflash"].ring_bytes == 80 << 20
    assert DRAFTERS["dflash"].page_token_bytes == 4096
    assert DRAFTERS["dflash2"].page_token_bytes == 0


def test_resident_weights_are_those_of_the_calculator() -> None:
    """spec/memory-and-fit.md §3, weights GiB."""
    assert [
        round(gib(WEIGHTS_27B.resident(speculation)), 2)
        for speculation in (Speculation(), MTP3, MTP3_HEAD, DFLASH2, DFLASH2_HEAD)
    ] == [15.92, 16.34, 16.67, 17.99, 18.33]
    assert [
        round(gib(WEIGHTS_35B.resident(speculation)), 2)
        for speculation in (Speculation(), MTP3, MTP3_HEAD, DFLASH, Speculation("dflash", 3, draft_head=True))
    ] == [19.59, 20.43, 20.56, 19.98, 20.11]
    with pytest.raises(ConfigurationError, match="no dflash2 weights"):
        WEIGHTS_35B.resident(DFLASH2)


def test_speculation_refuses_contradictions() -> None:
    for backend, drafts, head, match in (
        ("none", 3, False, "no drafts"),
        ("none", 0, True, "no draft head"),
        ("mtp", 0, False, "1 to 15"),
        ("mtp", 16, True, "1 to 15"),
        ("eagle", 3, False, "known: none, mtp"),
    ):
        with pytest.raises(ConfigurationError, match=match):
            Speculation(backend, drafts, head)  # type: ignore[arg-type]
