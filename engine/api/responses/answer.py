"""One answer in the terms of Responses: the response object and its stream (spec/serving.md §8.2, §8.3)."""

import time
from collections.abc import Callable
from typing import Any

from engine.api.errors import ApiError
from engine.api.generation import Account, Event
from engine.api.responses.output import Output
from engine.api.responses.schemas import CreateRequest
from engine.api.responses.tools import Declared
from engine.protocol import Sampling


class Answer:
    """A response that is being made. Every method that returns events returns them with their sequence numbers.

    Args:
        keep: called with the finished object before anything says that it is finished; raises ApiError to fail it.
    """

    def __init__(
        self,
        identity: str,
        request: CreateRequest,
        declared: Declared,
        *,
        sampling: Sampling,
        account: Account,
        keep: Callable[[dict[str, Any]], None],
    ) -> None:
        self.id = identity
        self._request, self._declared, self._sampling, self._account = request, declared, sampling, account
        self._keep = keep
        self._created = int(time.time())
        self._output = Output(declared.names, sealed=request.sealed)
        self._sequence = 0

    def begin(self) -> list[dict[str, Any]]:
        """The first two events."""
        shown = self._object("in_progress")
        return [self._numbered({"type": f"response.{kind}", "response": shown}) for kind in ("created", "in_progress")]

    def take(self, event: Event) -> list[dict[str, Any]]:
        """Events for one event of the generation."""
        return [self._numbered(change) for change in self._output.take(event)]

    @property
    def _cut(self) -> bool:
        return self._account.finish in ("length", "context")

    def close(self) -> list[dict[str, Any]]:
        """Events for the end of the generation, all but the terminal one."""
        return [self._numbered(change) for change in self._output.finish("incomplete" if self._cut else "completed")]

    def finished(self) -> dict[str, Any]:
        """The finished object, kept.

        Raises:
            ApiError: it could not be kept.
        """
        finished = self._object("incomplete" if self._cut else "completed")
        self._keep(finished)
        return finished

    def end(self) -> dict[str, Any]:
        """The terminal event. Raises ApiError as `finished` does."""
        finished = self.finished()
        return self._numbered({"type": f"response.{finished['status']}", "response": finished})

    def fail(self, error: ApiError) -> dict[str, Any]:
        """The terminal event of an answer that went wrong."""
        shown = {"code": error.code or error.kind, "message": error.message}
        return self._numbered({"type": "response.failed", "response": self._object("failed") | {"error": shown}})

    def _numbered(self, change: dict[str, Any]) -> dict[str, Any]:
        numbered = {"type": change["type"], "sequence_number": self._sequence} | change
        self._sequence += 1
        return numbered

    def _object(self, status: str) -> dict[str, Any]:
        request, done = self._request, status in ("completed", "incomplete")
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "background": False,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "max_tool_calls": request.max_tool_calls,
            "metadata": request.metadata or {},
            "model": request.model,
            "output": self._output.items(),
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": request.previous_response_id,
            "reasoning": {"effort": request.effort, "summary": None},
            "service_tier": "default",
            "store": request.kept,
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "text": {"format": request.format_echo},
            "tool_choice": "auto" if request.tool_choice is None else request.tool_choice,
            "tools": self._declared.wire,
            "top_logprobs": 0,
            "truncation": "disabled",
            "usage": usage(self._account) if done else None,
            **({} if self._account.constraint is None else {"constraint": self._account.constraint}),
        }


def usage(account: Account) -> dict[str, Any]:
    """The usage object of Responses."""
    return {
        "input_tokens": account.prompt_tokens,
        "input_tokens_details": {"cached_tokens": account.cached_tokens},
        "output_tokens": account.generated,
        "output_tokens_details": {"reasoning_tokens": account.reasoning_tokens},
        "total_tokens": account.prompt_tokens + account.generated,
    }
