"""One line an event, on stderr; JSON on request. Every process calls `configure` once."""

import logging
import sys
from typing import TextIO, cast

import structlog

LEVELS = {
    "trace": 5,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "off": logging.CRITICAL + 10,
}


def configure(program: str, level: str = "info", *, json: bool = False, stream: TextIO | None = None) -> None:
    """Set up logging for this process; `program` is on every line, and standard `logging` goes the same way.

    Raises:
        KeyError: `level` is not one of `LEVELS`.
    """
    out = sys.stderr if stream is None else stream
    number = LEVELS[level]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "program", "event"])
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=shared))
    handler.addFilter(_drop_color_message)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(min(max(number, logging.DEBUG), logging.CRITICAL)),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(program=program)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose calls are `log.info("event_name", key=value)`."""
    return cast("structlog.stdlib.BoundLogger", structlog.get_logger(name))


def _drop_color_message(record: logging.LogRecord) -> bool:
    # structlog keeps its own copy of the record's dict; third-party loggers must not add unserialisable extras.
    record.__dict__.pop("color_message", None)
    return True
