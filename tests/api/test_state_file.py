"""state.json."""

from pathlib import Path

import msgspec
import pytest

from engine.state_file import State, read_state, write_state


def test_round_trip_leaves_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    assert read_state(file) is None
    for phase in ("fetch", "ready"):
        state = msgspec.convert({"phase": phase, "done": 1, "plan": {"rung": 8192}, "exit_code": None}, State)
        write_state(file, state)
        assert read_state(file) == state
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_a_failed_write_keeps_the_old_state(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    write_state(file, State(phase="load"))
    with pytest.raises(TypeError):
        write_state(file, State(phase="ready", plan={"what": object()}))
    assert read_state(file) == State(phase="load")
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_something_else_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_text('{"phase": "asleep"}')
    with pytest.raises(msgspec.ValidationError, match="asleep"):
        read_state(file)
