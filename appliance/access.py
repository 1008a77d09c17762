"""How clients get in: the files of TLS and keys of this home, and whether a start is safe."""

from pathlib import Path

import msgspec

from appliance.run_folder import RunFiles
from appliance.settings import Settings
from engine.exits import ConfigurationError
from engine.key_store import read_keys
from engine.network import check_exposure
from engine.tls import fingerprint, given_files


class RunningConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a box was started with, as far as its clients care: part of the api's configuration file."""

    model_id: str = ""
    tls_certificate: str | None = None
    api_key_file: str | None = None
    key_store: str | None = None


def running_config(files: RunFiles) -> RunningConfig:
    """What is in the run folder; nothing while the box starts or ends."""
    try:
        return msgspec.json.decode(files.api_config.read_bytes(), type=RunningConfig)
    except (OSError, msgspec.MsgspecError):
        return RunningConfig()


def check_access(settings: Settings) -> None:
    """Refuse to serve a network without a key unless told so.

    Raises:
        ConfigurationError: that, or the file of keys is damaged.
    """
    check_exposure(settings.options.host, settings.options.open_network, key=key_needed(settings))


def key_needed(settings: Settings) -> bool:
    """Whether clients must send a key.

    Raises:
        ConfigurationError: the file of keys is damaged.
    """
    return read_keys(settings.key_store) is not None or settings.options.api_key is not None


def tls_files(settings: Settings) -> tuple[Path, Path] | None:
    """Certificate and key to serve with, made if they are to be ours and are not there; None without TLS.

    Raises:
        ConfigurationError: they cannot be made, or do not work.
    """
    given = given_files(settings.options)
    if settings.options.tls != "self-signed":
        return given
    from appliance.certificate import own_certificate  # noqa: PLC0415  (slow to load, and TLS may be off)

    return own_certificate(settings.tls_folder)


def certificate_file(settings: Settings) -> Path | None:
    """The certificate that clients are shown; it may not be there yet."""
    match settings.options.tls:
        case "self-signed":
            return settings.tls_folder / "certificate.pem"
        case "files":
            return settings.options.tls_certificate
        case _:
            return None


def shown_fingerprint(certificate: Path | None) -> str | None:
    """The fingerprint for a person, None where there is no certificate."""
    if certificate is None:
        return None
    try:
        return fingerprint(certificate)
    except ConfigurationError:
        return None
