"""The box's settings: values, where each came from, and the paths that follow from them."""

import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance import launch_variables
from downloader.catalog import DEFAULT_CATALOG, Pin, find, read_catalog
from downloader.errors import CatalogError
from downloader.signature import POLICIES, Policy
from engine.exits import ConfigurationError
from engine.options import Options, Resolved, resolve, rows_of

KEYS_FILE = "keys.json"
SETTINGS_FILE = "settings.toml"
DRAIN_SECONDS = 8.0  # for running requests to end when the box is stopped


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `ninfer-appliance` was asked for. Folders are named by what may be lost (design: directories)."""

    resolved: Resolved
    home: Path
    models: Path
    cache: Path
    state: Path
    catalog: Path
    model: str  # as asked for
    public_name: str  # what clients call it
    artifact: Path
    fetch: bool  # whether the catalog vouches for the artifact
    note: str  # what the catalog says a user must know
    variables: Mapping[str, str] = field(default_factory=dict)  # launch variables: they adjust the profile

    @property
    def options(self) -> Options:
        return self.resolved.options

    @property
    def state_file(self) -> Path:
        return self.state / "state.json"

    @property
    def key_store(self) -> Path:
        return self.state / KEYS_FILE

    @property
    def tls_folder(self) -> Path:
        return self.state / "tls"

    @property
    def url(self) -> str:
        """The address to type on this machine."""
        host = self.options.host
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
        scheme = "http" if self.options.tls == "off" else "https"
        return f"{scheme}://{shown}:{self.options.port}"

    def make_folders(self) -> None:
        """Make home's folders, closed to others where a key or a certificate may lie.

        Raises:
            ConfigurationError: a folder cannot be made or written.
        """
        for folder, mode in ((self.home, 0o755), (self.models, 0o755), (self.cache, 0o755), (self.state, 0o700)):
            try:
                folder.mkdir(mode=mode, parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigurationError(
                    f"{folder}: {error.strerror}; choose a writable folder with --home or NINFER_HOME"
                ) from error
            # The artifacts may be on a read-only mount, and a container mounts the folders below home one by one.
            if folder not in (self.home, self.models) and not os.access(folder, os.W_OK | os.X_OK):
                raise ConfigurationError(f"{folder} is not writable; ninfer-appliance doctor says what to type")


def load_settings(flags: Mapping[str, str | None], environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings from flags, environment, HOME/settings.toml and defaults.

    Raises:
        ConfigurationError: a value is wrong, or the model or profile is unknown.
    """
    # Home says where the file is, so it is looked up without the file first.
    home = resolve({"home": flags.get("home")}, _only(environ, "home")).options.home.absolute()
    file = home / SETTINGS_FILE
    variables = launch_variables.collect(environ)
    resolved = resolve(flags, launch_variables.without_presets(environ), file if file.exists() else None)
    resolved = launch_variables.keep_presets(resolved, flags, environ)
    if file.exists() and "home" in tomllib.loads(file.read_text(encoding="utf-8")):
        raise ConfigurationError(f"{file}: home cannot be set here; use --home or NINFER_HOME")
    # A launcher names the model as a flag; then a path in NINFER_MODEL says where its artifact is.
    named = environ.get("NINFER_MODEL", "")
    if launch_variables.is_path(named) and not launch_variables.is_path(resolved.options.model):
        variables["NINFER_MODEL"] = named
    return from_resolved(resolved, variables)


def from_resolved(resolved: Resolved, variables: Mapping[str, str] | None = None) -> Settings:
    """The paths that follow from resolved options and launch variables.

    Raises:
        ConfigurationError: the model or profile is unknown, or the artifact named by a path is not there.
    """
    variables = {} if variables is None else variables
    resolved = _with_profile(resolved, variables)
    options = resolved.options
    home = options.home.absolute()
    models = (options.model_dir or home / "models").absolute()
    catalog = (options.catalog or default_catalog()).absolute()
    artifact, name, pin = _artifact(options, models, catalog)
    if "NINFER_MODEL" in variables:
        artifact, pin = _existing("NINFER_MODEL", variables["NINFER_MODEL"]), None
    return Settings(
        resolved=resolved,
        home=home,
        models=models,
        cache=home / "cache",
        state=home / "state",
        catalog=catalog,
        model=options.model,
        public_name=options.model_id or name,
        artifact=artifact,
        fetch=pin is not None,
        note=pin.note if pin is not None else "",
        variables=variables,
    )


def default_catalog() -> Path:
    """The catalog that came with the program."""
    return DEFAULT_CATALOG if DEFAULT_CATALOG.exists() else etc_file("models.toml")


def catalog_keys(options: Options) -> Path:
    """The folder of public keys that may sign a catalog."""
    return (options.catalog_keys or default_catalog().parent / "keys").absolute()


def catalog_policy(options: Options) -> Policy:
    """What to do about a catalog that no trusted key signed."""
    return next(policy for policy in POLICIES if policy == options.catalog_policy)


def etc_file(name: str) -> Path:
    """A file of etc/: beside the packages in a checkout, under the prefix of an installation."""
    beside = Path(__file__).resolve().parent.parent / "etc" / name
    return beside if beside.exists() else Path(sys.prefix) / "share" / "ninfer" / "etc" / name


def values_as_text(resolved: Resolved) -> dict[str, str]:
    """Every set value as the text that parses back to it, by field name."""
    values = {name: getattr(resolved.options, name) for name, _ in rows_of(Options)}
    return {name: _as_text(value) for name, value in values.items() if value is not None}


def from_text(values: Mapping[str, str], sources: Mapping[str, Any], variables: Mapping[str, str]) -> Settings:
    """Settings from `values_as_text` and what belongs to it: what one process hands to another."""
    return from_resolved(Resolved(resolve(values, {}).options, dict(sources)), variables)


def settings_lines(settings: Settings) -> list[str]:
    """The table to print at start: value and origin of each option."""
    rows = settings.resolved.table()
    flag_width = max(len(flag) for flag, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows)
    return [f"{flag:<{flag_width}}  {value:<{value_width}}  {source}" for flag, value, source in rows]


def _with_profile(resolved: Resolved, variables: Mapping[str, str]) -> Resolved:
    chosen = resolved.options
    path = etc_file("profiles.toml")
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    adjusted = any(name in variables for name in launch_variables.ADJUSTING)
    if chosen.model not in tables and chosen.profile == Options().profile and not adjusted:
        return resolved  # the plain defaults
    from appliance.profiles import apply, launch_profile  # noqa: PLC0415  (loads the planner: not for every start)

    return apply(resolved, launch_profile(resolved, variables, path))


def _only(environ: Mapping[str, str], name: str) -> dict[str, str]:
    row = dict(rows_of(Options))[name]
    return {row.env: environ[row.env]} if row.env in environ else {}


def _artifact(options: Options, models: Path, catalog: Path) -> tuple[Path, str, Pin | None]:
    model = options.model
    if launch_variables.is_path(model):
        path = _existing("--model", model)
        return path, path.stem, None
    try:
        # `fetch` prints what a policy of warn has to say; here only enforce matters.
        pin = find(read_catalog(catalog, policy=catalog_policy(options), keys=catalog_keys(options)), model)
    except CatalogError as error:
        raise ConfigurationError(f"--model {model}: {error}") from error
    return pin.path or models / pin.file, pin.name, pin


def _existing(origin: str, text: str) -> Path:
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        raise ConfigurationError(f"{origin} {text}: no such file; a catalog name or the path of an artifact works")
    return path


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
