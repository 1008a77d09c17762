"""Quiet logs, and a heap whose imports are not searched for garbage each time a loop is idle."""

import gc
from collections.abc import Iterator

import pytest
import structlog

from engine.log import configure


@pytest.fixture(scope="session", autouse=True)
def frozen_garbage() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="package", autouse=True)
def quiet() -> Iterator[None]:
    configure("test", "off")
    yield
    structlog.reset_defaults()
