"""The socket with a loop behind it, in this process: streams, cancels, garbage."""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.core.door import Door
from engine.core.loop import Drain
from engine.core.server import MAX_CONNECTIONS, MAX_UNREAD_BYTES, Server, listen
from engine.exits import ConfigurationError
from engine.protocol import (
    VERSION,
    AskStatistics,
    Boot,
    Cancel,
    EngineConnection,
    Hello,
    Limits,
    Statistics,
    Tokens,
    encode,
    unpack_ids,
)
from tests.core.client import Client
from tests.core.harness import Harness, submit
from tests.rounds.fake_model import FakeModel

HELLO = Hello(version=VERSION, fingerprint="f" * 32, model="fake")
LIMITS = Limits(max_context=512, kv_capacity=1024, lanes=2, max_pending=3, token_count=64)


def until(done: Callable[[], bool]) -> None:
    """Wait for another thread."""
    end = time.monotonic() + 10
    while not done():
        assert time.monotonic() < end
        time.sleep(0.002)


class Box:
    """A server, a door and a loop on their threads."""

    def __init__(self, path: Path, model: FakeModel, max_unread: int = MAX_UNREAD_BYTES) -> None:
        self.path = path
        self.door = Door()
        self.server = Server(
            listen(path),
            on_message=self.door.message,
            on_closed=self.door.closed,
            on_failure=self.door.failed,
            max_unread=max_unread,
        )
        self.door.attach(self.server.send)
        self.harness = Harness(model, max_pending=3)
        self.loop = self.harness.loop
        self.loop.send, self.loop.announce = self.server.send, self.server.broadcast
        self.loop.disconnect = self.server.disconnect
        self.loop.clock = time.monotonic
        self.server.broadcast(HELLO)
        self.server.broadcast(Boot(phase="load"))
        self.server.start()
        self.thread = threading.Thread(target=self.loop.run, daemon=True)

    def open(self) -> None:
        self.door.open(self.loop, self.harness.intake)
        self.thread.start()
        self.server.broadcast(LIMITS)
        self.server.broadcast(Boot(phase="ready"))

    def client(self) -> Client:
        return Client(self.path).ready()

    def idle(self) -> None:
        """Wait until no request lives, then look at the books."""
        until(lambda: self.harness.scheduler.idle and self.loop.inbox.empty())

    def close(self) -> None:
        if self.thread.is_alive():
            self.loop.inbox.put(Drain())
            self.loop.inbox.put(Drain())
            self.thread.join(10)
            assert not self.thread.is_alive()
        self.harness.scheduler.check()
        self.server.close()


@pytest.fixture
def model() -> FakeModel:
    return FakeModel(counting=True, delay=0.002)


@pytest.fixture
def box(tmp_path: Path, model: FakeModel) -> Iterator[Box]:
    made = Box(tmp_path / "s", model)
    made.open()
    yield made
    made.close()


def test_every_connection_is_greeted_in_order(tmp_path: Path) -> None:
    box = Box(tmp_path / "s", FakeModel())
    with Client(box.path) as early:
        early.until(lambda: early.kinds == ["Hello", "Boot"])
        early.send(submit([1]))
        refused = early.answer(1).rejected
        assert refused is not None
        assert (refused.code, "load" in refused.message) == ("unavailable", True)
        early.send(Cancel(id=1))
        early.send(AskStatistics())
        early.until(lambda: early.kinds[-1] == "Statistics")
        box.open()
        early.ready()
        assert early.kinds[-2:] == ["Limits", "Boot"]
        with box.client() as late:
            assert late.kinds == ["Hello", "Limits", "Boot"]
            assert (late.hello, late.limits) == (HELLO, LIMITS)
    box.close()


