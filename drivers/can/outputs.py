"""The signals of a CAN bus as outputs: which of them a frame sets, and the frames that set signals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from hearth.drivers.kind import ANY, Call, Outputs, Signal, undeclared

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from hearth.drivers.can.dbc import CanDatabase
    from hearth.drivers.can.driver import Frame
    from hearth.drivers.can.spec import CanSpec
    from hearth.drivers.kind import Driven, Level

_SEND_S: Final = 1.0


class CanOutputs(Outputs):
    """One bus; an output is "MESSAGE.SIGNAL": of the message, those that the profile names, if any.

    A frame means the messages that its identifier has in the database: all of an identifier that is there twice, and
    of J1939 those of its parameter group.
    """

    plain: ClassVar[frozenset[str]] = frozenset({"bus", "describe", "errors", "state"})
    reading: ClassVar[frozenset[str]] = frozenset({"follow", "take"})

    def __init__(self, database: CanDatabase) -> None:
        self._bus = f"can:{database.bus}"
        self._database = database
        self.signals: Mapping[Hashable, Signal] = database.signals()

    def driven(self, call: Call) -> Sequence[Driven]:
        """Return the signals that a frame sets. Raises LimitViolated and PermissionDenied, as the database does."""
        if call.op == "isotp":
            self._database.check_isotp(call.args[0])
            return ((ANY, call.args[2]),)
        if call.op != "send":
            raise undeclared(call, self._bus)
        frame: Frame = call.args[0]
        self._database.check(frame)
        values = self._database.values_of(frame)
        named = [(name, value) for name, value in values.items() if name in self.signals]
        return named or list(values.items()) or ((ANY, frame),)

    def drive(self, wanted: Sequence[Driven], known: Mapping[Hashable, Level]) -> Sequence[Call]:
        """Return one frame for each message; its other signals have the values that were sent last, or idle ones."""
        values = {str(name): level for name, level in {**known, **dict(wanted)}.items()}
        messages = dict.fromkeys(str(name).partition(".")[0] for name, _ in wanted)
        return [Call("send", (self._database.whole(name, values),), {"timeout_s": _SEND_S}) for name in messages]

    def asked(self, output: Hashable, level: Level) -> Call:
        """Return the frame that a tool has declared."""
        return Call("send", (level,))


def can_outputs(spec: CanSpec, driver: Any) -> CanOutputs:
    """Return the outputs of a bus, without a driver by its DBC file. Raises ConfigError for a bad file."""
    return CanOutputs(spec.database() if driver is None else driver.rules)
