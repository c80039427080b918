"""Options that several commands have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from torchtailor.core.errors import TorchtailorError, UsageError
from torchtailor.fetch.options import IndexOptions

_WHEELS = "From official wheels (--via wheel)"
CUT_WHEELS = "How wheels are cut (--via wheel)"
_INDEXES = "Where wheels come from (--via wheel)"
_SOURCE = "From source (--via source)"
_FARM = "On many machines"


def method_names(incomplete: str) -> list[str]:
    """The build methods that begin so, for a shell; those of the user's file too."""
    from torchtailor.catalog import load_catalog

    with suppress(TorchtailorError):
        return [name for name in load_catalog().methods if name.startswith(incomplete)]
    return []


Via = Annotated[str, typer.Option(metavar="wheel|source|nix", autocompletion=method_names, help="The build method.")]
Out = Annotated[Path, typer.Option("-o", "--out", help="The folder of the wheelhouses.")]
Release = Annotated[
    list[str] | None,
    typer.Option(help="PyTorch release: 2.15, 2.10, 2.14.0; or a branch of recipes. Several: 2.14,2.15."),
]
Python = Annotated[list[str] | None, typer.Option(help="For this Python, such as 3.12 or 3.13t. Several: 3.12,3.13.")]
Cuda = Annotated[str | None, typer.Option(help="Only builds with this CUDA, such as 13.2.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show the plan and stop.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document for scripts.")]
Report = Annotated[Path | None, typer.Option(help="Write one self-contained HTML page to this file.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only results and errors.")]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of progress bars.")]

# Of a cut, by `tailor` and `image`; what is chosen is in _cut.py
CutJobs = Annotated[int, typer.Option("--jobs", "-j", min=0, help="Processes; 0 means one per core.")]
CutDryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would be done, and write nothing.")]

# Of an image, as an input of `inspect` and `verify`
ImagePlatform = Annotated[
    str | None, typer.Option("--platform", metavar="OS/ARCH", help="Platform of a multi-platform image: linux/arm64.")
]
ImageInsecure = Annotated[bool, typer.Option("--insecure", help="Allow registries without TLS on other machines.")]

# Of what asks indexes
_INDEX_OPTIONS = {
    "index_url": Annotated[
        str | None,
        typer.Option(
            "--index-url", "-i", metavar="URL", help="This index instead of pip's and uv's.", rich_help_panel=_INDEXES
        ),
    ],
    "extra_index_urls": Annotated[
        list[str] | None,
        typer.Option("--extra-index-url", metavar="URL", help="One more index.", rich_help_panel=_INDEXES),
    ],
    "find_links": Annotated[
        list[str] | None,
        typer.Option(
            "--find-links", "-f", metavar="PATH|URL", help="A folder or page with wheels.", rich_help_panel=_INDEXES
        ),
    ],
    "offline": Annotated[
        bool, typer.Option("--offline", help="Use the cache and local folders only.", rich_help_panel=_INDEXES)
    ],
    "index_strategy": Annotated[
        str | None,
        typer.Option(
            "--index-strategy",
            metavar="RULE",
            help="first-index: of several, the first that has a package; unsafe-best-match: the newest, as pip.",
            rich_help_panel=_INDEXES,
        ),
    ],
}

# Of a build from official wheels
With = Annotated[
    list[str] | None,
    typer.Option(
        "--with", metavar="NAMES", help="Also torchvision,torchaudio,... matched to torch.", rich_help_panel=_WHEELS
    ),
]
NoGpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="none",
        help="none: for machines without a GPU, a CUDA build without its GPU code and NVIDIA's packages.",
        rich_help_panel=_WHEELS,
    ),
]
Glibc = Annotated[str, typer.Option(help="The oldest glibc of the target.", rich_help_panel=_WHEELS)]
Variants = Annotated[
    bool,
    typer.Option("--variants", help="Also an index of wheel variants (PEP 825 draft) for uv.", rich_help_panel=_WHEELS),
]

# On many machines
On = Annotated[
    str | None,
    typer.Option(
        "--on", metavar="WHERE", help="here, local:N, tls://HOST:PORT, or [farm.NAME].", rich_help_panel=_FARM
    ),
]
Store = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="A folder or bucket that all workers see.", rich_help_panel=_FARM),
]
Objects = Annotated[
    str | None,
    typer.Option(
        "--objects",
        metavar="URL",
        help="Compiled files that machines share: redis://HOST, http://..., a folder (--via source).",
        rich_help_panel=_FARM,
    ),
]
Shards = Annotated[
    int | None, typer.Option(min=1, help="Shards of each part (--via source); by weight.", rich_help_panel=_FARM)
]
Prove = Annotated[
    bool,
    typer.Option("--prove", help="Verify each wheelhouse (level static), as jobs of their own.", rich_help_panel=_FARM),
]

