"""HCP, by which another agent harness submits a whole job: messages, capabilities, safety gate, durable record.

Pure: nothing here knows a carrier, a clock, a file that it was not given, or Trio. The running parts are in
`hearth.actors.bridges.hcp`, the client's in `hearth.client.jobs`.
"""
