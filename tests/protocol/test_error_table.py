"""The error table: complete, stable, documented, and the same on both ends (draft §2.5, §6)."""

import re
from pathlib import Path

import pytest

from hearth import errors
from hearth.errors import ERROR_TABLE, DeviceError, InternalError, RpcError, TimedOut, effect_of, from_wire
from hearth.protocol.jsonrpc import dump_error, load

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
ROW = re.compile(r"\| (-\d+) \| `(\w+)` \| `(\w+)` \| (.+?) \| (.+?) \| (.+) \|$")

OF_THE_DRAFT = {
    -32700: "PARSE_ERROR",
    -32600: "INVALID_REQUEST",
    -32601: "METHOD_NOT_FOUND",
    -32602: "INVALID_PARAMS",
    -32603: "INTERNAL_ERROR",
    -32000: "RPC_SESSION_INVALID",
    -32001: "RPC_TASK_NOT_FOUND",
    -32002: "RPC_TOOL_NOT_FOUND",
    -32003: "RPC_PERMISSION_DENIED",
    -32004: "RPC_RESOURCE_BUSY",
}
ADDED = {
    -32005: "QUEUE_FULL",
    -32006: "RATE_LIMITED",
    -32007: "SHUTTING_DOWN",
    -32008: "UNSUPPORTED_VERSION",
    -32009: "DEVICE_ERROR",
    -32010: "TIMED_OUT",
    -32011: "AUDIT_UNAVAILABLE",
    -32012: "HALTED",
    -32013: "LIMIT_VIOLATED",
    -32014: "INTERLOCK_OPEN",
    -32015: "EFFECT_NOT_SEEN",
    -32016: "APPROVAL_REQUIRED",
    -32017: "PLAN_STALE",
}
ALL = sorted(ERROR_TABLE.values(), key=lambda cls: cls.code)


def rows():
    return [match.groups() for line in REFERENCE.read_text().splitlines() if (match := ROW.match(line))]


@pytest.mark.spec("6", "MUST NOT", "They MUST NOT re-use the codes above with different meaning.")
def test_the_codes_of_the_draft_mean_what_the_draft_says():
    assert {code: cls.symbol for code, cls in ERROR_TABLE.items() if code in OF_THE_DRAFT} == OF_THE_DRAFT


@pytest.mark.spec("6", "MAY", "Implementations MAY add codes in -32099 to -32005.")
def test_added_codes_lie_in_the_range_that_is_left_for_them():
    assert {code: cls.symbol for code, cls in ERROR_TABLE.items() if code not in OF_THE_DRAFT} == ADDED
    assert all(-32099 <= code <= -32005 for code in ADDED)


@pytest.mark.spec("2.5", "MUST", "New error codes MUST be additive (no re-purposing of existing numbers).")
def test_a_number_once_given_out_keeps_its_meaning():
    # This table is history: a line may be added here, none may ever be changed.
    assert {code: cls.symbol for code, cls in ERROR_TABLE.items()} == {**OF_THE_DRAFT, **ADDED}


def test_every_class_that_can_cross_the_wire_is_in_the_table_under_its_own_code():
    classes = {cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, RpcError)}
    assert set(ERROR_TABLE.values()) == classes - {RpcError}
    assert all(cls.code == code for code, cls in ERROR_TABLE.items())
    assert len({cls.symbol for cls in ALL}) == len(ALL)


@pytest.mark.spec("design 8: added codes")
def test_the_reference_has_every_error_and_no_other_in_the_order_of_the_table():
    assert [(int(code), symbol, name) for code, symbol, name, *_ in rows()] == [
        (code, cls.symbol, cls.__name__) for code, cls in ERROR_TABLE.items()
    ]


def test_the_reference_says_of_every_error_what_it_means_what_it_carries_and_what_to_do():
    for code, *_, meaning, data, cure in rows():
        assert len(meaning) > 10, code
        assert data == "none" or "`" in data or "bound" in data, code
        assert len(cure) > 10, code


