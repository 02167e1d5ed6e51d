"""What all tests share: the assertions in `support` say what they compared, whoever imports it first."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("support")
