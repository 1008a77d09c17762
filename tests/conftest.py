"""What every test leaves as it found it."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def gradients_stay_on() -> Iterator[None]:
    """A mode of torch that is left on would change every later test of this process."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None:
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
