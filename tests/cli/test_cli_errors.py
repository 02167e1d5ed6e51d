"""Errors as people and programs get them, and the exit codes that go with them."""

from __future__ import annotations

import click
import pytest

from hearth.cli.common import Options, error_json, error_lines, report
from hearth.errors import (
    CarrierError,
    ConfigError,
    DeviceError,
    HearthError,
    InvalidParams,
    PermissionDenied,
    RpcError,
    TaskFailed,
    ToolNotFound,
)

HUMAN = Options("/s", "default", False)
PROGRAM = Options("/s", "default", True)


def plain(error):
    return [click.unstyle(line) for line in error_lines(error)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CarrierError("nobody"), 3),
        (ConfigError("bad"), 2),
        (InvalidParams("bad"), 2),
        (ToolNotFound("bad"), 2),
        (PermissionDenied("bad"), 1),
        (TaskFailed("bad"), 1),
        (HearthError("bad"), 1),
        (FileNotFoundError(2, "No such file or directory", "x"), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code(capsys, error, code):
    assert report(HUMAN, error) == code
    assert report(PROGRAM, error) == code
    out, err = capsys.readouterr()
    assert err.startswith("hearth: ")
    assert out.startswith('{"error":{')


def test_an_error_of_several_lines_is_told_in_several():
    assert plain(ConfigError("one\ntwo")) == ["hearth: one", "hearth: two"]


def test_an_error_without_a_word_is_named_by_its_class():
    assert plain(HearthError()) == ["hearth: HearthError"]
    assert plain(OSError()) == ["hearth: OSError"]


def test_what_the_daemon_says_cannot_move_the_cursor():
    assert plain(RpcError("\x1b[2Jgone")) == ["hearth: \\x1b[2Jgone  (INTERNAL_ERROR -32603)"]


@pytest.mark.parametrize(
    ("effect", "told"),
    [
        ("none", "nothing has happened to the hardware"),
        ("done", "it happened nonetheless"),
        ("unknown", "whether it happened is not known"),
    ],
)
def test_the_effect_is_told_in_words(effect, told):
    assert plain(DeviceError("no", effect=effect)) == [
        "hearth: no  (DEVICE_ERROR -32009)",
        f"        effect: {told}",
    ]


def test_an_error_as_json_is_the_wires_with_its_symbol():
    assert error_json(InvalidParams("no", data={"path": "/task"})) == {
        "code": -32602,
        "message": "no",
        "data": {"path": "/task"},
        "symbol": "INVALID_PARAMS",
    }
    assert error_json(PermissionError(13, "Permission denied")) == {"message": "Permission denied"}
