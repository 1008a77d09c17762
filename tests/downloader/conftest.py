"""What every test of the downloader starts from: a hub, a pin of what it holds, and a folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from downloader.catalog import Pin, find, read_catalog
from tests.downloader.hub import Hub, serve, write_catalog
from tests.downloader.world import BODY


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve(Hub(BODY)) as running:
        yield running


@pytest.fixture
def pin(hub: Hub, tmp_path: Path) -> Pin:
    return find(read_catalog(write_catalog(tmp_path, BODY, endpoint=hub.url), {}), "tiny")


@pytest.fixture
def listed(hub: Hub, tmp_path: Path) -> Pin:
    """The same with the digests of its chunks in the catalog."""
    return find(read_catalog(write_catalog(tmp_path, BODY, endpoint=hub.url, listed=True), {}), "tiny")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"
