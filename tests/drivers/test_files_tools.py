"""The file.* tools: what they declare, and what a step gets back."""

import base64
import os
from contextlib import closing

import attrs
import pytest
from hypothesis import given, strategies as st

from hearth.drivers.files import READ_MAX, UNDO_MAX, WRITE_MAX, FileDriver
from hearth.drivers.schemas import read_bytes
from hearth.drivers.tools.files import file_tools
from hearth.errors import DeviceError, InvalidParams, PermissionDenied
from hearth.policy.paths import PathGuard
from hearth.schema import Validator, check_schema
from hearth.tools import Done, PathUse

TOOLS = {tool.name: tool for tool in file_tools()}


@attrs.define
class InlineContext:
    """A StepContext whose bus runs a transaction where it stands."""

    driver: FileDriver
    paths: PathGuard
    transactions: int = 0

    async def transact(self, op):
        self.transactions += 1
        return op(self.driver)


@pytest.fixture
def context(tmp_path):
    with closing(PathGuard([tmp_path], [tmp_path])) as guard:
        yield InlineContext(FileDriver(), guard)


@pytest.fixture
def call(context):
    """Run a tool as a task does: args that fit the schema in, a result that fits the schema out."""

    async def run(name, **args):
        tool = TOOLS[name]
        assert Validator(tool.params_schema).accepts(args), Validator(tool.params_schema).explain(args)
        assert tool.bus(args) == "files"
        value = await tool.run(context, args)
        result = value.result if isinstance(value, Done) else value
        assert isinstance(value, Done) == tool.supports_rollback
        assert Validator(tool.result_schema).accepts(result), Validator(tool.result_schema).explain(result)
        return value

    return run


def b64(data):
    return base64.b64encode(data).decode()


def shown(text):
    """The members of a result that show short, printable bytes."""
    return {"data": b64(text), "hex": text.hex(), "text": text.decode()}


def test_the_tools_and_their_risks_are_those_of_the_design():
    assert {name: tool.risk_level for name, tool in TOOLS.items()} == {
        "file.list": 0,
        "file.stat": 0,
        "file.read": 0,
        "file.write": 1,
        "file.delete": 3,
    }


def test_only_writing_can_be_rolled_back_and_only_changes_need_the_write_flag():
    assert [name for name, tool in TOOLS.items() if tool.supports_rollback] == ["file.write"]
    flags = {name: tool.capability for name, tool in TOOLS.items()}
    assert {name for name, flag in flags.items() if flag == "CAP_FILE_WRITE"} == {"file.write", "file.delete"}
    assert set(flags.values()) == {"CAP_FILE_READ", "CAP_FILE_WRITE"}


@pytest.mark.parametrize("name", TOOLS)
def test_the_schemas_are_schemas_and_forbid_no_unknown_field(name):
    tool = TOOLS[name]
    check_schema(tool.params_schema, name)
    check_schema(tool.result_schema, name)
    args = {"path": "/a", "data": "", "something": "new"}
    assert Validator(tool.params_schema).accepts(args)


@pytest.mark.parametrize("name", TOOLS)
def test_the_guard_sees_each_path_with_the_right_access(name):
    access = "write" if TOOLS[name].capability == "CAP_FILE_WRITE" else "read"
    assert list(TOOLS[name].paths({"path": "/a"})) == [PathUse("/a", access)]


def test_the_bus_can_have_another_name():
    assert {tool.bus({"path": "/a", "data": ""}) for tool in file_tools("disk")} == {"disk"}


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("file.read", {}),
        ("file.read", {"path": ""}),
        ("file.read", {"path": 7}),
        ("file.read", {"path": "/a", "offset": -1}),
        ("file.read", {"path": "/a", "offset": 0.5}),
        ("file.read", {"path": "/a", "offset": 2**60}),
        ("file.read", {"path": "/a", "len": 0}),
        ("file.read", {"path": "/a", "len": READ_MAX + 1}),
        ("file.write", {"path": "/a", "data": None}),
        ("file.write", {"path": "/a", "data": "", "mode": "truncate"}),
        ("file.write", {"path": "/a", "data": b64(bytes(WRITE_MAX + 3))}),
        ("file.list", {"path": ["/a"]}),
        ("file.delete", {}),
        ("file.stat", {}),
    ],
)
def test_args_that_do_not_fit_are_refused_by_the_schema(name, args):
    assert not Validator(TOOLS[name].params_schema).accepts(args)


def test_a_relative_path_fits_the_schema_since_the_guard_explains_it_better(context):
    assert Validator(TOOLS["file.read"].params_schema).accepts({"path": "a"})
    with pytest.raises(PermissionDenied, match="give an absolute path"):
        context.paths.check("a", "read")


def test_the_largest_write_fits_the_schema():
    assert Validator(TOOLS["file.write"].params_schema).accepts({"path": "/a", "data": b64(bytes(WRITE_MAX))})


