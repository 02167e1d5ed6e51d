"""GPIO chips: their lines, edges and times."""
