"""Jobs through `hearth.aio` and `hearth.sync`: submitted, followed, found again and aborted as on Trio."""

from __future__ import annotations

import asyncio

import pytest

import hearth

SURVEY = ("bench-climate-survey", "How warm is the bench?", {"sensor": "temperature", "samples": 3, "interval_s": 0.01})


def test_a_job_without_an_event_loop() -> None:
    with hearth.sync.open_runtime() as runtime:
        assert "bench-climate-survey" in [declared["capability"]["name"] for declared in runtime.capabilities()]
        job = runtime.delegate(*SURVEY)
        assert job.accepted is not None
        assert job.session_id in repr(job)
        sequences = [event.sequence for event in job.events()]
        done = job.wait(timeout=60).raise_for_state()
        assert (done.state, job.state) == ("COMPLETED", "COMPLETED")
        assert sequences == list(range(1, job.last_processed_sequence + 1))
        again = runtime.attach_job(job.session_id)
        assert again.wait(timeout=60).outputs == done.outputs
        assert again.abort() == "COMPLETED"
        assert [entry["session_id"] for entry in runtime.jobs()] == [job.session_id]
        with pytest.raises(hearth.JobRejected):
            runtime.delegate("no-such-capability", "x", {})


def test_a_job_in_asyncio() -> None:
    async def main():
        async with hearth.aio.open_runtime() as runtime:
            job = await runtime.delegate(*SURVEY)
            assert job.accepted is not None
            sequences = [event.sequence async for event in job.events()]
            done = (await job.wait()).raise_for_state()
            assert (done.state, job.state) == ("COMPLETED", "COMPLETED")
            assert sequences == list(range(1, job.last_processed_sequence + 1))
            again = await runtime.attach_job(job.session_id)
            assert (await again.wait()).outputs == done.outputs
            assert await again.abort() == "COMPLETED"
            assert [entry["session_id"] for entry in await runtime.jobs()] == [job.session_id]

    asyncio.run(main())
