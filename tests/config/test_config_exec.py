"""Templates of proc.exec: what an agent's parameters can turn into, and what they cannot."""

import pytest
from hypothesis import given, strategies as st

from hearth.config.exec import MAX_PARAM, ExecParam, ExecTemplate
from hearth.errors import ConfigError, InvalidParams

PING = ExecTemplate(
    argv=("/usr/bin/ping", "-c{count}", "{host}", "--note={{{note}}}"),
    params={
        "count": ExecParam(enum=("1", "-3")),
        "host": ExecParam(pattern="[a-z.-]*"),
        "note": ExecParam(pattern=r"\w*"),
    },
)
GOOD = {"count": "1", "host": "robot.local", "note": "x"}


def test_each_element_of_a_template_becomes_one_argument():
    assert PING.fill(GOOD) == ["/usr/bin/ping", "-c1", "robot.local", "--note={x}"]


def test_a_parameter_that_the_template_does_not_know_is_ignored():
    assert PING.fill({**GOOD, "shell": "rm -rf /"}) == PING.fill(GOOD)


@pytest.mark.parametrize(
    ("changed", "param", "reason"),
    [
        ({"count": "2"}, "count", 'expected one of "1", "-3"'),
        ({"count": 1}, "count", "expected a string"),
        ({"host": None}, "host", "expected a string"),
        ({"host": "Robot"}, "host", "expected a match of [a-z.-]*"),
        ({"host": "robot\n"}, "host", "expected a match of [a-z.-]*"),
        ({"host": "-f"}, "host", "must not begin with '-'"),
        ({"host": "a" * (MAX_PARAM + 1)}, "host", f"expected at most {MAX_PARAM} characters"),
        ({"note": "é"}, "note", r"expected a match of \w*"),
    ],
)
def test_a_parameter_that_is_not_what_the_operator_allows_is_refused(changed, param, reason):
    with pytest.raises(InvalidParams, match=f"parameter '{param}'") as caught:
        PING.fill({**GOOD, **changed})
    assert caught.value.data == {"param": param, "reason": reason}


def test_a_missing_parameter_is_named():
    with pytest.raises(InvalidParams, match="parameter 'host': is missing"):
        PING.fill({"count": "1", "note": ""})


def test_a_dash_is_harmless_inside_an_argument_and_where_the_operator_lists_it():
    rule = ExecParam(pattern="[a-z-]*")
    inside = ExecTemplate(argv=("/bin/a", "x{p}"), params={"p": rule})
    listed = ExecTemplate(argv=("/bin/a", "{p}"), params={"p": ExecParam(enum=("-v",))})
    assert inside.fill({"p": "-f"}) == ["/bin/a", "x-f"]
    assert listed.fill({"p": "-v"}) == ["/bin/a", "-v"]


def test_an_option_cannot_be_made_by_leaving_the_parameter_before_it_empty():
    rule = ExecParam(pattern="[a-z-]*")
    template = ExecTemplate(argv=("/bin/a", "{p}{q}"), params={"p": rule, "q": rule})
    assert template.fill({"p": "a", "q": "-f"}) == ["/bin/a", "a-f"]
    with pytest.raises(InvalidParams, match="parameter 'q': must not begin with '-'"):
        template.fill({"p": "", "q": "-f"})


def test_a_control_character_passes_no_pattern():
    template = ExecTemplate(argv=("/bin/a", "{p}"), params={"p": ExecParam(pattern=r"(?s:.*)")})
    for character in "\0\n\r\t\x1b\x7f":
        with pytest.raises(InvalidParams):
            template.fill({"p": f"a{character}b"})


@given(values=st.fixed_dictionaries({"a": st.text(), "b": st.text()}))
def test_no_value_adds_an_argument_or_changes_another(values):
    anything = ExecParam(pattern="(?s:.*)")
    template = ExecTemplate(argv=("/bin/a", "{a}", "=", "b={b}"), params={"a": anything, "b": anything})
    try:
        argv = template.fill(values)
    except InvalidParams:
        return
    assert argv == ["/bin/a", values["a"], "=", f"b={values['b']}"]
    assert not argv[1].startswith("-")


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: ExecTemplate(argv=()), "ExecTemplate.argv: expected an array of at least 1, got []"),
        (lambda: ExecTemplate(argv=("bin/a",)), "argv[0]: expected the program's absolute path"),
        (lambda: ExecTemplate(argv=("/bin/a", "{b")), 'argv: stray "{" in "{b"'),
        (lambda: ExecTemplate(argv=("/bin/a", "{B}"), params={"B": ExecParam(enum=("x",))}), "lower-case names"),
        (lambda: ExecTemplate(argv=("/bin/a",), timeout_ms=0), "ExecTemplate.timeout_ms: expected an integer from 1"),
        (lambda: ExecParam(pattern="(" * 3), "pattern: "),
        (lambda: ExecParam(enum=()), "ExecParam.enum: expected an array of at least 1"),
        (lambda: ExecParam(pattern="a", enum=("b",)), "exactly one of pattern and enum"),
    ],
)
def test_a_template_that_cannot_be_meant_is_refused(build, told):
    with pytest.raises(ConfigError) as caught:
        build()
    assert told in str(caught.value)
