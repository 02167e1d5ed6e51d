"""`hearth ask` in this process, against a real hearthd in another, and a model server on loopback."""

import pytest
from cli.conftest import cli as cli, daemon as daemon, local_cli as local_cli, own_daemon as own_daemon
from support.model_server import ModelServer

# The clients leave the generators of a stream to the garbage collector: after its last event, and where it breaks off.
# The connection is closed by then. `(?s)` is the multi-line text of an unraisable exception.
LEFT = [
    "ignore:Async generator '(openai|anthropic|httpx2|httpcore2):ResourceWarning",
    "ignore:(?s)Exception ignored in.*async_generator object:pytest.PytestUnraisableExceptionWarning",
]


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/ask/" in str(item.path):
            for one in LEFT:
                item.add_marker(pytest.mark.filterwarnings(one))


@pytest.fixture(autouse=True)
def _own_state(monkeypatch, tmp_path):
    """No test writes transcripts where the tester has theirs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))


@pytest.fixture
def model():
    """A server whose script a test fills."""
    for package in ("openai", "anthropic"):
        pytest.importorskip(package, reason="hearth ask takes the extra: pip install 'hearthd[ask]'")
    with ModelServer() as server:
        yield server


@pytest.fixture(params=["openai", pytest.param("anthropic", marks=pytest.mark.proof)])
def asks(request, model, local_cli, tmp_path):
    """Run `hearth ask ARGS…` against this server, over either API."""
    config = tmp_path / "ask.toml"
    url = getattr(model, request.param)
    config.write_text(f'[ask]\napi = "{request.param}"\nbase_url = "{url}"\nmodel = "small"\ntimeout_s = 20\n')

    def run(*args, script=(), **more):
        model.script[:] = script
        return local_cli("ask", "--config", config, *args, **more)

    run.config = config
    return run
