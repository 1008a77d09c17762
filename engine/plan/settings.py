"""What stays the same on every rung of the ladder."""

from dataclasses import dataclass
from typing import Literal

from engine.plan.speculation import PLAIN, Speculation

Vision = Literal["off", "overlay"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides memory except context, lanes and capacity."""

    kv_dtype: str = "bf16"
    speculation: Speculation = PLAIN
    prefill_chunk: int = 1024
    prefill_cublas: bool = False
    state_fp16: bool = False
    vision: Vision = "off"
    device_state_slots: int | None = None  # state images beside one a lane; None: the engine's default
