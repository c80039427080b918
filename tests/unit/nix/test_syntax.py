"""Reading Nix and shell: answers come from the grammar, with the right lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchtailor.nix.shell import commands, exports, split
from torchtailor.nix.syntax import NixSource, TextLine

TEXT = """\
# a comment with cudaPackages_13
{ pkgs ? import <nixpkgs> {}, lib }:
let
  arch = "9.0"; # another
  list = [ arch "b" ];
in
(pkgs.python3Packages.torch.override { gpuTargets = list; }).overrideAttrs (old: {
  pname = "p-${arch}";
  meta.platforms = [ "x86_64-linux" ];
  phase = (old.phase or "") + ''
    export A=1 # not B=2
    echo "${arch}"
  '';
})
"""


def test_bindings_values_and_lines() -> None:
    source = NixSource(TEXT)
    assert source.error_line is None
    values = {".".join(binding.path): source.value(binding.node) for binding in source.bindings}
    assert values["pname"] == "p-9.0"
    assert values["gpuTargets"] == ("9.0", "b")
    assert values["meta.platforms"] == ("x86_64-linux",)
    assert {binding.name: binding.line for binding in source.bindings}["pname"] == 8
    assert [line.text for line in source.formals] == ["pkgs", "lib"]
    assert [line.text for line in source.comments] == ["a comment with cudaPackages_13", "another"]
    assert not any("cudaPackages_13" in line.text for line in (*source.selections, *source.strings))


def test_strings_line_by_line() -> None:
    source = NixSource(TEXT)
    phase = source.last("phase")
    assert phase is not None
    assert [(line.number, line.text.strip()) for line in source.lines(phase.node)] == [
        (11, "export A=1 # not B=2"),
        (12, 'echo "9.0"'),
    ]


def test_syntax_errors_are_found_and_trailing_commas_are_not_errors() -> None:
    assert NixSource("{\n  a ? 1,\n  b,\n}:\na\n").error_line is None
    assert NixSource("{\n  a ? 1,\n}:\na\n").error_line is None
    assert NixSource("{ a }: {\n  b = 1;\n").error_line is not None
    assert NixSource("{ a }: a +\n").error_line is not None


@given(st.text(max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    source = NixSource(text)
    for answer in (source.bindings, source.comments, source.selections, source.strings, source.calls, source.paths):
        assert isinstance(answer, tuple)
    for binding in source.bindings:
        source.value(binding.node)


def test_shell_comments_and_here_documents() -> None:
    script = """\
export A=1 B="two words" # export C=3
# export D=4
cat > file << 'END'
export E=5
# not a comment here
END
export F='#6'"""
    lines = [TextLine(at, text) for at, text in enumerate(script.splitlines(), 1)]
    found = exports(commands(lines))
    assert found == {"A": ("1", 1), "B": ("two words", 1), "F": ("#6", 7)}
    assert [c.text for c in commands(lines) if c.document] == ["export E=5", "# not a comment here"]


@given(st.text(max_size=80))
def test_any_line_can_be_split(text: str) -> None:
    assert all(isinstance(word, str) for word in split(text))