def test_the_reference_says_effect_where_an_error_may_have_had_one():
    documented = {name: data for _, _, name, _, data, _ in rows()}
    for cls in ALL:
        if issubclass(cls, DeviceError | InternalError):
            assert "`effect`" in documented[cls.__name__]


async def test_the_example_of_the_reference_runs_and_says_what_happened(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", REFERENCE.read_text(), re.DOTALL)
    scope = {}
    exec(block, scope)

    class Session:
        async def run(self, tool, **args):
            assert (tool, args) == ("gpio.set", {"line": 17, "value": 1})
            raise self.error

    session = Session()
    for error, said in [
        (errors.ResourceBusy(data={"holder_task": "t1"}), "in use by t1"),
        (errors.ResourceBusy(data={"reason": "wedged"}), "in use by another principal"),
        (errors.RateLimited(data={"retry_after_ms": 20}), "too often; again in 20 ms"),
        (DeviceError("NACK", effect="none"), "failed; it did not happen"),
        (TimedOut("late", effect="done"), "failed; it happened"),
        (TimedOut("gone"), "failed; it may have happened"),
        (errors.ToolNotFound("no", data={"tool": "x"}), "-32002 no {'tool': 'x'}"),
    ]:
        session.error = error
        await scope["light"](session)
        assert capsys.readouterr().out.strip() == said


# --- over the wire and back -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("data", [None, {}, {"reason": "r", "n": {"deep": [1, None]}}])
@pytest.mark.spec("6", "MAY", "The optional error.data field MAY carry a structured detail object:")
def test_an_error_comes_out_of_the_wire_as_it_went_in(cls, data):
    error = cls("what went wrong", data=data)
    got = from_wire(load(dump_error(1, error))["error"])
    assert type(got) is cls
    assert got.message == str(got) == "what went wrong"
    assert got.data == error.data


@pytest.mark.parametrize("cls", ALL)
def test_an_error_without_words_says_its_title(cls):
    assert cls().to_wire()["message"] == cls.title
    assert from_wire({"code": cls.code}).message == cls.title


def test_the_drafts_example_of_an_error():
    error = errors.PermissionDenied(data={"tool": "gpio.set", "reason": "max_risk_level=1 < tool=2"})
    assert error.to_wire() == {
        "code": -32003,
        "message": "Permission denied",
        "data": {"tool": "gpio.set", "reason": "max_risk_level=1 < tool=2"},
    }


@pytest.mark.parametrize("effect", ["none", "done", "unknown"])
@pytest.mark.parametrize("cls", [DeviceError, TimedOut])
def test_what_became_of_the_world_survives_the_wire(cls, effect):
    got = from_wire(load(dump_error(1, cls("x", effect=effect, data={"addr": 72})))["error"])
    assert got.data == {"effect": effect, "addr": 72}
    assert effect_of(got) == effect


def test_a_device_error_that_does_not_say_its_effect_counts_as_unknown():
    assert from_wire({"code": -32009, "message": "x"}).data == {"effect": "unknown"}
    assert from_wire({"code": -32010, "message": "x", "data": {"bus": "i2c:1"}}).data["effect"] == "unknown"


@pytest.mark.parametrize("data", [["a"], "text", 7, False])
def test_data_that_is_no_object_is_kept(data):
    assert from_wire({"code": -32602, "message": "x", "data": data}).data == {"value": data}


@pytest.mark.parametrize("code", [-32050, -32099, 1, 0, -1, 2**63])
def test_an_unknown_code_bears_its_number_and_is_sent_on_with_it(code):
    error = from_wire({"code": code, "message": "later", "data": {"code": "kept"}})
    assert type(error) is RpcError
    assert (error.code, error.message, error.data) == (code, "later", {"code": "kept"})
    assert error.to_wire() == {"code": code, "message": "later", "data": {"code": "kept"}}
    assert RpcError.code == -32603
    assert str(code) in from_wire({"code": code}).message


@pytest.mark.parametrize("error", [{}, {"code": None}, {"code": "x", "message": 7}, {"code": [1]}])
def test_an_error_without_a_code_is_still_an_error(error):
    assert type(from_wire(error)) is RpcError
