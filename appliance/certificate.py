"""The box's own certificate: made once, kept in HOME/state/tls, made again before it expires."""

import datetime
import ipaddress
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from engine.exits import ConfigurationError
from engine.log import get_logger
from engine.network import machine_names
from engine.tls import load

log = get_logger(__name__)

DAYS = 825  # the longest that Apple's systems take
RENEW_DAYS = 30
CERTIFICATE, KEY = "certificate.pem", "key.pem"

Clock = Callable[[], datetime.datetime]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def own_certificate(
    folder: Path,
    *,
    names: Iterable[str] | None = None,
    addresses: Iterable[str] | None = None,
    now: Clock = _now,
) -> tuple[Path, Path]:
    """Certificate and key of this box, for its names and addresses; made when absent, damaged or about to expire.

    A certificate that works is kept even when addresses have changed since, because clients remember its fingerprint.

    Raises:
        ConfigurationError: the folder cannot be written.
    """
    certificate, key = folder / CERTIFICATE, folder / KEY
    if _good(certificate, key, now()):
        return certificate, key
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(
            certificate, key, machine_names() if names is None else names,
            machine_addresses() if addresses is None else addresses, now(),
        )  # fmt: skip
    except OSError as error:
        raise ConfigurationError(f"certificate in {folder}: {error.strerror}") from error
    log.info("certificate_made", file=str(certificate), days=DAYS)
    return certificate, key


def machine_addresses() -> tuple[str, ...]:
    """The addresses of this machine, loopback first; link-local ones, which need a zone, are left out."""
    found = {"127.0.0.1", "::1"}
    for interface in psutil.net_if_addrs().values():
        for one in interface:
            if one.family in (socket.AF_INET, socket.AF_INET6):
                address = ipaddress.ip_address(one.address.partition("%")[0])
                if not address.is_link_local:
                    found.add(str(address))
    return tuple(sorted(found, key=lambda text: (not ipaddress.ip_address(text).is_loopback, text)))


def _good(certificate: Path, key: Path, now: datetime.datetime) -> bool:
    try:
        load(certificate, key)
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (ConfigurationError, OSError, ValueError):
        return False
    return found.not_valid_before_utc <= now < found.not_valid_after_utc - datetime.timedelta(days=RENEW_DAYS)


def _make(
    certificate: Path, key: Path, names: Iterable[str], addresses: Iterable[str], now: datetime.datetime
) -> None:  # fmt: skip
    # P-256 is what every client takes.
    private = ec.generate_private_key(ec.SECP256R1())
    names = tuple(dict.fromkeys(["localhost", *names]))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"NInfer box {names[-1]}"[:64])])
    public = private.public_key()
    alternatives = [x509.DNSName(name) for name in names if name.isascii()]
    numbers = [x509.IPAddress(ipaddress.ip_address(text)) for text in addresses]
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clients' clocks differ
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName([*alternatives, *numbers]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        # No KeyUsage: BoringSSL takes one without keyCertSign for "not signed by itself", others refuse it with.
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(private, hashes.SHA256())
    )
    encoded = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # Interrupted between the two, the pair does not match and is made again.
    _replace(key, encoded, 0o600)
    _replace(certificate, signed.public_bytes(serialization.Encoding.PEM), 0o644)


def _replace(path: Path, data: bytes, mode: int) -> None:
    staged = path.with_suffix(".new")
    staged.unlink(missing_ok=True)
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)
