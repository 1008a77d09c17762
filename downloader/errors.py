"""What can go wrong, by what a person can do about it."""


class DownloadError(Exception):
    """The artifact is not in place. The message names the thing, its value, and what would work."""

    exit_code = 1


class CatalogError(DownloadError):
    """The request cannot work as it stands: unknown name, broken catalog, unsupported version, no access."""

    exit_code = 2


class TransferError(DownloadError):
    """The network or the server failed; trying again may work. Nothing that was staged is lost."""

    def __init__(self, message: str, *, pause: float = 0.0) -> None:
        """`pause`: seconds that the server asked us to wait (Retry-After)."""
        super().__init__(message)
        self.pause = pause


class SurplusError(TransferError):
    """The server sent more than it was asked for, so what it sent cannot be trusted to be the range."""


class RangesRefusedError(TransferError):
    """The server sends only whole objects."""


class SourceError(DownloadError):
    """One source will never give these bytes: no access, no such object, another object. Others may."""

    exit_code = 2
