"""pip's and uv's settings are read from all their places, and joined."""

from __future__ import annotations

import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pip
import pytest

from torchtailor.core.errors import NoMatchError, UsageError
from torchtailor.core.urls import redact
from torchtailor.fetch import pipconfig
from torchtailor.fetch.locations import LocationKind
from torchtailor.fetch.options import IndexOptions
from torchtailor.fetch.settings import IndexSettings, read_settings


@pytest.fixture(autouse=True)
def no_files_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    real = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda self: not str(self).startswith("/etc/") and real(self))


def read(tmp_path: Path, environment: dict[str, str] | None = None, **options: Any) -> IndexSettings:
    environment = {"HOME": str(tmp_path)} | (environment or {})
    return read_settings(IndexOptions(**options), environment=environment, directory=tmp_path)


def urls(settings: IndexSettings, kind: LocationKind = LocationKind.INDEX) -> list[str]:
    return [source.url for source in settings.sources if source.kind is kind]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_nothing_configured_means_what_pip_itself_would_use(tmp_path: Path) -> None:
    from pip._internal.models.index import PyPI

    (source,) = read(tmp_path).sources
    assert source.url == PyPI.simple_url
    assert source.origin == "pip's default"


def test_without_pip_its_bundled_copy_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expected = read(tmp_path).sources[0].url
    monkeypatch.setattr(pipconfig, "_from_pip", lambda: None)
    assert read(tmp_path).sources[0].url == expected
    # As Debian, whose Python has an empty `ensurepip` and one folder for the wheels of all environments.
    (tmp_path / "ensurepip").mkdir()
    (tmp_path / "ensurepip" / "__init__.py").touch()
    site = str(Path(pip.__file__).parents[1])
    with zipfile.ZipFile(tmp_path / "pip-1.0-py3-none-any.whl", "w") as wheel:
        for name in ("pip/__init__.py", "pip/_internal/__init__.py", "pip/_internal/models/__init__.py"):
            wheel.writestr(name, "")
        wheel.write(f"{site}/pip/_internal/models/index.py", "pip/_internal/models/index.py")
    monkeypatch.delitem(sys.modules, "ensurepip", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sysconfig, "get_config_var", {"WHEEL_PKG_DIR": str(tmp_path)}.get)
    assert read(tmp_path).sources[0].url == expected
    monkeypatch.setattr(pipconfig, "_from_bundled_pip", lambda: None)
    with pytest.raises(UsageError, match="No package index is configured"):
        read(tmp_path)


def test_pip_environment_over_files_and_later_files_over_earlier(tmp_path: Path) -> None:
    write(tmp_path / "xdg/pip/pip.conf", "[global]\nindex-url = https://machine/simple\ntimeout = 7\n")
    write(tmp_path / ".pip/pip.conf", "[global]\nindex_url = https://old/simple\n")
    write(
        tmp_path / ".config/pip/pip.conf",
        "[global]\nindex-url = https://user/simple\nextra-index-url =\n    https://a/simple\n    https://b/simple\n"
        "[install]\nfind-links = /wheels https://links/page.html\ntrusted-host = a\n",
    )
    settings = read(tmp_path)
    assert urls(settings) == ["https://a/simple", "https://b/simple", "https://user/simple"]
    assert urls(settings, LocationKind.LINKS) == ["file:///wheels", "https://links/page.html"]
    assert settings.timeout == 7
    assert settings.trusted_hosts == {"a"}
    write(tmp_path / "prefix/pip.conf", "[global]\nindex-url = https://venv/simple\n")
    assert urls(read(tmp_path))[-1] == "https://venv/simple"
    special = write(tmp_path / "special.conf", "[global]\nindex-url = https://special/simple\n")
    assert urls(read(tmp_path, {"PIP_CONFIG_FILE": str(special)}))[-1] == "https://special/simple"
    environment = {"PIP_INDEX_URL": "https://env/simple", "PIP_EXTRA_INDEX_URL": "https://c/simple https://d/simple"}
    assert urls(read(tmp_path, environment)) == ["https://c/simple", "https://d/simple", "https://env/simple"]
    none = read(tmp_path, {"PIP_CONFIG_FILE": "/dev/null"})
    assert none.sources[0].origin == "pip's default"


def test_no_index_leaves_the_links(tmp_path: Path) -> None:
    settings = read(tmp_path, {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "PIP_INDEX_URL": "https://x/simple"})
    assert [source.url for source in settings.sources] == ["file:///wheels"]


