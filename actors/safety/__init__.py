"""Physical safety: what keeps outputs within bounds, and stops them."""
