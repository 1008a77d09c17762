"""Workers that several tests share, because each takes most of a second to start."""

import asyncio
from collections.abc import Iterator

import pytest
import structlog

from engine.constraint.checker import Checker
from engine.constraint.constraint import Constraint
from engine.constraint.masks import Masks
from engine.constraint.process import Limits
from engine.log import configure
from tests.constraint.words import VOCABULARY

LANES = 4


@pytest.fixture(scope="package", autouse=True)
def quiet() -> Iterator[None]:
    configure("test", "off")
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="package")
def masks() -> Iterator[Masks]:
    made = Masks(VOCABULARY, LANES)
    made.start()
    yield made
    made.stop()


class Judge:
    """Compiles in this thread."""

    def __init__(self) -> None:
        self.checker = Checker(VOCABULARY, Limits(compile_seconds=20))

    def __call__(self, constraint: Constraint) -> None:
        """Raises ConstraintError: it does not compile."""
        asyncio.run(self._check(constraint))

    async def _check(self, constraint: Constraint) -> None:
        await self.checker.check(constraint)


@pytest.fixture(scope="package")
def check() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.checker.close()