def test_uv_environment_and_files(tmp_path: Path) -> None:
    write(
        tmp_path / "uv.toml",
        'find-links = ["wheels"]\n[[index]]\nname = "corp"\nurl = "https://corp/simple"\ndefault = true\n'
        '[[index]]\nurl = "https://more/simple"\n[[index]]\nurl = "https://only/simple"\nexplicit = true\n'
        '[[index]]\nurl = "https://flat/page"\nformat = "flat"\n',
    )
    settings = read(tmp_path, {"UV_INDEX_CORP_USERNAME": "me", "UV_INDEX_CORP_PASSWORD": "se/cret"})
    assert urls(settings) == ["https://more/simple", "https://me:se%2Fcret@corp/simple"]
    assert settings.indexes[1].shown == "https://****@corp/simple"
    assert urls(settings, LocationKind.LINKS) == [(tmp_path / "wheels").as_uri(), "https://flat/page"]
    environment = {"UV_DEFAULT_INDEX": "https://env/simple", "UV_INDEX": "n=https://one/simple https://two/simple"}
    listed = urls(read(tmp_path, environment))
    assert listed[:2] == ["https://one/simple", "https://two/simple"] and listed[-1] == "https://env/simple"
    assert read(tmp_path, {"UV_NO_CONFIG": "1", "UV_OFFLINE": "true"}).offline
    assert read(tmp_path, {"UV_NO_CONFIG": "1"}).sources[0].origin == "pip's default"


def test_uv_project_table_found_in_a_parent_folder(tmp_path: Path) -> None:
    write(
        tmp_path / "pyproject.toml", '[tool.uv]\nindex-url = "https://project/simple"\n[tool.uv.pip]\noffline = true\n'
    )
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    settings = read_settings(environment={"HOME": str(tmp_path)}, directory=inner)
    assert urls(settings) == ["https://project/simple"]
    assert settings.offline


def test_pip_and_uv_together_and_the_command_line_over_both(tmp_path: Path) -> None:
    environment = {
        "PIP_INDEX_URL": "https://pip/simple",
        "UV_DEFAULT_INDEX": "https://uv/simple",
        "PIP_EXTRA_INDEX_URL": "https://uv/simple/",
    }
    assert urls(read(tmp_path, environment)) == ["https://uv/simple/", "https://pip/simple"]
    chosen = read(tmp_path, environment, index_url="https://mine/simple", extra_index_urls=("https://e/simple",))
    assert urls(chosen) == ["https://e/simple", "https://mine/simple"]
    assert chosen.explicit_index


def test_certificates_and_numbers(tmp_path: Path) -> None:
    bundle = write(tmp_path / "ca.pem", "")
    assert read(tmp_path, {"PIP_CERT": str(bundle)}).ca_bundle == bundle
    assert read(tmp_path, {"SSL_CERT_FILE": str(bundle)}).ca_bundle == bundle
    with pytest.raises(UsageError, match="does not exist"):
        read(tmp_path, {"PIP_CERT": "/nowhere.pem"})
    with pytest.raises(UsageError, match="is not a number"):
        read(tmp_path, {"PIP_TIMEOUT": "soon"})


@pytest.mark.parametrize(("name", "text"), [(".config/pip/pip.conf", "index-url = x\n"), ("uv.toml", "index = [\n")])
def test_a_damaged_file_is_named(name: str, text: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, text)
    with pytest.raises(UsageError, match="cannot be read") as caught:
        read(tmp_path)
    assert str(path) in caught.value.message


def test_bad_addresses_and_paths(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not http, https or file"):
        read(tmp_path, index_url="ftp://me:secret@host/simple")
    with pytest.raises(UsageError, match="without //") as caught:  # as a path, it was shown with its password
        read(tmp_path, {"PIP_INDEX_URL": "https:/me:secret@host/simple"})
    assert "secret" not in caught.value.message
    with pytest.raises(UsageError, match="of 5000 letters"):
        read(tmp_path, {"PIP_INDEX_URL": "\0" * 5000})
    with pytest.raises(NoMatchError, match="--find-links: nowhere does not exist"):
        read(tmp_path, find_links=("nowhere",))
    (tmp_path / "here").mkdir()
    assert read(tmp_path, find_links=("here",)).sources[0].local_path == tmp_path / "here"


def test_passwords_are_not_shown() -> None:
    assert redact("https://a:b@host:80/x") == "https://****@host:80/x"
    assert redact("https://host/x@y") == "https://host/x@y"


def test_pip_and_uv_configuration_import_nothing_of_the_settings_that_join_them() -> None:
    """They were a circle: settings imported both, and both imported settings."""
    import subprocess
    import sys

    code = "import sys, torchtailor.fetch.{name}; print('torchtailor.fetch.settings' in sys.modules)"
    for name in ("pipconfig", "uvconfig", "locations"):
        line = [sys.executable, "-c", code.format(name=name)]
        assert subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip() == "False"
