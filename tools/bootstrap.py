"""Creates the virtual environment for the Makefile; needs only a bare python3 (3.11 or newer) with venv.

    python3 tools/bootstrap.py VENV NAME...

installs what requirements/NAME.txt locks, with `test` also torchtailor itself and the workload hook, and then writes
the file VENV/.NAME. Older Pythons must be able to read this file, to be told that they are too old: no newer syntax.
"""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"

# What pip is told about indexes, and how uv is told the same: uv does not read pip's settings.
_SETTINGS = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "proxy": ("ALL_PROXY", " "),
}
# The settings of pip and uv about how an index is reached; all others would install something else, or elsewhere.
_REACHING = re.compile(
    "(PIP|UV)_((DEFAULT_|EXTRA_)?INDEX(_URL)?|FIND_LINKS|NO_INDEX|TRUSTED_HOST|INSECURE_HOST|CERT|CLIENT_CERT|PROXY"
    "|(HTTP_|REQUEST_|DEFAULT_|HTTP_CONNECT_)?TIMEOUT|(HTTP_)?RETRIES|OFFLINE|CACHE_DIR|NO_CACHE(_DIR)?"
    "|KEYRING_PROVIDER|NO_INPUT|CONFIG_FILE|NO_CONFIG|NATIVE_TLS|SYSTEM_CERTS|LINK_MODE|INDEX_.*|CONCURRENT_.*)"
)

_FULL = ("No space left on device", "Disk quota exceeded", "os error 28")
# What pip and uv print where an index cannot be reached; in lower case.
_UNREACHABLE = (
    "dns error",
    "name resolution",
    "name or service not known",
    "newconnectionerror",
    "connecttimeout",
    "connection refused",
    "network is unreachable",
    "no route to host",
    "proxyerror",
    "tcp connect error",
    "tunnel error",
    "operation timed out",
)


class SetUpError(Exception):
    """What is wrong, and what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def main() -> int:
    venv, names = Path(sys.argv[1]), sys.argv[2:]
    try:
        check_python()
        set_up(venv, names)
    except SetUpError as error:
        print(f"error: {error}\n       {error.hint}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: The environment cannot be made: {error}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted. Run make again: it starts over.", file=sys.stderr)
        return 130
    return 0


def check_python() -> None:
    if sys.version_info < (3, 11):
        version = ".".join(map(str, sys.version_info[:3]))
        raise SetUpError(
            f"Python {version} is too old: torchtailor needs 3.11 or newer.",
            "Name a newer one: `make PYTHON=python3.13 ...`.",
        )


def set_up(venv: Path, names: "list[str]") -> None:
    python, unfinished = venv / "bin" / "python", venv / ".unfinished"
    # What an interrupted run left may look installed and lack files; what was moved or copied names the old place.
    if unfinished.exists() or was_moved(venv) or run([*pip(python), "--version"]).returncode:
        make_environment(venv)
        names = ["test", *(name for name in names if name != "test")]
    unfinished.touch()
    for name in names:
        stamp = venv / f".{name}"
        stamp.unlink(missing_ok=True)
        size = ", a download of 130 MB" if name == "test" else ""
        print(f"installing requirements/{name}.txt into {venv}{size}", flush=True)
        install(python, "-r", str(LOCKS / f"{name}.txt"))
        if name == "test":
            install(python, "--no-deps", "--no-build-isolation", "-e", str(ROOT))
            compile_hook(python)
        stamp.write_text(str(ROOT))
    unfinished.unlink()


def was_moved(venv: Path) -> bool:
    stamp = venv / ".test"
    return stamp.exists() and stamp.read_text() != str(ROOT)


def make_environment(venv: Path) -> None:
    print(f"making {venv}", flush=True)
    if venv.exists() and not venv.is_dir():
        raise SetUpError(f"{venv} is not a folder.", "Move it away, then run make again.")
    missing = [module for module in ("venv", "ensurepip") if not importlib.util.find_spec(module)]
    done = None if missing else run([sys.executable, "-m", "venv", "--clear", str(venv)])
    if done and not done.returncode:
        return
    full = (
        done and venv.exists() and shutil.disk_usage(venv).free < 20_000_000
    )  # venv itself does not say why it failed
    shutil.rmtree(venv, ignore_errors=True)  # half-made, it would be taken for one that works
    if done:
        check_known(_FULL[0] if full else done.stdout)
        print(done.stdout.strip(), file=sys.stderr)
        raise SetUpError(f"{sys.executable} could not make {venv}.", "See its message above; then run make again.")
    raise SetUpError(
        f"This Python cannot make virtual environments: it has no {' and no '.join(missing)}.",
        "On Debian and Ubuntu: apt-get install python3-venv. Then run make again.",
    )


def install(python: Path, *what: str) -> None:
    """With uv, which takes a tenth of pip's time, or else with pip; both only install files that have a locked hash."""
    given = {name: value for name, value in os.environ.items() if is_kept(name)}
    environment = with_caches({"PIP_RETRIES": "1", "UV_HTTP_RETRIES": "1", **given})
    uv = python.with_name("uv")
    with_pip = [*pip(python), "install", "--quiet", "--no-compile", "--no-user"]
    why = ""
    if not uv.exists():
        done = run([*with_pip, "-r", str(LOCKS / "uv.txt")], environment)
        check_known(done.stdout)
    if uv.exists():
        listed = run([*pip(python), "config", "list"], environment).stdout
        command = [str(uv), "pip", "install", "--quiet", "--index-strategy", "unsafe-best-match"]
        command += ["--no-index"] if is_on(pip_settings(listed).get("no-index", "")) else []
        done = run([*command, "--python", str(python), *what], {**for_uv(listed), **environment})
        if not done.returncode:
            return
        check_known(done.stdout)
        why = f"{done.stdout.strip()}\n"
    print(f"{why}uv cannot be used here; trying pip, which takes some minutes", flush=True)
    done = run([*with_pip, *what], environment)
    if done.returncode:
        check_known(done.stdout)
        print(done.stdout.strip(), file=sys.stderr)
        variables = sorted(name for name in given if name.startswith(("PIP_", "UV_")))
        raise SetUpError(
            "pip could not install the packages.",
            "See its message above"
            + (f", and the settings in {', '.join(variables)}" if variables else "")
            + "; then run make again.",
        )