def test_descriptions_name_the_limits_they_have():
    assert str(READ_MAX) in TOOLS["file.read"].description
    assert str(UNDO_MAX) in TOOLS["file.write"].description


async def test_a_file_is_written_looked_at_listed_read_and_deleted(call, tmp_path):
    path = str(tmp_path / "a")
    written = await call("file.write", path=path, data=b64(b"hello"))
    assert written.result == {"path": path, "size": 5, "created": True, "reversible": True}
    assert (await call("file.stat", path=path))["size"] == 5
    listing = await call("file.list", path=str(tmp_path))
    assert [entry["name"] for entry in listing["entries"]] == ["a"]
    assert await call("file.read", path=path) == {**shown(b"hello"), "size": 5, "eof": True}
    assert await call("file.read", path=path, offset=1, len=3) == {**shown(b"ell"), "size": 5, "eof": False}
    assert await call("file.delete", path=path) == {"path": path, "deleted": "file"}
    assert os.listdir(tmp_path) == []


async def test_each_mode_reaches_the_driver(call, tmp_path):
    path = str(tmp_path / "a")
    await call("file.write", path=path, data=b64(b"1"), mode="create")
    await call("file.write", path=path, data=b64(b"2"), mode="append")
    assert (tmp_path / "a").read_bytes() == b"12"
    await call("file.write", path=path, data=b64(b"3"), mode="replace")
    assert (tmp_path / "a").read_bytes() == b"3"
    with pytest.raises(DeviceError, match="File exists"):
        await call("file.write", path=path, data=b64(b"4"), mode="create")


async def test_a_write_gives_the_way_back(call, context, tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    done = await call("file.write", path=str(tmp_path / "a"), data=b64(b"new"))
    done.undo.op(context.driver)
    assert (tmp_path / "a").read_bytes() == b"old"


async def test_numbers_that_json_writes_with_a_point_are_integers_as_well(call, tmp_path):
    (tmp_path / "a").write_bytes(b"0123")
    assert (await call("file.read", path=str(tmp_path / "a"), offset=1.0, len=2.0))["data"] == b64(b"12")


async def test_every_kind_of_entry_fits_the_result_schema(call, tmp_path):
    (tmp_path / os.fsdecode(b"\xff")).touch()
    (tmp_path / "link").symlink_to("nothing")
    (tmp_path / "dir").mkdir()
    os.mkfifo(tmp_path / "fifo")
    listing = await call("file.list", path=str(tmp_path))
    assert {entry["type"] for entry in listing["entries"]} == {"file", "symlink", "directory", "fifo"}


async def test_a_step_is_one_transaction(call, context, tmp_path):
    for count, (name, more) in enumerate(
        [("file.write", {"data": ""}), ("file.stat", {}), ("file.read", {}), ("file.delete", {})], start=1
    ):
        await call(name, path=str(tmp_path / "a"), **more)
        assert context.transactions == count


@pytest.mark.parametrize("name", TOOLS)
async def test_a_path_that_became_a_way_out_after_submit_is_refused_at_use(call, tmp_path, name):
    (tmp_path / "a").symlink_to("/etc/passwd" if name != "file.list" else "/etc")
    more = {"data": ""} if name == "file.write" else {}
    with pytest.raises((PermissionDenied, DeviceError)) as refused:
        await call(name, path=str(tmp_path / "a"), **more)
    if name != "file.write":  # which refuses any link, wherever it leads
        assert isinstance(refused.value, PermissionDenied)
    assert (tmp_path / "a").is_symlink()


@pytest.mark.parametrize(
    "text",
    [
        "A", "AA", "AA=", "AAA", "AAAAA", "AAAA====", "AA==AAAA", "=AAA", "====", "AAA=\n", "AAAA\n", "A A A A ",
        "AA-_", "AÀ==", "!",
    ],
)  # fmt: skip
def test_what_is_not_base64_is_refused_at_submit_and_in_the_step_before_anything_happens(text):
    args = {"path": "/a", "data": text}
    with pytest.raises(InvalidParams) as refused:
        TOOLS["file.write"].bus(args)
    assert refused.value.data["path"] == "/data"
    assert "base64" in refused.value.data["reason"]


async def test_a_step_with_bad_base64_begins_no_transaction(context, tmp_path):
    with pytest.raises(InvalidParams):
        await TOOLS["file.write"].run(context, {"path": str(tmp_path / "a"), "data": "!"})
    assert context.transactions == 0


@given(st.binary(max_size=100))
def test_all_binary_data_goes_through_base64_and_hex(data):
    assert read_bytes({"data": b64(data)}, least=0) == data
    assert read_bytes({"hex": data.hex()}, least=0) == read_bytes({"hex": data.hex(" ")}, least=0) == data
