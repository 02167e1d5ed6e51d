"""Measures hearthd against floors in the same run: `python -m benchmarks [--quick] [--json FILE] [NAME...]`.

floors.py    what Trio itself can do here: the same requests, answered by almost nothing
hearthd.py   the daemon with somebody watching it, or with one thing changed that its configuration cannot say
servers.py   starts and ends the processes under test; reads their CPU time and memory
load.py      the load: closed loops over raw sockets, the same for every server
websocket.py subscribers.py websocket_floors.py    the same over WebSocket: clients, those who are told, floors
client.py    hearth's own client, against raw sockets
can.py can_program.py    CAN at a rate: who sends the frames, and the bare program that reads them
rates.py fanout.py evenness.py memory.py idle.py start.py turns.py    what is measured
quiet.py     repeats what others on the machine disturbed
profiling.py watchers.py findings.py    where the time goes: --profile
report.py    figures, goals, the table
peers.py peer_programs.py    hearth's clients beside other ways to set a line: a command of its own
See docs/performance.md for the method and the latest figures.
"""
