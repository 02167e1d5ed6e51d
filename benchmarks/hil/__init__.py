"""Measures hearth on a kernel's simulated hardware: `python -m benchmarks.hil [--quick] [--json FILE] [NAME...]`.

On the host it starts itself in the guest (tests/hardware/guest.py) and shows what comes out; in the guest it measures.

bench.py     the chip, the runtime on it, and the bare gpiod programs that it is compared with
rates.py     gpio.set, in tasks of many steps and of one
latency.py   from an edge to its event
can.py       a thousand CAN frames a second
idle.py      how often a daemon with nothing to do wakes up
See docs/performance.md for the method and the latest figures.
"""
