"""The brokers of the tests here: the one that they share, and one of a test's own."""

from __future__ import annotations

from support.rabbitmq import killable as killable, rabbitmq as rabbitmq