# Of a build from source
Source = Annotated[
    str | None,
    typer.Option(metavar="WHERE", help="GIT-URL@REF, TARBALL or DIR; none: the official tag.", rich_help_panel=_SOURCE),
]
Profile = Annotated[str, typer.Option(help="full, inference or minimal.", rich_help_panel=_SOURCE)]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="A switch: USE_XNNPACK=0.", rich_help_panel=_SOURCE, metavar="NAME=VALUE"),
]
Jobs = Annotated[
    str,
    typer.Option(
        "--jobs", "-j", help="Files to compile in parallel; auto: as many as fit into memory.", rich_help_panel=_SOURCE
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume/--no-resume", help="Continue where the same build stopped.", rich_help_panel=_SOURCE)
]
Toolchain = Annotated[
    str, typer.Option(help="system, or wheels: nvcc and CUDA from NVIDIA's wheels.", rich_help_panel=_SOURCE)
]
AutoFix = Annotated[
    int,
    typer.Option(min=0, help="Apply a known safe fix and build again, up to this many times.", rich_help_panel=_SOURCE),
]
AllGpus = Annotated[
    bool, typer.Option("--all-gpus", help="One library per ISA for all GPUs, cut for each.", rich_help_panel=_SOURCE)
]
SkipCheck = Annotated[
    list[str] | None, typer.Option(help="Build even if this check fails.", rich_help_panel=_SOURCE, metavar="NAME")
]
Work = Annotated[Path | None, typer.Option(help="Where to compile (20 GB).", rich_help_panel=_SOURCE)]
Bundle = Annotated[
    bool,
    typer.Option(
        "--bundle/--no-bundle",
        help="Put libraries that are not on every Linux into the wheel.",
        rich_help_panel=_SOURCE,
    ),
]
Verify = Annotated[bool, typer.Option("--verify/--no-verify", help="Verify the wheel.", rich_help_panel=_SOURCE)]
Target = Annotated[
    list[str] | None,
    typer.Option(
        "--target", help="Only this ninja target, such as c10; repeatable; no wheel.", rich_help_panel=_SOURCE
    ),
]
Ccache = Annotated[
    bool, typer.Option("--ccache/--no-ccache", help="Share objects between builds.", rich_help_panel=_SOURCE)
]


def only(option: str, words: list[str] | None) -> str | None:
    """The value of an option that may be given once; another one would be ignored in silence."""
    names = listed(words)
    if len(names) > 1:
        raise UsageError(f"{option} takes one value here, and {', '.join(names)} were given.", "Give one of them.")
    return names[0] if names else None


def listed(words: list[str] | None) -> tuple[str, ...]:
    """The names in options that may be repeated and may hold several, with commas."""
    return tuple(name.strip() for word in words or () for name in word.split(",") if name.strip())


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def parameter(name: str, annotation: Any) -> inspect.Parameter:
    """An option as typer takes it: a switch that is off, or what is not given."""
    default = False if get_args(annotation)[0] is bool else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


INDEX_PARAMETERS = [parameter(name, annotation) for name, annotation in _INDEX_OPTIONS.items()]


def takes(place: str, options: Sequence[inspect.Parameter], gather: Callable[[dict[str, Any]], object]) -> Decorator:
    """Gives a command options in the place of one parameter, which gets what `gather` makes of those that are given.

    Where the command has one of them itself, it stays the command's.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature, hints = inspect.signature(function), get_type_hints(function, include_extras=True)
        own = [
            one.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, one in signature.parameters.items()
        ]
        mine = [option for option in options if option.name not in signature.parameters]
        at = list(signature.parameters).index(place)
        parameters = [*own[:at], *mine, *own[at + 1 :]]

        @wraps(function)
        def run(**values: Any) -> Any:
            written = {one.name: (values.pop(one.name), one.default) for one in mine}
            given = {name: one for name, (one, usual) in written.items() if one not in (None, []) and one is not usual}
            return function(**{place: gather(given)}, **values)

        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def takes_indexes(*names: str) -> Decorator:
    """Gives a command, in the place of its parameter `indexes`, these options of indexes; all where none is named."""
    return takes("indexes", [one for one in INDEX_PARAMETERS if one.name in names or not names], index_options)


def index_options(given: dict[str, Any]) -> IndexOptions:
    """The options that were given."""
    chosen: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in given.items()}
    return IndexOptions(**chosen)
