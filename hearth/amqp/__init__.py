"""AMQP 0-9-1 without I/O, for a client of RabbitMQ: bytes in, events out; commands in, bytes out.

`address` reads a broker's URL, `messages` has the values that programs handle, `topology` what they declare, and
`errors` every failure by name: none of these needs the codec `pamqp`. `framing` cuts a byte stream into frames,
`channel` and `connection` are the state machine; these need the extra `hearthd[amqp]`. `hearth.actors.bridges.amqp`
runs the machine over TCP and TLS.
"""
