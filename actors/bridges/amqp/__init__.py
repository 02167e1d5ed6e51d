"""hearth as a client of RabbitMQ, over Trio. Needs the extra `hearthd[amqp]`; `connection` is the whole client."""