async def test_the_asyncio_side_reads_a_stream(box: Box) -> None:
    connection = await EngineConnection.open(box.path)
    assert connection.hello == HELLO
    await connection.send(submit([10], 5))
    ids: list[int] = []
    while len(ids) < 5:
        message = await connection.receive()
        if isinstance(message, Tokens):
            ids += unpack_ids(message.lanes[0].token_ids).tolist()
    assert ids == [11, 12, 13, 14, 15]
    connection.close()


def test_two_clients_do_not_see_each_other(box: Box) -> None:
    with box.client() as first, box.client() as second:
        first.send(submit([10], 20, id=1))
        second.send(submit([40], 20, id=1))
        assert first.answer(1).tokens == list(range(11, 31))
        assert second.answer(1).tokens == list(range(41, 61))


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_lane_is_free_within_the_round_that_runs(box: Box, how: str) -> None:
    model = box.harness.model
    model.gate = threading.Semaphore(4)  # the prompt and three rounds
    with box.client() as client, box.client() as other:
        client.send(submit([1], 400))
        client.until(lambda: 1 in client.answers and len(client.answers[1].tokens) == 4)
        until(lambda: model.forwards == 5)  # the fourth round is running
        if how == "cancel":
            client.send(Cancel(id=1))
        else:
            client.close()
        until(lambda: not box.loop.inbox.empty())
        model.gate.release()
        if how == "cancel":
            answer = client.answer(1)
            assert (answer.finish, len(answer.tokens), answer.rounds[-1]) == ("cancelled", 5, 4)
        box.idle()
        assert model.forwards == 5
        model.gate.release(2)
        other.send(submit([1], 2))
        assert other.answer(1).finish == "length"


def test_a_closed_connection_frees_its_lanes_for_those_who_wait(box: Box) -> None:
    box.harness.model.delay = 0.02
    gone, waiting = box.client(), box.client()
    for id in (1, 2):
        gone.send(submit([1], 500, id=id))
    gone.until(lambda: len(gone.answers) == 2 and all(answer.tokens for answer in gone.answers.values()))
    waiting.send(submit([20], 2))
    gone.close()
    begun = time.monotonic()
    assert waiting.answer(1).tokens == [21, 22]
    assert time.monotonic() - begun < 5  # the two would have taken 20 s
    box.idle()
    assert box.loop.counters.cancelled == 2
    waiting.close()


def test_overload_is_refused_and_what_waits_is_served(box: Box) -> None:
    with box.client() as client:
        for id in range(8):
            client.send(submit([1], 30, id=id))
        answers = [client.answer(id) for id in range(8)]
    codes = [answer.rejected and answer.rejected.code for answer in answers]
    assert codes.count("overloaded") == 3  # two lanes, three may wait
    assert [answer.finish for answer in answers].count("length") == 5


def test_a_deadline_passes_in_the_queue(box: Box) -> None:
    with box.client() as client:
        for id in (1, 2):
            client.send(submit([1], 400, id=id))
        client.send(submit([1], 5, id=3, deadline_seconds=0.05))
        refused = client.answer(3).rejected
        assert refused is not None
        assert refused.code == "queue_timeout"
        assert client.answers[1].finish is None


def test_statistics_are_answered_while_rounds_run(box: Box) -> None:
    with box.client() as client:
        client.send(submit([1], 300))
        client.until(lambda: 1 in client.answers and len(client.answers[1].tokens) > 3)
        client.send(AskStatistics())
        for message in client.messages():
            if isinstance(message, Statistics):
                assert (message.running, message.waiting) == (1, 0)
                assert message.rounds > 0
                break


