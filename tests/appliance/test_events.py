"""supervisord's event-listener protocol."""

import asyncio

import pytest

from appliance.events import OK, READY, Lines, ProcessLog, ProcessState, Stopping, SupervisorEvent, listen


def frame(name: str, payload: str) -> bytes:
    header = f"ver:3.0 server:supervisor serial:1 pool:controller poolserial:1 eventname:{name} len:{len(payload)}\n"
    return (header + payload).encode()


STREAM = b"".join([
    frame("PROCESS_STATE_EXITED", "processname:engine groupname:engine from_state:RUNNING expected:0 pid:42"),
    frame("PROCESS_LOG_STDOUT", "processname:fetch groupname:fetch pid:7 channel:stdout\nprogräss → 1\nand"),
    frame("PROCESS_STATE_FATAL", "processname:api groupname:api from_state:BACKOFF"),
    frame("TICK_5", "when:1201063880"),
    frame("SUPERVISOR_STATE_CHANGE_STOPPING", ""),
])  # fmt: skip
EVENTS = [
    ProcessState("engine", "EXITED", 42),
    ProcessLog("fetch", "progräss → 1\nand"),
    ProcessState("api", "FATAL", None),
    Stopping(),
]


@pytest.mark.parametrize("piece", [1, 3, 1000])
async def test_every_event_is_delivered_and_acknowledged(piece: int) -> None:
    source, written, seen = asyncio.StreamReader(), bytearray(), list[SupervisorEvent]()

    async def feed() -> None:
        for begin in range(0, len(STREAM), piece):
            source.feed_data(STREAM[begin : begin + piece])
            await asyncio.sleep(0)
        source.feed_eof()

    feeding = asyncio.create_task(feed())
    await listen(source, written.extend, seen.append)
    await feeding
    assert seen == EVENTS
    assert bytes(written) == (READY + OK) * 5 + READY


async def test_a_stream_that_ends_within_an_event_is_an_error() -> None:
    source = asyncio.StreamReader()
    source.feed_data(STREAM[:150])
    source.feed_eof()
    with pytest.raises(asyncio.IncompleteReadError):
        await listen(source, lambda data: None, lambda event: None)


def test_lines_are_put_together() -> None:
    lines = Lines()
    assert lines.push("one\ntw") == ["one"]
    assert lines.push("o") == []
    assert lines.push("\n\nthree") == ["two", ""]
