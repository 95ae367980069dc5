"""Log set-up of every process: readable in a terminal, one JSON object a line when piped.

Modules log through ``structlog.get_logger(__name__)`` with an event name and keys, never with formatted prose, so
that a line can be searched by placement, node or request id.
"""

import logging
import sys

import structlog


def set_up_logging(role: str, level: str = "INFO") -> None:
    """Configure structlog and the standard library's root logger to write to standard error."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    terminal = sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        # Not the default with every local variable: among them are tokens.
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if terminal
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    final: list[structlog.typing.Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if not terminal:
        final.append(structlog.processors.format_exc_info)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[*final, renderer])
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(role=role)
