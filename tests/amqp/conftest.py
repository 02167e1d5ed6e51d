"""The broker that the tests here share."""

from __future__ import annotations

from support.rabbitmq import rabbitmq as rabbitmq
