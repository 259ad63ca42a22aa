"""What rewritten programs call: branches, loops, merging, comparisons, subscripts, calls."""
