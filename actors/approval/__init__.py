"""What a person must approve before it runs: prepared plans, and the questions that wait for a decision."""
