"""`keys.json`: the named API keys of a box. Written by `ninfer-appliance keys`; read by `api`, which follows changes.

A key is 256 random bits, shown once when it is made. The file holds its SHA-256 alone: nothing slower is needed for a
secret that nobody can guess.
"""

import contextlib
import hashlib
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import filelock
import msgspec

from engine.exits import ConfigurationError

Role = Literal["user", "admin"]
ROLES: tuple[Role, ...] = ("user", "admin")

FILE = "keys.json"
PREFIX = "ninfer_"  # so that a key that got somewhere is recognised
UNNAMED = "unnamed"  # how the key of --api-key is called in logs
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
LOCK_SECONDS = 10.0


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key. `sha256` is of the key's UTF-8 bytes, in hexadecimal; `created` is in Unix seconds."""

    name: str
    role: Role
    sha256: str
    created: int = 0

    @property
    def digest(self) -> bytes:
        """The 32 bytes to compare with."""
        return bytes.fromhex(self.sha256)


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1] = 1
    keys: tuple[Key, ...] = ()


def digest(key: str) -> bytes:
    """SHA-256 of a key as a header carries it."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(path: Path) -> tuple[Key, ...] | None:
    """The keys in `path`; None when nobody ever made one. An empty file of keys accepts nobody.

    Raises:
        ConfigurationError: the file cannot be read or holds something else.
    """
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"keys in {path}: {error}") from error
    for key in file.keys:
        if not re.fullmatch(r"[0-9a-f]{64}", key.sha256):
            raise ConfigurationError(f"keys in {path}: sha256 of {key.name!r} is not 64 hexadecimal digits")
    return file.keys


def add_key(path: Path, name: str, role: Role) -> str:
    """Make a key and store its digest; returns the key, which is nowhere else.

    Raises:
        ConfigurationError: the name is taken or no name, or the file cannot be written.
    """
    if not NAME.fullmatch(name) or name == UNNAMED:
        raise ConfigurationError(
            f"{name!r} cannot name a key; up to 64 letters, digits and . _ @ - work, {UNNAMED!r} is taken by --api-key"
        )
    key = PREFIX + secrets.token_urlsafe(32)
    with _locked(path):
        keys = read_keys(path) or ()
        if any(one.name == name for one in keys):
            raise ConfigurationError(f"there is a key named {name!r}; revoke it first, or choose another name")
        new = Key(name=name, role=role, sha256=digest(key).hex(), created=int(time.time()))
        _write(path, (*keys, new))
    return key


def revoke_key(path: Path, name: str) -> None:
    """Forget the key of this name.

    Raises:
        ConfigurationError: there is none, or the file cannot be written.
    """
    with _locked(path):
        keys = read_keys(path) or ()
        left = tuple(one for one in keys if one.name != name)
        if len(left) == len(keys):
            names = ", ".join(one.name for one in keys) or "none"
            raise ConfigurationError(f"there is no key named {name!r}; there are: {names}")
        _write(path, left)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = path.with_suffix(".lock")
    try:
        with filelock.FileLock(lock, mode=0o600, timeout=LOCK_SECONDS):
            _hand_over(lock)
            yield
    except filelock.Timeout as error:
        raise ConfigurationError(f"keys in {path}: another command has held {lock} for {LOCK_SECONDS:g} s") from error
    except OSError as error:
        raise ConfigurationError(f"keys in {path}: {error.strerror or error}") from error


def _hand_over(path: Path) -> None:
    """Root made it; the box, which may be somebody else, must be able to read it."""
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)


def _write(path: Path, keys: tuple[Key, ...]) -> None:
    data = msgspec.json.format(msgspec.json.encode(_File(keys=keys)), indent=2) + b"\n"
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _hand_over(Path(name))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # a key that was shown must survive a power cut
    finally:
        os.close(folder)