def is_kept(name: str) -> bool:
    """Whether pip and uv see this variable."""
    return not name.startswith(("PIP_", "UV_")) or bool(_REACHING.fullmatch(name))


def is_on(value: str) -> bool:
    return value.lower() in ("1", "true", "yes", "on")


def check_known(output: str) -> None:
    """Raise what a failed program's output is known to mean."""
    if any(sign in output for sign in _FULL):
        raise SetUpError(
            "The disk is full.",
            "The environment needs 500 MB, of which 130 MB are downloaded; make room, then run make again.",
        )
    if "the network was disabled" in output:
        raise SetUpError("UV_OFFLINE is set, and uv's cache lacks packages.", "Unset it, then run make again.")
    if any(sign in output.lower() for sign in _UNREACHABLE):
        raise SetUpError(
            "The package index cannot be reached.",
            "The first make installs its tools from there: check the network, or pip's settings (`pip config list`).",
        )


def compile_hook(python: Path) -> None:
    print("compiling the workload hook", flush=True)
    tool = [str(python), str(ROOT / "tools" / "build_hook.py")]
    if not run([*tool, "--system"]).returncode:
        return
    print("there is no C compiler that works; installing ziglang (100 MB)", flush=True)
    try:
        install(python, "-r", str(LOCKS / "hook.txt"))
        done = run(tool)
        why = done.stdout.strip() if done.returncode else ""
    except SetUpError as error:
        why = f"ziglang cannot be installed. {error}"
    if why:
        print(f"There is no workload hook; `record`, `--workload` and their tests do not run: {why}", file=sys.stderr)
        print("       Install a C compiler, then run `python3 tools/build_hook.py --system`.", file=sys.stderr)


def with_caches(environment: "dict[str, str]") -> "dict[str, str]":
    """Without caches where the home cannot be written to."""
    folder = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/nonexistent"), ".cache")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return environment
    except OSError:
        return {"UV_NO_CACHE": "1", "PIP_NO_CACHE_DIR": "1", **environment}


def run(command: "list[str]", environment: "dict[str, str] | None" = None) -> "subprocess.CompletedProcess[str]":
    """With all that it prints; a program that is not there is one that fails."""
    try:
        return subprocess.run(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        return subprocess.CompletedProcess(command, 127, str(error))


def pip_settings(listed: str) -> "dict[str, str]":
    """What `pip config list` says; a variable wins over `[install]`, that over `[global]`."""
    found: dict[str, tuple[int, str]] = {}
    order = {"global": 0, "install": 1, ":env:": 2}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in order and order[section] >= found.get(key, (0, ""))[0]:
            found[key] = order[section], ast.literal_eval(value)
    return {key: value for key, (_, value) in found.items()}


def for_uv(listed: str) -> "dict[str, str]":
    """The environment that tells uv what `pip config list` says."""
    settings = pip_settings(listed)
    return {
        variable: separator.join(settings[key].split())
        for key, (variable, separator) in _SETTINGS.items()
        if key in settings
    }


def pip(python: Path) -> "list[str]":
    return [str(python), "-m", "pip", "--disable-pip-version-check"]


if __name__ == "__main__":
    sys.exit(main())
