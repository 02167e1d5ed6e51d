"""What must hold of a step that expects an effect: it succeeds only when a read has shown it."""

from __future__ import annotations

from .base import Broken, invariant


@invariant("a step that expects an effect succeeds only when a read has shown it")
def seen(reading, judged):
    """Judged at the device: what the read of the expectation found there, after the last effect of the step."""
    reads = {}
    for one in reading.transactions:
        if one.what == "get" and one.outcome == "done":
            reads.setdefault(one.args.get("mark"), []).append(one)
    for task in reading.tasks.values():
        asked = task.unheard or next(iter(task.asked), None)
        specs = (asked.params.get("task") or {}).get("steps") or () if asked else ()
        for index, spec in enumerate(specs):
            step, expect = task.steps.get(index), spec.get("expect")
            if not expect or step is None or step.status != "SUCCESS" or task.constraints.get("dry_run"):
                continue
            judged()
            done = max((one.ended for one in step.transactions if not one.must_run), default=0)
            mark, value = expect["args"]["mark"], expect["equals"]["value"]
            if not any(done < one.begun < step.finish.number and one.value == value for one in reads.get(mark, ())):
                expected = f"a read that shows {value} after {step}, before it is on record as a success"
                yield Broken((done, step.finish.number), expected, "there is none")
