"""Bookkeeping of pages and state images, and the ledger. No torch."""

from engine.memory.ledger import Ledger, RuntimePlan, RuntimeSizes, largest_context, plan_runtime
from engine.memory.pages import PAGE_TOKENS, AccountingError, PageAccount, PagePool, pages_for
from engine.memory.states import StatePool

__all__ = [
    "PAGE_TOKENS",
    "AccountingError",
    "Ledger",
    "PageAccount",
    "PagePool",
    "RuntimePlan",
    "RuntimeSizes",
    "StatePool",
    "largest_context",
    "pages_for",
    "plan_runtime",
]
