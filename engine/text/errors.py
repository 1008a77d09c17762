"""What is wrong with a request's prompt, in the words an API answers with (spec/serving.md §4)."""


class PromptError(Exception):
    """The request cannot be turned into a prompt. Maps to status 400.

    Attributes:
        code: one of spec/serving.md §4.3 and §4.4, such as `invalid_prompt` or `invalid_tool_history`.
        message: one sentence for the person who sent the request.
        param: the request field at fault, or None.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