GARBAGE = [
    b"\xff" * 64,
    b"\x05\x00\x00\x00\x00abcde",
    b"\x01\x00\x00\x00\x07\x80",
    b"\x00\x00\x00\x00\x00",
    b"\x00\x00\x00\x7f\x00",
    encode(HELLO),
    encode(submit([1], 4))[:-1] + b"\xc1",
    b"\x16\x00\x00\x00\x00" + b"\x81\xa4type\xa6submit",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_closes_only_its_own_connection(box: Box, garbage: bytes) -> None:
    with box.client() as good, box.client() as bad:
        good.send(submit([10], 40))
        bad.send(submit([5], 400, id=2))
        bad.until(lambda: 2 in bad.answers and bool(bad.answers[2].tokens))
        bad.socket.sendall(garbage + b"\0" * 64)
        bad.read_to_the_end()
        assert good.answer(1).tokens == list(range(11, 51))
    box.idle()


def test_random_bytes_never_hurt_the_engine(tmp_path: Path) -> None:
    box = Box(tmp_path / "s", FakeModel(counting=True))
    box.open()
    with box.client() as good:
        prefixes = st.sampled_from([b"", encode(submit([1], 2)), encode(Cancel(id=3)), encode(submit([1], 2))[:9]])

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        @given(prefixes, st.binary(max_size=200))
        def attack(prefix: bytes, data: bytes) -> None:
            with Client(box.path) as bad:
                bad.socket.sendall(prefix + data)

        attack()
        good.send(submit([10], 3))
        assert good.answer(1).tokens == [11, 12, 13]
    box.close()


def test_descriptors_are_closed(box: Box) -> None:
    with box.client() as client:
        client.send(submit([10], 1, id=1))
        client.answer(1)
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        memory = os.memfd_create("pixels")
        socket.send_fds(client.socket, [encode(submit([10], 1, id=2), descriptors=1)], [memory])
        os.close(memory)
        assert client.answer(2).finish == "length"
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_client_that_does_not_read_is_dropped(tmp_path: Path) -> None:
    box = Box(tmp_path / "s", FakeModel(counting=True), max_unread=20_000)
    box.open()
    with box.client() as deaf, box.client() as good:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        for _ in range(20_000):
            try:
                deaf.send(AskStatistics())
            except OSError:
                break
        else:
            raise AssertionError("the engine kept the connection")
        good.send(submit([10], 3))
        assert good.answer(1).tokens == [11, 12, 13]
    box.close()


def test_connections_are_bounded(box: Box) -> None:
    clients = [box.client() for _ in range(MAX_CONNECTIONS)]
    with Client(box.path) as one_more:
        one_more.read_to_the_end()
        assert one_more.kinds == []
    clients.pop().close()
    clients[0].send(submit([10], 2))
    assert clients[0].answer(1).tokens == [11, 12]
    for client in clients:
        client.close()


def test_a_reused_id_disconnects(box: Box) -> None:
    with box.client() as client:
        client.send(submit([10], 400, id=1))
        client.send(submit([10], 400, id=1))
        client.read_to_the_end()
    box.idle()


def test_the_socket_is_private_and_has_one_owner(box: Box) -> None:
    assert box.path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigurationError, match="another engine listens there"):
        listen(box.path)


def test_a_stale_socket_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listen(path).close()
    listen(path).close()
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(ConfigurationError, match="file"):
        listen(file)
    assert file.read_text() == "precious"
    with pytest.raises(ConfigurationError, match="No such file"):
        listen(tmp_path / "absent" / "s")


def test_no_message_is_left_behind(tmp_path: Path) -> None:
    """Sending races with the server's going to sleep; whatever is queued last must still go out."""
    box = Box(tmp_path / "s", FakeModel())
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads change places in the middle of everything
    try:
        with Client(box.path, timeout=10) as client:
            client.until(lambda: client.kinds == ["Hello", "Boot"])
            for _ in range(5000):
                client.kinds.clear()
                for _ in range(3):
                    box.server.send(1, Statistics())
                client.until(lambda: len(client.kinds) == 3)
    finally:
        sys.setswitchinterval(interval)
        box.close()


def test_an_idle_engine_uses_no_time(box: Box) -> None:
    with box.client() as client:
        client.send(submit([10], 3))
        client.answer(1)
        box.idle()
        time.sleep(0.1)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.05
