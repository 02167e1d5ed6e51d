"""The HCP bridge: the job server that accepts whole jobs over any carrier, the jobs, and the store that keeps them."""
