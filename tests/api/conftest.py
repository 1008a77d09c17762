"""One box shared by the tests that leave it as it was."""

from collections.abc import Iterator

import pytest

from tests.api.box import Box, running


@pytest.fixture(scope="session")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with running(tmp_path_factory.mktemp("box"), keep_alive=0.2, max_request_mib=1, body_pause=0.5) as made:
        yield made
