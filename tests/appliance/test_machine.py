"""Machines written by hand."""

import json
from pathlib import Path

import pytest

from appliance.machine import machine_from, read_machine
from engine.exits import ConfigurationError
from engine.plan import GIB, MIB
from tests.appliance.described import card_3090, machine

TEXT = """
pci_cards = ["0000:01:00.0"]
host_total_bytes = "64 GiB"
host_available_bytes = 60_000_000_000

[[cards]]
index = 0
name = "NVIDIA GeForce RTX 3090"
total_bytes = "24576 MiB"
free_bytes = "22.4 GiB"
compute_capability = [8, 6]
"""


def test_sizes_may_be_text(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(TEXT)
    found = read_machine(path)
    assert found.host_total_bytes == 64 * GIB
    assert found.host_available_bytes == 60_000_000_000
    assert found.cards[0].total_bytes == 24_576 * MIB
    assert found.cards[0].free_bytes == round(22.4 * GIB)
    assert found.cards[0].device == "cuda:0"


def test_a_machine_survives_json(tmp_path: Path) -> None:
    made = machine(card_3090(1.3), card_3090(0, index=1), fault="x")
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(made.as_dict()))
    assert read_machine(path) == made


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("index = 0", "indx = 0", "indx"),
        ('"64 GiB"', '"64 GB"', "host_total_bytes is '64 GB'; write bytes, or a number and one of"),
        ('"22.4 GiB"', '"25 GiB"', "card 0 has"),
        ("[8, 6]", "[8]", "Expected `array`"),
        ("host_available_bytes", "available_bytes", "host_available_bytes|available_bytes"),
        ("[[cards]]", "[[cards]", "--machine"),
    ],
)
def test_a_wrong_description_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = tmp_path / "machine.toml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(ConfigurationError, match=words):
        read_machine(path)


def test_other_wrong_descriptions(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml"):
        read_machine(tmp_path / "none.toml")
    listed = tmp_path / "list.json"
    listed.write_text("[1]")
    with pytest.raises(ConfigurationError, match="not a table"):
        read_machine(listed)
    twice = machine(card_3090(), card_3090()).as_dict()
    with pytest.raises(ConfigurationError, match="same index"):
        machine_from(twice)
