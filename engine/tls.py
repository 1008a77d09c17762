"""TLS of the listening side: the certificate files, checked, loaded, and followed when they change."""

import asyncio
import hashlib
import ssl
from pathlib import Path

from engine.exits import ConfigurationError
from engine.log import get_logger
from engine.options import Options

log = get_logger(__name__)

LOOK_SECONDS = 2.0  # between two looks at the files
HANDSHAKE_SECONDS = 10.0


def fingerprint(certificate: Path) -> str:
    """SHA-256 of the first certificate in a PEM file, as browsers and openssl show it.

    Raises:
        ConfigurationError: the file cannot be read or holds no certificate.
    """
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    try:
        text = certificate.read_text(encoding="ascii")
        first = text[text.index(begin) : text.index(end) + len(end)]
        encoded = ssl.PEM_cert_to_DER_cert(first)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "holds no PEM certificate"
        raise ConfigurationError(f"certificate {certificate}: {reason}") from error
    return hashlib.sha256(encoded).digest().hex(":").upper()


def load(certificate: Path, key: Path) -> ssl.SSLContext:
    """A server's context, TLS 1.2 or newer, HTTP/1.1.

    Raises:
        ConfigurationError: a file cannot be read, or the two do not belong together; the message names them.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    for file in (certificate, key):
        try:
            file.open("rb").close()
        except OSError as error:
            raise ConfigurationError(f"TLS file {file}: {error.strerror}") from error
    try:
        # An encrypted key would make OpenSSL ask on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"TLS files {certificate} and {key}: {error.reason or error}; a PEM certificate and its unencrypted "
            "PEM key are needed"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"TLS files {certificate} and {key}: {error}") from error
    return context


def given_files(options: Options) -> tuple[Path, Path] | None:
    """Certificate and key of `--tls files`, checked; None when TLS is off.

    Raises:
        ConfigurationError: one is missing, given without --tls files, or does not work.
    """
    certificate, key = options.tls_certificate, options.tls_key
    if options.tls != "files":
        if certificate is not None or key is not None:
            raise ConfigurationError(f"--tls-certificate and --tls-key need --tls files; it is {options.tls}")
        return None
    if certificate is None or key is None:
        raise ConfigurationError("--tls files needs both --tls-certificate and --tls-key")
    load(certificate, key)
    return certificate.absolute(), key.absolute()


class Certificate:
    """What new connections are shown. Files that are replaced count from the next connection on."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load both.

        Raises:
            ConfigurationError: see `load`.
        """
        self._files = certificate, key
        self._stamps = self._look()
        self._current = load(certificate, key)
        self.context = load(certificate, key)
        self.context.sni_callback = self._choose  # called for clients that send no name, too

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        found: list[tuple[int, int, int] | None] = []
        for file in self._files:
            try:
                status = file.stat()
                found.append((status.st_mtime_ns, status.st_ino, status.st_size))
            except OSError:
                found.append(None)
        return tuple(found)

    def reload(self) -> bool:
        """Take changed files; True when new ones are in force. Files that do not work leave the old ones there."""
        stamps = self._look()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:
            self._current = load(*self._files)
        except ConfigurationError as error:
            log.error("certificate_not_taken", reason=str(error))
            return False
        log.info("certificate_taken", fingerprint=fingerprint(self._files[0]))
        return True

    async def follow(self) -> None:
        """Look at the files now and then, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.to_thread(self.reload)
