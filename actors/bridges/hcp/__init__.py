"""HCP's life: the desk that takes whole jobs from any carrier, the jobs, and what is remembered of them."""
