"""HCP, the layer in which another agent harness hands over a whole job: messages, capabilities, the gate, the record.

Pure: nothing here knows a carrier, a clock, a file that it was not handed, or Trio. What lives is in
`hearth.actors.bridges.hcp`, what a caller holds in `hearth.client.jobs`.
"""
