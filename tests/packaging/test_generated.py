"""What is generated from the option table: files are current, and they say what the parser does."""

import json
import re
from pathlib import Path

import pytest

from appliance.launch_variables import ADJUSTING, OFF_ALONE
from appliance.launch_variables import REFUSED as REFUSED_VARIABLES
from engine.exits import ConfigurationError
from engine.options import REFUSED, Option, Options, parser, resolve, rows_of
from tools import generate

ROOT = Path(__file__).resolve().parents[2]
ROWS = [pytest.param(name, row, id=row.flag) for name, row in rows_of(Options)]


def test_every_generated_file_is_current() -> None:
    assert generate.outdated() == [], "type: python -m tools.generate"


def test_a_stale_or_missing_file_is_named(tmp_path: Path) -> None:
    for path, text in generate.outputs().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert generate.outdated(tmp_path) == []
    (tmp_path / "nix/options.json").write_text("{}")
    (tmp_path / "etc/ninfer.env").unlink()
    assert generate.outdated(tmp_path) == ["etc/ninfer.env", "nix/options.json"]


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_the_bounds_that_are_stated_are_the_bounds_that_are_parsed(name: str, row: Option) -> None:
    value = row.parse
    step = value.multiple if value.kind == "integer" else 0.5
    for choice in value.choices:
        value(choice)
    if value.kind == "choice":
        with pytest.raises(ValueError, match="must be one of"):
            value("no such choice")
    if value.minimum is not None:
        value(str(value.minimum))
        with pytest.raises(ValueError, match="must be"):
            value(str(value.minimum - step))
    if value.maximum is not None:
        value(str(value.maximum))
        with pytest.raises(ValueError, match="must be"):
            value(str(value.maximum + step))
    if value.multiple != 1:
        with pytest.raises(ValueError, match="multiple"):
            value(str(int(value.minimum or 0) + 1))


def test_each_default_parses_back_to_itself() -> None:
    for name, row in rows_of(Options):
        text = generate.default_text(row)
        if text is not None:
            assert row.parse(text) == row.default, name


def test_the_page_has_each_option_once_and_each_refusal() -> None:
    page = generate.options_page()
    for _, row in rows_of(Options):
        assert page.count(f"`{row.env}`") == 1, row.env
    for flag in REFUSED:
        assert f"| `{flag}` |" in page
    for name in (*ADJUSTING, *OFF_ALONE):
        assert f"| `{name}` |" in page
    for name, reason in REFUSED_VARIABLES.items():
        assert f"- `{name}` {reason}" in page
    sections = {row.section for _, row in rows_of(Options)}
    assert sections == set(generate.SECTIONS), "a section without a title is left out of the page"
    cells = {line.count(" | ") for line in page.splitlines() if line.startswith("| `--") and "NINFER" in line}
    assert cells == {5}, "a cell breaks the table"


def test_the_flags_on_the_page_are_those_of_the_commands() -> None:
    page = generate.options_page()
    known = parser("appliance", "x", "x").format_help()
    for line in page.splitlines():
        if line.startswith("| `--") and "`ninfer-appliance`" in line:
            flag = line.split("`")[1]
            assert re.search(rf"{flag}\b", known), flag


def test_the_environment_file_uncommented_is_the_defaults() -> None:
    lines = [line[1:] for line in generate.environment_file().splitlines() if re.match(r"#NINFER_\w+=", line)]
    environ = dict(line.split("=", 1) for line in lines)
    home = {"NINFER_HOME": "/var/lib/ninfer"}
    assert resolve({}, environ | home).options == resolve({}, home).options
    wanted = {row.env for name, row in rows_of(Options) if "appliance" in row.commands and name != "home"}
    assert environ.keys() == wanted
    # As it is shipped it sets nothing, so that a copy follows new defaults.
    assert not [line for line in generate.environment_file().splitlines() if line and not line.startswith("#")]


def test_the_module_has_every_option_of_the_box_in_numbers_that_nix_has() -> None:
    settings = json.loads(generate.module_options())["settings"]
    rows = {row.flag.removeprefix("--"): row for _, row in rows_of(Options) if "appliance" in row.commands}
    assert settings.keys() == rows.keys() - {"home"}
    for name, record in settings.items():
        assert record["environment"] == rows[name].env
        assert record["maximum"] is None or record["maximum"] < 2**63, name
    assert [name for name, record in settings.items() if record["secret"]] == ["api-key"]


def test_a_word_beside_numbers_still_parses() -> None:
    assert resolve({"kv_capacity": "auto"}, {}).options.kv_capacity == "auto"
    with pytest.raises(ConfigurationError, match="kv-capacity: 'some' is not a number"):
        resolve({"kv_capacity": "some"}, {})
