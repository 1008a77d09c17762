"""The fit arithmetic and the ladder: pure functions, no torch, no input or output."""

from engine.plan.constants import GIB, MIB, RECORDS, REFERENCE, TORCH, TORCH_CPU, Constants
from engine.plan.features import SUPPORTED, explain, required, unsupported
from engine.plan.formats import FORMATS, kv_format
from engine.plan.geometry import PAGE_TOKENS, Geometry, key_value_bytes, pages_of, state_image_bytes
from engine.plan.ladder import RUNGS, NoPlanError, Plan, Reduced, Rejected, Request, longest_context, make, nearest
from engine.plan.reservation import Ledger, Reservation, ledger, reservation
from engine.plan.settings import Settings
from engine.plan.speculation import PLAIN, Speculation, Weights

__all__ = [
    "FORMATS",
    "GIB",
    "MIB",
    "PAGE_TOKENS",
    "PLAIN",
    "RECORDS",
    "REFERENCE",
    "RUNGS",
    "SUPPORTED",
    "TORCH",
    "TORCH_CPU",
    "Constants",
    "Geometry",
    "Ledger",
    "NoPlanError",
    "Plan",
    "Reduced",
    "Rejected",
    "Request",
    "Reservation",
    "Settings",
    "Speculation",
    "Weights",
    "explain",
    "key_value_bytes",
    "kv_format",
    "ledger",
    "longest_context",
    "make",
    "nearest",
    "pages_of",
    "required",
    "reservation",
    "state_image_bytes",
    "unsupported",
]
