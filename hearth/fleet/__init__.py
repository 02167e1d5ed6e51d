"""The caller's side of a fleet: orders for many devices over a broker (HCP L1).

`selectors` picks devices by their announcements, `order_store` is the caller's record, `client` runs both over a
connection, `enrolment` gives a device its user, its permissions and its certificate. The device's side is
`hearth.actors.bridges.amqp.uplink`.
"""
