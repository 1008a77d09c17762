"""What can go wrong, by what a person can do about it."""


class DownloadError(Exception):
    """The artifact is not in place. The message names the thing, its value, and what would work."""

    exit_code = 1


class CatalogError(DownloadError):
    """The request cannot work as it stands: unknown name, broken catalog, unsupported version, no access."""

    exit_code = 2


class TransferError(DownloadError):
    """The network or the server failed; trying again may work. Nothing that was staged is lost."""


class RangesRefusedError(TransferError):
    """The server sends only whole objects, so a damaged range cannot be fetched by itself."""
