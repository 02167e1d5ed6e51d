"""Physical safety across sessions: what keeps outputs within bounds, what stops them, what a person must approve."""
